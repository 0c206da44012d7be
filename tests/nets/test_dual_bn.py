"""Conversion to dual batch norm, its statistics, and the way back to an ordinary network."""

from __future__ import annotations

import copy
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from torch import Tensor, nn

from fedrbn.nets import build
from fedrbn.nets.dual_bn import Affine, DualBatchNorm, DualNet, dual, plain, set_momentum, single
from fedrbn.nets.state import batch_norms, load, tensors
from fedrbn.types import Branch, Stats

CLEAN, NOISED = Branch.CLEAN, Branch.NOISED
BATCH, FROZEN = Stats.BATCH, Stats.FROZEN
Convert = Callable[[nn.Module], DualNet]


def separate(net: nn.Module) -> DualNet:
    return dual(net, Affine.SEPARATE)


CONVERSIONS = pytest.mark.parametrize("convert", [dual, separate, single])


class Shared(nn.Module):
    """One batch-norm module in two places, under two names."""

    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(3, 3)
        self.first = nn.BatchNorm1d(3)
        self.second = self.first

    def forward(self, x: Tensor) -> Tensor:
        return self.second(self.fc(self.first(x)))


class Odd(nn.Module):
    """Nested modules, a batch norm without w, b and one with a cumulative average."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Sequential(nn.Conv2d(2, 3, 3), nn.Sequential(nn.BatchNorm2d(3, affine=False), nn.Tanh()))
        self.tail = nn.ModuleDict({"fc": nn.Linear(3 * 4, 4), "norm": nn.BatchNorm1d(4, momentum=None)})

    def forward(self, x: Tensor) -> Tensor:
        return self.tail["norm"](self.tail["fc"](self.head(x).flatten(1)))


def randomise(net: nn.Module, rng: torch.Generator) -> None:
    """Weights in [-1, 1), statistics in [0.5, 1.5): no two layers and no two branches alike."""
    with torch.no_grad():
        for parameter in net.parameters():
            parameter.copy_(torch.rand(parameter.shape, generator=rng) * 2 - 1)
        for buffer in net.buffers():
            if buffer.is_floating_point():
                buffer.copy_(torch.rand(buffer.shape, generator=rng) + 0.5)


def values(net: nn.Module) -> dict[str, Tensor]:
    return {name: tensor.clone() for name, tensor in tensors(net).items()}


def equal(a: dict[str, Tensor], b: dict[str, Tensor]) -> bool:
    return a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)


def statistics(layer: nn.Module) -> tuple[list[float], list[float], int]:
    return layer.running_mean.tolist(), layer.running_var.tolist(), int(layer.num_batches_tracked)


@pytest.fixture
def rng() -> torch.Generator:
    return torch.Generator().manual_seed(0)


class TestConversion:
    @CONVERSIONS
    @pytest.mark.parametrize(
        ("kind", "shape"),
        [
            (nn.BatchNorm1d, (4, 2)),
            (nn.BatchNorm1d, (4, 2, 3)),
            (nn.BatchNorm2d, (4, 2, 3, 3)),
            (nn.BatchNorm3d, (4, 2, 3, 3, 3)),
        ],
    )
    def test_each_kind_behaves_as_the_ordinary_layer(
        self, convert: Convert, kind: type[nn.Module], shape: tuple[int, ...], rng: torch.Generator
    ) -> None:
        ordinary = kind(2, eps=0.1, momentum=0.3)  # the root itself is a batch norm
        randomise(ordinary, rng)
        net = convert(ordinary)
        assert isinstance(net.network, DualBatchNorm)
        x = torch.rand(shape, generator=rng)
        for branch in Branch:
            reference = copy.deepcopy(ordinary)
            fresh = convert(ordinary)
            assert torch.equal(fresh(x, branch, BATCH), reference.train()(x))
            assert statistics(fresh.network.branch(branch)) == statistics(reference)
            assert torch.equal(fresh(x, branch, FROZEN), reference.eval()(x))

    def test_wrong_dimensions_are_refused_as_by_the_ordinary_layer(self) -> None:
        with pytest.raises(ValueError, match="expected 4D input"):
            dual(nn.BatchNorm2d(2))(torch.zeros(4, 2), CLEAN)

    @CONVERSIONS
    def test_nested_layers_are_found_by_type(self, convert: Convert) -> None:
        net = convert(Odd())
        assert [name for name, module in net.network.named_modules() if isinstance(module, DualBatchNorm)] == [
            "head.1.0",
            "tail.norm",
        ]

    @CONVERSIONS
    def test_a_shared_layer_stays_shared(self, convert: Convert) -> None:
        net = convert(Shared())
        assert net.network.first is net.network.second
        net(torch.rand(4, 3, generator=torch.Generator().manual_seed(0)), NOISED, BATCH)
        assert int(net.network.first.branch(NOISED).num_batches_tracked) == 2  # passed twice

    @CONVERSIONS
    def test_the_original_is_untouched_and_shares_no_memory(self, convert: Convert, rng: torch.Generator) -> None:
        original = Odd()
        before, kinds = copy.deepcopy(original.state_dict()), [type(module) for module in original.modules()]
        net = convert(original)
        randomise(net, rng)
        net(torch.rand(4, 2, 4, 4, generator=rng), CLEAN, BATCH)
        assert equal(before, original.state_dict())
        assert [type(module) for module in original.modules()] == kinds

    def test_branches_start_as_the_layer_and_share_no_memory(self, rng: torch.Generator) -> None:
        ordinary = nn.BatchNorm1d(2)
        randomise(ordinary, rng)
        layer = separate(ordinary).network
        assert equal(layer.clean.state_dict(), ordinary.state_dict())
        assert equal(layer.noised.state_dict(), ordinary.state_dict())
        pointers = [tensor.data_ptr() for tensor in layer.state_dict().values()]
        assert len(pointers) == len(set(pointers)) == 2 * 5  # w, b, mean, variance, count per branch

    @pytest.mark.parametrize(("convert", "affine_pairs"), [(dual, 1), (separate, 2), (single, 1)])
    def test_trainable_parameters(self, convert: Convert, affine_pairs: int) -> None:
        net = convert(nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4)))
        assert sum(parameter.numel() for parameter in net.parameters()) == 3 * 4 + 4 + affine_pairs * 2 * 4

    @pytest.mark.parametrize("convert", [dual, separate])
    def test_each_branch_uses_the_affine_it_should(self, convert: Convert) -> None:
        net = convert(nn.BatchNorm1d(1, eps=0.0))
        load(net, {"network.clean.weight": torch.tensor([3.0]), "network.clean.bias": torch.tensor([1.0])})
        x = torch.tensor([[2.0]])
        # Statistics 0 and 1: y = w·x + b, with w = 3, b = 1 where the affine is the clean one and 1, 0 otherwise.
        assert net(x, CLEAN).item() == 3 * 2 + 1
        assert net(x, NOISED).item() == (7 if convert is dual else 2)


class TestRefusals:
    @CONVERSIONS
    def test_no_running_statistics(self, convert: Convert) -> None:
        with pytest.raises(ValueError, match=r"got BatchNorm2d with track_running_stats=False; expected running"):
            convert(nn.Sequential(nn.Conv2d(3, 4, 1), nn.BatchNorm2d(4, track_running_stats=False)))

    @CONVERSIONS
    def test_a_subclass_with_its_own_forward(self, convert: Convert) -> None:
        class Activated(nn.BatchNorm2d):
            def forward(self, x: Tensor) -> Tensor:
                return super().forward(x).relu()

        with pytest.raises(ValueError, match=r"got Activated, a batch norm with its own forward method"):
            convert(nn.Sequential(Activated(4)))

    def test_a_subclass_without_its_own_forward_is_welcome(self) -> None:
        class Named(nn.BatchNorm2d):
            pass

        assert len(batch_norms(dual(Named(4)))) == 2

    @pytest.mark.parametrize("convert", [dual, separate])
    def test_no_batch_norm(self, convert: Convert) -> None:
        with pytest.raises(ValueError, match=r"got Linear without a batch-norm layer; expected at least one"):
            convert(nn.Linear(2, 2))

    def test_no_batch_norm_is_fine_with_a_single_set(self, rng: torch.Generator) -> None:
        original = nn.Linear(2, 2)
        net, x = single(original), torch.rand(3, 2, generator=rng)
        assert torch.equal(net(x, NOISED, BATCH), original(x))
        assert batch_norms(net) == ()
        first, second = net.paired(x, x[:1])
        torch.testing.assert_close((first, second), (original(x), original(x[:1])))

    def test_a_layer_cannot_be_called_on_its_own(self) -> None:
        with pytest.raises(RuntimeError, match=r"called on its own; expected a call of the whole network"):
            dual(nn.BatchNorm1d(2)).network(torch.zeros(3, 2))


class TestStatistics:
    # Three values of one channel: mean (1 + 2 + 6) / 3 = 3; squares of the deviations 4 + 1 + 9 = 14, so the variance
    # is 14 / 3 as a plain mean and 14 / 2 = 7 unbiased, which is what the running variance takes.
    FIRST = (1.0, 2.0, 6.0)
    # Mean 1, deviations -1 and 1: unbiased variance 2 / 1 = 2.
    SECOND = (0.0, 2.0)

    @pytest.mark.parametrize("branch", Branch)
    @pytest.mark.parametrize("convert", [dual, separate])
    @pytest.mark.parametrize("spatial", [False, True])
    def test_a_batch_pass_moves_its_own_branch_only(self, convert: Convert, branch: Branch, spatial: bool) -> None:
        net = convert(nn.BatchNorm2d(1, momentum=0.25) if spatial else nn.BatchNorm1d(1, momentum=0.25))
        x = torch.tensor(self.FIRST)
        y = net(x.view(1, 1, 1, 3) if spatial else x.view(3, 1), branch, BATCH)
        other = NOISED if branch is CLEAN else CLEAN
        # From (0, 1): 0.75·0 + 0.25·3 = 0.75 and 0.75·1 + 0.25·7 = 2.5, exact in binary.
        assert statistics(net.network.branch(branch)) == ([0.75], [2.5], 1)
        assert statistics(net.network.branch(other)) == ([0.0], [1.0], 0)
        torch.testing.assert_close(y.flatten(), (x - 3) / (14 / 3 + 1e-5) ** 0.5)

    def test_two_passes_through_one_branch_and_one_through_the_other(self) -> None:
        net = dual(nn.BatchNorm1d(1, momentum=0.5))
        for numbers, branch in ((self.FIRST, CLEAN), (self.SECOND, NOISED), (self.SECOND, CLEAN)):
            net(torch.tensor(numbers)[:, None], branch, BATCH)
        # Clean: mean 0 -> 1.5 -> (1.5 + 1) / 2 = 1.25, variance 1 -> 4 -> (4 + 2) / 2 = 3. Noised: 0.5 and 1.5.
        assert statistics(net.network.clean) == ([1.25], [3.0], 2)
        assert statistics(net.network.noised) == ([0.5], [1.5], 1)

    def test_momentum_none_is_the_average_of_all_batches_of_the_branch(self) -> None:
        net = dual(nn.BatchNorm1d(1, momentum=None))
        for numbers, branch in ((self.FIRST, NOISED), (self.SECOND, CLEAN), (self.SECOND, NOISED)):
            net(torch.tensor(numbers)[:, None], branch, BATCH)
        assert statistics(net.network.noised) == ([(3 + 1) / 2], [(7 + 2) / 2], 2)
        assert statistics(net.network.clean) == ([1.0], [2.0], 1)

    @CONVERSIONS
    def test_frozen_passes_change_nothing(self, convert: Convert, rng: torch.Generator) -> None:
        net = convert(Odd())
        randomise(net, rng)
        before, x = values(net), torch.rand(4, 2, 4, 4, generator=rng)
        for training in (True, False):  # the mode of the module has no say
            net.train(training)
            net(x, CLEAN)
            net(x, NOISED, FROZEN).sum().backward()
            net.paired(x, x)
        assert equal(values(net), before)

    def test_the_module_mode_has_no_say_in_batch_passes(self) -> None:
        net = dual(nn.BatchNorm1d(1, momentum=0.25)).eval()
        net(torch.tensor(self.FIRST)[:, None], CLEAN, BATCH)
        assert statistics(net.network.clean) == ([0.75], [2.5], 1)

    def test_frozen_normalises_by_the_running_statistics(self) -> None:
        net = dual(nn.BatchNorm1d(1, eps=0.0))
        load(
            net, {"network.noised.running_mean": torch.tensor([5.0]), "network.noised.running_var": torch.tensor([4.0])}
        )
        assert net(torch.tensor([[9.0]]), NOISED).item() == (9 - 5) / 2
        assert net(torch.tensor([[9.0]]), CLEAN).item() == 9

    def test_both_branches_of_a_single_set_are_that_set(self) -> None:
        net = single(nn.BatchNorm1d(1, momentum=0.5))
        for numbers, branch in ((self.FIRST, CLEAN), (self.SECOND, NOISED)):
            net(torch.tensor(numbers)[:, None], branch, BATCH)
        assert statistics(net.network.clean) == ([1.25], [3.0], 2)  # as in the test of two passes above

    @pytest.mark.parametrize("convert", [dual, single])
    def test_a_batch_pass_does_not_disturb_the_gradient_of_a_frozen_one_before_it(self, convert: Convert) -> None:
        net = convert(nn.BatchNorm1d(1, eps=1e-12, momentum=1.0))  # ε₀ vanishes in float32
        load(net, {"network.clean.running_var": torch.tensor([4.0])})
        x = torch.tensor([[3.0]], requires_grad=True)
        y = net(x, CLEAN, FROZEN)
        net(torch.tensor(self.FIRST)[:, None], CLEAN, BATCH)  # the running variance becomes 7
        y.sum().backward()
        assert x.grad.item() == 1 / 4**0.5  # dy/dx = w / σ with w = 1 and the σ² = 4 of the pass


class TestCallScope:
    def test_nothing_stays_switched_after_an_exception(self, rng: torch.Generator) -> None:
        class Failing(nn.Module):
            def forward(self, x: Tensor) -> Tensor:
                if x.shape[0] == 3:
                    raise KeyError("half-way")
                return x

        net = dual(nn.Sequential(nn.BatchNorm1d(2), Failing()))
        x = torch.rand(3, 2, generator=rng)
        with pytest.raises(KeyError, match="half-way"):
            net(x, NOISED, BATCH)
        with pytest.raises(KeyError, match="half-way"):
            net.paired(x[:1], x[1:])
        with pytest.raises(RuntimeError, match="called on its own"):
            net.network(x)
        net(torch.rand(4, 2, generator=rng), CLEAN, BATCH)
        # The failed pass had come through the first layer; the one after it went where it was told to.
        assert [int(net.network[0].branch(branch).num_batches_tracked) for branch in (CLEAN, NOISED)] == [1, 1]

    def test_a_call_within_a_call_gives_the_branch_back(self, rng: torch.Generator) -> None:
        inner = dual(nn.BatchNorm1d(2))

        class Outer(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.norm = nn.BatchNorm1d(2)

            def forward(self, x: Tensor) -> Tensor:
                return self.norm(inner(x, CLEAN, BATCH))

        outer = dual(Outer())
        outer(torch.rand(4, 2, generator=rng), NOISED, BATCH)
        counts = {branch: int(outer.network.norm.branch(branch).num_batches_tracked) for branch in Branch}
        assert counts == {CLEAN: 0, NOISED: 1}
        assert {branch: int(inner.network.branch(branch).num_batches_tracked) for branch in Branch} == {
            CLEAN: 1,
            NOISED: 0,
        }

    def test_two_threads_go_through_different_branches(self) -> None:
        meeting = threading.Barrier(2, timeout=10)

        class Meet(nn.Module):
            """Holds each pass until the other one is inside the network too."""

            def forward(self, x: Tensor) -> Tensor:
                meeting.wait()
                return x

        net = dual(nn.Sequential(Meet(), nn.BatchNorm1d(1, momentum=1.0), Meet()))
        batches = {CLEAN: torch.tensor([[1.0], [3.0]]), NOISED: torch.tensor([[10.0], [30.0]])}

        def forward(branch: Branch) -> None:
            net(batches[branch], branch, BATCH)

        with ThreadPoolExecutor(2) as pool:
            list(pool.map(forward, batches))
        # momentum 1 keeps the last batch only: means 2 and 20, unbiased variances 1 + 1 = 2 and 100 + 100 = 200.
        assert statistics(net.network[1].clean) == ([2.0], [2.0], 1)
        assert statistics(net.network[1].noised) == ([20.0], [200.0], 1)


class TestPaired:
    def test_by_hand(self) -> None:
        net = dual(nn.BatchNorm1d(1, eps=1e-12, momentum=0.5))  # ε₀ vanishes in float32
        load(net, {"network.noised.running_mean": torch.tensor([5.0])})
        clean, noised = net.paired(torch.tensor([[1.0], [3.0], [2.0]]), torch.tensor([[7.0]]), BATCH, FROZEN)
        # Clean: mean 2, variance 2/3 as a plain mean and 1 unbiased; noised: (7 - 5) / 1.
        torch.testing.assert_close(clean, torch.tensor([[-1.0], [1.0], [0.0]]) / (2 / 3) ** 0.5)
        assert noised.tolist() == [[2.0]]
        assert statistics(net.network.clean) == ([1.0], [1.0], 1)
        assert statistics(net.network.noised) == ([5.0], [1.0], 0)

    def test_an_empty_part_is_passed_through(self, rng: torch.Generator) -> None:
        net = dual(Odd())
        x = torch.rand(3, 2, 4, 4, generator=rng)
        clean, noised = net.paired(x, x[:0])
        torch.testing.assert_close(clean, net(x, CLEAN))
        assert noised.shape == (0, 4)

    def test_rows_of_one_sample_may_multiply_but_stay_together(self, rng: torch.Generator) -> None:
        class Steps(nn.Module):
            """Folds the steps of a sequence into the batch, sample by sample."""

            def __init__(self) -> None:
                super().__init__()
                self.norm = nn.BatchNorm1d(2)

            def forward(self, x: Tensor) -> Tensor:
                return self.norm(x.flatten(0, 1)).view_as(x)

        net = dual(Steps())
        randomise(net, rng)
        reference = copy.deepcopy(net)
        x, z = torch.rand(3, 5, 2, generator=rng), torch.rand(2, 5, 2, generator=rng)
        torch.testing.assert_close(
            net.paired(x, z, BATCH, BATCH), (reference(x, CLEAN, BATCH), reference(z, NOISED, BATCH))
        )
        torch.testing.assert_close(values(net), values(reference))

    def test_a_network_that_mixes_samples_is_refused(self) -> None:
        class Pooled(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.norm = nn.BatchNorm1d(2)

            def forward(self, x: Tensor) -> Tensor:
                return self.norm(x[:4])

        with pytest.raises(RuntimeError, match=r"got 4 rows .*; expected a multiple of the 5 inputs"):
            dual(Pooled()).paired(torch.zeros(3, 2), torch.zeros(2, 2))


def _paper_network(name: str, side: int) -> Callable[[], nn.Module]:
    return lambda: build(name, classes=10, width=1 / 8, image_shape=(3, side, side), seed=1)


class TestPlain:
    NETWORKS = pytest.mark.parametrize(
        ("make", "shape"),
        [
            (_paper_network("digits", 28), (3, 3, 28, 28)),
            (_paper_network("alexnet", 64), (3, 3, 64, 64)),
            (_paper_network("resnet18", 28), (3, 3, 28, 28)),
            (Odd, (3, 2, 4, 4)),
            (Shared, (3, 3)),
            (lambda: nn.BatchNorm3d(2), (3, 2, 2, 2, 2)),
        ],
        ids=["digits", "alexnet", "resnet18", "odd", "shared", "root"],
    )

    @NETWORKS
    @CONVERSIONS
    def test_logits_are_the_same_bits(
        self, convert: Convert, make: Callable[[], nn.Module], shape: tuple[int, ...], rng: torch.Generator
    ) -> None:
        original = make()
        net, x = convert(original), torch.rand(shape, generator=rng)
        randomise(net, rng)
        before = values(net)
        deployed = {branch: plain(net, branch) for branch in Branch}
        for branch, ordinary in deployed.items():
            assert torch.equal(ordinary(x), net(x, branch, FROZEN))
            assert torch.equal(copy.deepcopy(ordinary)(x), ordinary(x))
            assert not any(isinstance(module, DualBatchNorm | DualNet) for module in ordinary.modules())
            assert not any(module.training for module in ordinary.modules())
            assert list(ordinary.state_dict()) == list(original.state_dict())
            assert repr(ordinary) == repr(original)  # every layer's kind and settings
            original.load_state_dict(ordinary.state_dict())
            assert torch.equal(original.eval()(x), ordinary(x))
        assert torch.equal(deployed[CLEAN](x), deployed[NOISED](x)) == (convert is single)
        assert equal(values(net), before)

    @CONVERSIONS
    @pytest.mark.parametrize("branch", Branch)
    def test_training_the_ordinary_network_leaves_the_dual_one_alone(
        self, convert: Convert, branch: Branch, rng: torch.Generator
    ) -> None:
        net = convert(Odd())
        before, ordinary = values(net), plain(net, branch).train()
        ordinary(torch.rand(4, 2, 4, 4, generator=rng))
        with torch.no_grad():
            for parameter in ordinary.parameters():
                parameter.add_(1)
        assert equal(values(net), before)
        assert all(parameter.requires_grad for parameter in ordinary.parameters())

    def test_a_shared_layer_is_shared_in_the_ordinary_network(self) -> None:
        ordinary = plain(dual(Shared()), NOISED)
        assert ordinary.first is ordinary.second


class TestTensors:
    def test_names(self) -> None:
        net = dual(nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3)))
        own = {f"network.0.{key}" for key in ("weight", "bias")}
        counted = ("running_mean", "running_var", "num_batches_tracked")
        clean = {f"network.1.clean.{key}" for key in ("weight", "bias", *counted)}
        noised = {f"network.1.noised.{key}" for key in counted}
        assert tensors(net).keys() == own | clean | noised
        assert tensors(separate(net_of(net))).keys() == own | clean | noised | {
            "network.1.noised.weight", "network.1.noised.bias",
        }  # fmt: skip
        assert tensors(single(net_of(net))).keys() == own | clean

    def test_they_are_the_network_s_own_memory_without_gradient(self) -> None:
        net = dual(nn.BatchNorm1d(1))
        tensors(net)["network.clean.weight"].fill_(7)
        assert net.network.clean.weight.item() == 7
        assert not any(tensor.requires_grad for tensor in tensors(net).values())

    def test_shared_modules_count_once(self) -> None:
        names = tensors(dual(Shared()))
        assert not any(".second." in name for name in names)
        assert sum(name.endswith("running_mean") for name in names) == 2  # one per branch

    def test_non_persistent_buffers_are_left_out(self) -> None:
        net = nn.Sequential(nn.BatchNorm1d(2))
        net.register_buffer("grid", torch.zeros(5), persistent=False)
        net[0].register_buffer("scratch", torch.zeros(5), persistent=False)
        net.register_buffer("table", torch.zeros(5))
        names = tensors(dual(net))
        assert "network.table" in names
        assert not any("grid" in name or "scratch" in name for name in names)
        root = nn.Identity()  # a name without a dot before it
        root.register_buffer("grid", torch.zeros(5), persistent=False)
        assert tensors(root) == {}

    def test_batch_norms_name_their_tensors_in_layer_order(self) -> None:
        net = dual(Odd())
        found = batch_norms(net)
        assert [(names.layer, names.branch) for names in found] == [
            ("network.head.1.0", CLEAN), ("network.head.1.0", NOISED),
            ("network.tail.norm", CLEAN), ("network.tail.norm", NOISED),
        ]  # fmt: skip
        last = found[-1]
        assert last.statistics == (last.mean, last.variance)
        assert (last.mean, last.variance, last.count) == (
            "network.tail.norm.noised.running_mean",
            "network.tail.norm.noised.running_var",
            "network.tail.norm.noised.num_batches_tracked",
        )
        norm = "network.tail.norm"
        assert [names.affine for names in found] == [(), (), (f"{norm}.clean.weight", f"{norm}.clean.bias"), ()]
        assert batch_norms(separate(Odd()))[-1].affine == (f"{norm}.noised.weight", f"{norm}.noised.bias")

    @CONVERSIONS
    @pytest.mark.parametrize("make", [Odd, Shared, lambda: nn.BatchNorm1d(2)])
    def test_batch_norm_names_are_names_of_tensors(self, convert: Convert, make: Callable[[], nn.Module]) -> None:
        net = convert(make())
        own = tensors(net)
        for names in batch_norms(net):
            holder = net.get_submodule(names.layer).branch(names.branch)
            assert own[names.mean].data_ptr() == holder.running_mean.data_ptr()
            assert own[names.variance].data_ptr() == holder.running_var.data_ptr()
            assert own[names.count].data_ptr() == holder.num_batches_tracked.data_ptr()
            assert all(name in own for name in names.affine)

    @pytest.mark.parametrize(("convert", "branches"), [(dual, 2), (separate, 2), (single, 1)])
    def test_a_single_set_has_one_branch(self, convert: Convert, branches: int) -> None:
        found = batch_norms(convert(Shared()))
        assert [names.branch for names in found] == [CLEAN, NOISED][:branches]


class TestLoad:
    def test_round_trip_between_two_networks(self, rng: torch.Generator) -> None:
        source, target = separate(Odd()), separate(Odd())
        randomise(source, rng)
        load(target, tensors(source))
        assert equal(values(target), values(source))
        randomise(source, rng)
        assert not equal(values(target), values(source))  # copied, not tied

    def test_names_not_given_keep_their_value(self) -> None:
        net = dual(nn.BatchNorm1d(2))
        before = values(net)
        load(net, {"network.noised.running_mean": torch.tensor([1.0, 2.0])})
        after = values(net)
        assert after.pop("network.noised.running_mean").tolist() == [1.0, 2.0]
        before.pop("network.noised.running_mean")
        assert equal(after, before)

    @pytest.mark.parametrize(
        ("name", "message"),
        [
            ("network.clean.weight", r"'network.clean.weight' of shape \(3,\); expected shape \(2,\)"),
            ("network.noised.weight", r"'network.noised.weight' of shape \(3,\); expected one of 8 names .*affine"),
        ],
    )
    def test_tensors_of_another_network_are_refused(self, name: str, message: str) -> None:
        # 8 = clean w, b, mean, variance, count and noised mean, variance, count
        with pytest.raises(ValueError, match=message):
            load(dual(nn.BatchNorm1d(2)), {name: torch.zeros(3)})


def net_of(net: DualNet) -> nn.Module:
    """The ordinary network behind a dual one."""
    return plain(net, CLEAN)


@CONVERSIONS
def test_momentum_is_the_share_of_the_way_to_the_statistics_of_a_batch(convert: Convert) -> None:
    net = convert(nn.Sequential(nn.BatchNorm1d(1)))
    set_momentum(net, 0.25)
    for branch in Branch:
        net(torch.tensor([[2.0], [6.0]]), branch, BATCH)
    values = tensors(net)
    for names in batch_norms(net):
        passes = 2 if len(batch_norms(net)) == 1 else 1
        assert values[names.statistics[0]].item() == pytest.approx(4 * (1 - 0.75**passes))
