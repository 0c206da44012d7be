"""What the machine offers, and clear words where it does not have what was asked for."""

from __future__ import annotations

import subprocess
import sys

import pytest
import torch

from fedrbn import hardware
from fedrbn.config import Experiment
from fedrbn.federated.assemble import assemble
from fedrbn.federated.server import federate, initial_state
from fedrbn.hardware import bfloat16_gain, one_thread, pick_device, pick_precision

CPU = torch.device("cpu")
WORKS = bfloat16_gain() > 0
TINY = {
    "federation": {"users_per_domain": 1, "fraction": 0.02, "at": 1.0},
    "data": {"domains": ("plain",)},
    "model": {"width": 0.05},
    "train": {"rounds": 1},
}


def test_float32_is_no_special_precision() -> None:
    assert pick_precision(None, CPU) is None


@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has an accelerator, and may have bfloat16")
def test_bfloat16_is_refused_where_the_device_has_no_instructions_for_it() -> None:
    with pytest.raises(ValueError, match=r"'bfloat16' on a cuda without .*Use run\.precision = 'auto'"):
        pick_precision("bfloat16", torch.device("cuda"))


@pytest.mark.parametrize(("gain", "taken"), [(0.0, None), (0.8, None), (1.19, None), (1.2, torch.bfloat16)])
def test_auto_takes_bfloat16_only_where_it_is_clearly_faster(
    gain: float, taken: torch.dtype | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hardware, "bfloat16_gain", lambda: gain)
    assert pick_precision("auto", CPU) is taken


def test_bfloat16_is_refused_on_a_processor_that_cannot_compute_in_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hardware, "bfloat16_gain", lambda: 0.0)
    with pytest.raises(ValueError, match=r"run\.precision = 'bfloat16' on a cpu without"):
        pick_precision("bfloat16", CPU)


def test_a_processor_that_is_slower_in_bfloat16_still_computes_in_it_if_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hardware, "bfloat16_gain", lambda: 0.7)
    assert pick_precision("bfloat16", CPU) is torch.bfloat16


@pytest.mark.parametrize("trial", ["import os, signal; os.kill(os.getpid(), signal.SIGILL)", "print('no number')"])
def test_instructions_that_end_the_process_are_tried_in_another_one(
    trial: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Some virtual machines announce AMX and refuse it."""
    monkeypatch.setattr(hardware, "_TRIAL", trial)
    monkeypatch.setattr(torch.cpu, "_is_amx_tile_supported", lambda: True)
    assert bfloat16_gain.__wrapped__() == 0


def test_one_thread_within_the_block_and_the_setting_is_put_back() -> None:
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        with one_thread():
            assert torch.get_num_threads() == 1
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)


KEEPING = """
import resource, torch
from fedrbn.hardware import kept_memory

def faults():
    "Pages that the system has to hand out for five large tensors, taken and given back one after the other."
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(5):
        torch.ones(8 << 20)
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

usual = faults()
with kept_memory():
    for _ in range(4):  # until the heap has grown to what is needed
        faults()
    kept = faults()
print(usual, kept, faults())
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="other systems' allocators are left as they are")
def test_freed_memory_is_kept_within_the_block_and_given_back_after_it() -> None:
    """In a process of its own, whose heap nobody else has cut up."""
    done = subprocess.run([sys.executable, "-c", KEEPING], capture_output=True, text=True, check=True, timeout=120)
    usual, kept, after = map(int, done.stdout.split())
    assert kept <= usual / 5
    assert after > usual / 5


@pytest.mark.parametrize("device", ["cuda", "mps"])
def test_a_device_that_is_not_there_is_refused(device: str) -> None:
    there = torch.cuda.is_available() if device == "cuda" else torch.backends.mps.is_available()
    if there:
        pytest.skip(f"this machine has {device}")
    with pytest.raises(ValueError, match=f"run.device = '{device}'.*Use run.device = 'cpu' or 'auto'"):
        pick_device(device)  # type: ignore[arg-type]


@pytest.mark.skipif(not WORKS, reason="this processor has no bfloat16 instructions that work")
def test_a_run_in_bfloat16_trains_float32_weights_to_about_the_same_place() -> None:
    """One AT client's first update, in both precisions: near each other, not equal, and float32 for the server."""
    found = []
    for precision in (None, "bfloat16"):
        experiment = Experiment.model_validate(TINY | {"run": {"workers": 1, "precision": precision}})
        made = assemble(experiment)
        with made.executor() as execute:
            ((state, _),) = federate(initial_state(made.net, made.plan), made.plan, execute)
        found.append(state.shared)
    exact, rough = found
    assert all(tensor.dtype == torch.float32 for tensor in rough.values())
    assert any(not torch.equal(exact[name], rough[name]) for name in exact)
    for name in exact:
        torch.testing.assert_close(exact[name], rough[name], rtol=0.1, atol=0.02)
