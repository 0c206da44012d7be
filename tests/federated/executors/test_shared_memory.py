"""Messages between processes: nothing is lost on the way, and shared memory is written again only when it is free."""

from __future__ import annotations

import torch
import torch.multiprocessing as mp
from hypothesis import given, settings
from hypothesis import strategies as st

from federated.tiny import clients, plan, site
from fedrbn.attacks import PGD
from fedrbn.federated.executors.processes import processes
from fedrbn.federated.executors.serial import serial
from fedrbn.federated.executors.shared_memory import BorrowedBuffers, Returned, SharedBuffers, packed, unpacked
from fedrbn.federated.methods import fedrbn
from fedrbn.federated.protocol import Train, Upload
from fedrbn.federated.server import initial_state, round_of
from fedrbn.types import Role, Tensors

DTYPES = (torch.float32, torch.float64, torch.bfloat16, torch.int64, torch.bool)


def same(one: Tensors, other: Tensors) -> bool:
    return list(one) == list(other) and all(
        a.dtype == b.dtype and torch.equal(a, b) for a, b in zip(one.values(), other.values(), strict=True)
    )


@given(
    st.lists(
        st.tuples(st.sampled_from(DTYPES), st.lists(st.integers(0, 5), max_size=3)),
        min_size=1,
        max_size=6,
    )
)
@settings(max_examples=50, deadline=None)
def test_a_parcel_holds_tensors_of_any_type_and_shape(drawn: list[tuple[torch.dtype, list[int]]]) -> None:
    random = torch.Generator().manual_seed(1)
    tensors = {f"t{i}": (torch.rand(shape, generator=random) * 100).to(dtype) for i, (dtype, shape) in enumerate(drawn)}
    assert same(BorrowedBuffers().unpacked(SharedBuffers().put(tensors)), tensors)


def test_a_tensor_that_is_not_contiguous_arrives_as_it_was() -> None:
    image = torch.rand(2, 3, 4, 4).contiguous(memory_format=torch.channels_last)
    got = BorrowedBuffers().unpacked(SharedBuffers().put({"w": image}))["w"]
    assert torch.equal(got, image)
    assert got.is_contiguous()


def test_a_block_is_used_again_only_when_no_tensor_in_it_is_alive() -> None:
    buffers, borrowed = SharedBuffers(), BorrowedBuffers()
    first = borrowed.unpacked(buffers.send({"a": torch.ones(100), "b": torch.ones(7)}))
    kept = first.pop("b")[2:5]  # a view of a view is enough
    del first
    assert borrowed.ended() == Returned(())
    second = borrowed.unpacked(buffers.send({"a": torch.zeros(100), "b": torch.zeros(7)}))
    assert kept.tolist() == [1, 1, 1]
    assert len(buffers.blocks) == 2
    del second
    assert borrowed.ended() == Returned((1,))
    assert borrowed.ended() == Returned(())
    buffers.take_back(Returned((1,)))
    third = borrowed.unpacked(buffers.send({"a": torch.full((100,), 3.0)}))
    assert third["a"].eq(3).all()
    assert buffers.sent == {0, 1}
    assert len(buffers.blocks) == 2
    del kept
    assert borrowed.ended() == Returned((0,))


def test_a_parcel_too_large_for_the_free_blocks_gets_a_new_one() -> None:
    buffers = SharedBuffers()
    buffers.put({"a": torch.ones(4)})
    buffers.take_back()
    assert buffers.put({"a": torch.ones(400)}).number == 1
    buffers.take_back()
    assert buffers.put({"a": torch.ones(3)}).number == 0


def test_an_upload_without_shared_weights_needs_no_parcel() -> None:
    upload = Upload("c", 0, {}, {"m": torch.arange(3.0)}, 5, {"loss": 1.0})
    got = unpacked(packed(upload, SharedBuffers()), BorrowedBuffers())
    assert got.shared == {}
    assert same(got.personal, upload.personal)


def _echo(line: mp.connection.Connection) -> None:
    buffers = SharedBuffers()
    while (message := line.recv()) is not None:
        if isinstance(message, Returned):
            buffers.take_back(message)
        else:
            line.send((packed(message, buffers), len(buffers.blocks)))


def test_between_processes_a_receiver_in_step_needs_one_block_and_one_that_keeps_all_keeps_them_whole() -> None:
    line, theirs = mp.get_context("spawn").Pipe()
    process = mp.get_context("spawn").Process(target=_echo, args=(theirs,), daemon=True)
    process.start()
    borrowed, kept, blocks = BorrowedBuffers(), [], 0

    def ask(value: float) -> Upload:
        nonlocal blocks
        line.send(borrowed.ended())
        line.send(Upload("c", 0, {"w": torch.full((1000,), value)}, {}, 5, {}))
        message, blocks = line.recv()
        upload: Upload = unpacked(message, borrowed)
        return upload

    for value in range(5):
        assert ask(value).shared["w"].eq(value).all()
    assert blocks == 1
    kept = [ask(value) for value in range(5)]
    assert blocks == 5
    assert [upload.shared["w"].unique().item() for upload in kept] == [0, 1, 2, 3, 4]
    line.send(None)
    process.join(timeout=10)


def test_uploads_of_workers_that_are_all_kept_are_those_of_the_serial_executor() -> None:
    method = fedrbn(PGD(eps=0.1, steps=2, step_size=0.06))
    who = clients(*[(Role.ST, 8)] * 5, (Role.AT, 8))
    place = site(method, who)
    a_plan = plan(method, place.net, list(who.values()))
    state = initial_state(place.net, a_plan)
    jobs = [Train(c, who[c].role.duty, state.personal[c], calibrate=False) for c in who]
    expected = {upload.client: upload for upload in serial(place)(round_of(state, a_plan), jobs)}
    with processes(place, 1) as execute:
        got = [
            upload for _ in range(2) for upload in execute(round_of(state, a_plan), jobs)
        ]  # the second over the first
    assert len(got) == 2 * len(who)
    for upload in got:
        assert isinstance(upload, Upload)
        other = expected[upload.client]
        assert isinstance(other, Upload)
        assert same(dict(sorted(upload.shared.items())), dict(sorted(other.shared.items())))
