"""Byzantine-robust aggregation against numbers worked out by hand."""

from __future__ import annotations

import math
import resource
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch

from fedrbn.config import ConfigError
from fedrbn.errors import StorageError
from fedrbn.federated.aggregation.mean import Aggregate, Contribution, mean
from fedrbn.federated.aggregation.order_statistics import (
    plain_median,
    share_trimmed_mean,
    trimmed_mean,
    weighted_median,
)
from fedrbn.federated.aggregation.robust import (
    CoordinateMedian,
    GeometricMedian,
    Krum,
    NormBound,
    TrimmedMean,
    bounded,
    count,
)
from fedrbn.federated.aggregation.robust import scores as krum_scores
from fedrbn.federated.aggregation.spool import spooled
from fedrbn.types import Tensors


def sent(client: str, weight: float, **values: float | list[float]) -> Contribution:
    return Contribution(client, start(**values), weight)


def start(**values: float | list[float]) -> Tensors:
    return {name: torch.tensor(v if isinstance(v, list) else [v]) for name, v in values.items()}


def points(*values: float) -> list[Contribution]:
    return [sent(f"c{i}", 1, w=value) for i, value in enumerate(values)]


def column(*values: float) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float64)[:, None]


RULES: dict[str, Aggregate] = {
    "median": CoordinateMedian(),
    "trimmed": TrimmedMean(),
    "krum": Krum(),
    "multi-krum": Krum(keep=None),
    "geometric": GeometricMedian(),
    "norm": NormBound(),
}


@pytest.mark.parametrize(
    ("values", "weights", "expected"),
    [
        ((3.0, 1.0, 9.0), (1.0, 1.0, 1.0), 3.0),
        ((3.0, 1.0, 9.0, 5.0), (1.0, 1.0, 1.0, 1.0), 4.0),  # the middle of 3 and 5
        ((3.0, 1.0, 9.0), (1.0, 1.0, 3.0), 9.0),  # 9 has 3 of 5
        ((3.0, 1.0, 9.0), (1.0, 1.0, 2.0), 6.0),  # exactly half of the weight on either side: between 3 and 9
        ((7.0,), (0.1,), 7.0),
        ((1.0, 2.0, 3.0), (0.1, 0.2, 0.3), 2.5),  # 0.1 + 0.2 is half of 0.6 on paper, and a little more in floats
    ],
)
def test_weighted_median(values: tuple[float, ...], weights: tuple[float, ...], expected: float) -> None:
    assert weighted_median(column(*values), torch.tensor(weights, dtype=torch.float64)).item() == expected


def test_trimmed_means() -> None:
    rows, weights = column(100.0, 1.0, 2.0, 4.0, -50.0), torch.tensor([9.0, 1.0, 1.0, 2.0, 9.0], dtype=torch.float64)
    assert trimmed_mean(rows, weights, 1).item() == (1 + 2 + 2 * 4) / 4
    # A quarter of the weight 4 off either end of 0, 1, 2, 3 (weight 1 each) leaves 1 and 2.
    assert share_trimmed_mean(column(3.0, 0.0, 1.0, 2.0), torch.ones(4, dtype=torch.float64), 0.25).item() == 1.5
    # Weights ½, ¼, ¼ of 0, 4, 8: off go half of the first (¼) and the whole of the last; (¼ · 0 + ¼ · 4) / ½ = 2.
    quarter = share_trimmed_mean(column(0.0, 4.0, 8.0), torch.tensor([0.5, 0.25, 0.25], dtype=torch.float64), 0.25)
    assert quarter.item() == 2.0


def test_plain_median_goes_column_by_column() -> None:
    assert plain_median(torch.tensor([[1.0, 9.0], [2.0, 7.0], [3.0, 8.0]])).tolist() == [2.0, 8.0]


def test_coordinate_median() -> None:
    uploads = [sent("a", 1, w=[1.0, 30.0]), sent("b", 1, w=[2.0, 10.0]), sent("c", 1, w=[100.0, 20.0])]
    assert CoordinateMedian()(start(w=[0.0, 0.0]), uploads)["w"].tolist() == [2.0, 20.0]


def test_a_claim_of_many_samples_counts_for_two_median_ones() -> None:
    """Weights 1, 1, 1, 1e9 count as 1, 1, 1, 2: of 5 the first three values have 3, so the median is the third."""
    assert bounded([1.0, 1.0, 1.0, 1e9]) == [1.0, 1.0, 1.0, 2.0]
    uploads = [*points(1.0, 2.0, 3.0), sent("liar", 1e9, w=1000.0)]
    assert CoordinateMedian()(start(w=0.0), uploads)["w"].item() == 3.0


def test_trimmed_mean_drops_f_at_either_end() -> None:
    # f = 1 of 5: 0 and 1000 go; (1 + 2 + 6) / 3 = 3
    assert TrimmedMean(1)(start(w=0.0), points(1000.0, 1.0, 6.0, 0.0, 2.0))["w"].item() == 3.0


def test_krum_scores() -> None:
    """Points 0, 1, 3, 4, 20 with f = 1: each score is the sum of the n − f − 2 = 2 least squared distances.

    0: 1² + 3² = 10;  1: 1² + 2² = 5;  3: 1² + 2² = 5;  4: 1² + 3² = 10;  20: 16² + 17² = 545.
    """
    values = torch.tensor([0.0, 1.0, 3.0, 4.0, 20.0], dtype=torch.float64)
    found = krum_scores((values[:, None] - values[None]).square(), f=1)
    assert found.tolist() == [10.0, 5.0, 5.0, 10.0, 545.0]


def test_krum_takes_the_best_and_of_equals_the_first() -> None:
    assert Krum(1)(start(w=0.0), points(0.0, 1.0, 3.0, 4.0, 20.0))["w"].item() == 1.0


def test_multi_krum_averages_the_best_by_weight() -> None:
    uploads = points(0.0, 1.0, 3.0, 4.0, 20.0)
    assert Krum(1, keep=2)(start(w=0.0), uploads)["w"].item() == 2.0  # 1 and 3
    assert Krum(1, keep=None)(start(w=0.0), uploads)["w"].item() == 2.0  # all but f: 0, 1, 3, 4
    uploads[2] = sent("c2", 2, w=3.0)
    # 1 with weight 1 and 3 with weight 2: 7/3
    assert Krum(1, keep=2)(start(w=0.0), uploads)["w"].item() == pytest.approx(7 / 3)


def test_geometric_median_of_points_on_a_line_is_their_median() -> None:
    """Of an odd number of points on a line the sum of distances is least at the middle one, however far the last is."""
    found = GeometricMedian()(start(w=0.0), points(1.0, 2.0, 3.0, 10.0, 1e6))["w"].item()
    assert found == pytest.approx(3.0, abs=1e-4)


def test_geometric_median_of_a_triangle() -> None:
    """Equilateral: the centroid. Two clients weigh nothing special; (0, 0), (2, 0), (1, √3) → (1, √3/3)."""
    corners = [[0.0, 0.0], [2.0, 0.0], [1.0, math.sqrt(3)]]
    found = GeometricMedian()(start(w=[0.0, 0.0]), [sent(str(i), 1, w=c) for i, c in enumerate(corners)])["w"]
    assert found.tolist() == pytest.approx([1.0, math.sqrt(3) / 3], abs=1e-6)


def test_geometric_median_follows_more_than_half_of_the_weight() -> None:
    """0 with weight 3 against 8 and 9 with 1 each: no step away from 0 pays."""
    uploads = [sent("a", 2, w=0.0), sent("b", 1, w=8.0), sent("c", 1, w=9.0), sent("d", 2, w=0.0)]
    assert GeometricMedian()(start(w=5.0), uploads)["w"].item() == pytest.approx(0.0, abs=1e-5)


def test_norm_bound() -> None:
    """From (1, 1): (4, 5) is 5 away and is cut to length 1, (1.6, 1.8); (1, 0) is 1 away and stays."""
    uploads = [sent("a", 1, w=[4.0, 5.0]), sent("b", 1, w=[1.0, 0.0])]
    found = NormBound(1.0)(start(w=[1.0, 1.0]), uploads)["w"]
    assert found.tolist() == pytest.approx([1.3, 0.9])


def test_norm_bound_without_a_number_takes_the_median_length() -> None:
    # lengths 1, 2, 9 from 0: bound 2; (1 + 2 + 2) / 3
    assert NormBound()(start(w=0.0), points(1.0, 2.0, 9.0))["w"].item() == pytest.approx(5 / 3)
    assert NormBound()(start(w=4.0), [])["w"].item() == 4.0


@pytest.mark.parametrize("name", RULES)
@pytest.mark.parametrize("far", [1e3, -1e8])
def test_with_f_malicious_clients_the_result_stays_among_the_honest(name: str, far: float) -> None:
    """10 clients, 2 of them far away: every coordinate stays in the honest range, and the mean does not.

    Norm bounding promises less: a malicious client counts, with the length of an honest update.
    """
    random = torch.Generator().manual_seed(3)
    honest = torch.randn(8, 50, generator=random)
    uploads = [sent(f"c{i}", 1, w=row.tolist()) for i, row in enumerate(honest)]
    uploads += [sent(f"m{i}", 1, w=[far * (i + 1)] * 50) for i in range(2)]
    before = start(w=[0.0] * 50)
    found = RULES[name](before, uploads)["w"]
    lowest, highest = honest.amin(0), honest.amax(0)
    if name == "norm":
        assert found.norm() <= honest.norm(dim=1).max()
    else:
        assert ((lowest - 1e-3 <= found) & (found <= highest + 1e-3)).all()
    assert not ((lowest <= mean(before, uploads)["w"]) & (mean(before, uploads)["w"] <= highest)).any()


@pytest.mark.parametrize("name", RULES)
def test_equal_uploads_give_what_was_sent_and_nothing_sent_keeps_the_value(name: str) -> None:
    uploads = [sent(f"c{i}", i + 1, w=[1.5, -2.0]) for i in range(5)]
    found = RULES[name](start(w=[0.0, 0.0], v=7.0), uploads)
    assert found["w"].tolist() == pytest.approx([1.5, -2.0], abs=1e-6)
    assert found["v"].item() == 7.0
    assert RULES[name](start(w=3.0), [])["w"].item() == 3.0


@pytest.mark.parametrize("name", RULES)
def test_names_that_only_some_send_are_aggregated_among_those(name: str) -> None:
    """As with ST users, who do not send the noised branch: five of seven send v, all of them the same."""
    uploads = [sent(f"a{i}", 1, w=2.0, v=9.0) for i in range(5)] + [sent(f"s{i}", 1, w=2.0) for i in range(2)]
    found = RULES[name](start(w=2.0, v=9.0), uploads)
    assert found["v"].item() == pytest.approx(9.0, abs=1e-6)
    assert found["w"].item() == pytest.approx(2.0, abs=1e-6)


def test_krum_chooses_for_each_group_of_names_by_itself() -> None:
    """Clients 0 to 4 send both. Of w, 1 is best (as above); of v, 7 is: the others are 10 away or more."""
    uploads = [
        sent(f"c{i}", 1, w=w, v=v)
        for i, (w, v) in enumerate(zip([0.0, 1.0, 3.0, 4.0, 20.0], [99.0, 7.0, 7.5, 8.0, 60.0], strict=True))
    ]
    together = Krum(1)(start(w=0.0, v=0.0), uploads)
    assert (together["w"].item(), together["v"].item()) == (3.0, 7.5), "one group: one client is chosen for both"
    apart = Krum(1)(start(w=0.0, v=0.0), [*uploads, sent("s", 1, w=1.5)])
    # w is now of six clients: scores of the 3 nearest; 1 → ½² + 1² + 2² = 5.25, 1.5 → ½² + 1.5² + 1.5² = 4.75 is best
    assert (apart["w"].item(), apart["v"].item()) == (1.5, 7.5)


@pytest.mark.parametrize(
    ("rule", "clients", "needed"),
    [(Krum(1), 4, 5), (Krum(0.2), 3, 5), (TrimmedMean(2), 4, 5), (TrimmedMean(0.5), 4, 5)],
)
def test_too_few_clients_are_refused(rule: Krum | TrimmedMean, clients: int, needed: int) -> None:
    with pytest.raises(ConfigError, match=rf"got {clients} clients .* expected at least {needed}\. Sample more"):
        rule(start(w=0.0), points(*map(float, range(clients))))


def test_keeping_more_than_all_but_f_is_refused() -> None:
    with pytest.raises(ConfigError, match="expected at most 4"):
        Krum(1, keep=5)(start(w=0.0), points(*map(float, range(5))))


@pytest.mark.parametrize(
    "make",
    [lambda: Krum(-1), lambda: Krum(1.5), lambda: TrimmedMean(2.5), lambda: Krum(keep=0), lambda: NormBound(0.0)],
)
def test_settings_without_a_meaning_are_refused(make: Callable[[], Aggregate]) -> None:
    with pytest.raises(ConfigError, match="got train"):
        make()


@pytest.mark.parametrize(("malicious", "clients", "f"), [(0.2, 25, 5), (0.2, 26, 6), (3.0, 10, 3), (0.0, 9, 0)])
def test_a_share_is_rounded_up(malicious: float, clients: int, f: int) -> None:
    assert count(malicious, clients) == f


def test_uploads_that_are_not_finite_do_not_count() -> None:
    uploads = [*points(1.0, 2.0, 3.0), sent("nan", 1, w=math.nan), sent("inf", 1, w=math.inf)]
    assert CoordinateMedian()(start(w=0.0), uploads)["w"].item() == 2.0


def test_the_spool_drops_each_upload_and_reads_them_back_in_chunks() -> None:
    """Six numbers of 3 clients in chunks of 6: two columns at a time."""
    alive: list[int] = []

    class Counted(dict):  # type: ignore[type-arg]
        def __del__(self) -> None:
            alive.pop()

    def stream() -> Iterator[Contribution]:
        for i in range(3):
            assert len(alive) <= 1
            alive.append(i)
            yield Contribution(f"c{i}", Counted(w=torch.arange(6.0).reshape(2, 3) + 10 * i), 1.0)

    with spooled(stream(), chunk=6) as spool:
        parts = list(spool.parts("w"))
        folder = spool.folder
    assert [(where.start, where.stop) for where, _ in parts] == [(0, 2), (2, 4), (4, 6)]
    assert parts[1][1].tolist() == [[2.0, 3.0], [12.0, 13.0], [22.0, 23.0]]
    assert not folder.exists()


@pytest.mark.parametrize("name", ["median", "trimmed", "krum", "geometric"])
def test_chunks_do_not_change_the_result(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    random = torch.Generator().manual_seed(5)
    uploads = [Contribution(f"c{i}", {"w": torch.randn(7, 3, generator=random)}, 1.0 + i % 2) for i in range(10)]
    before = {"w": torch.zeros(7, 3)}
    whole = RULES[name](before, uploads)["w"]
    monkeypatch.setattr("fedrbn.federated.aggregation.robust.spooled", lambda sent: spooled(sent, chunk=12))
    torch.testing.assert_close(RULES[name](before, uploads)["w"], whole, rtol=0, atol=1e-7)


def test_a_full_folder_for_temporary_files_is_explained(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No file may grow beyond 100 bytes, as on a full disk; and a folder that is not there."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    sent = [Contribution(f"c{n}", {"w": torch.ones(1000)}, 1.0) for n in range(3)]
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100, hard))
    try:
        with (
            pytest.raises(StorageError, match=r"got uploads that cannot be written .*expected enough space.*TMPDIR"),
            spooled(sent),
        ):
            pytest.fail("it was written")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert list(tmp_path.iterdir()) == []
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "missing"))
    with pytest.raises(StorageError, match="TMPDIR"), spooled(sent):
        pytest.fail("it was written")
