"""What is said before a run starts."""

from __future__ import annotations

import io
from collections.abc import Callable

import pytest
import torch
from rich.console import Console

from fedrbn.config import Experiment
from fedrbn.cost.estimate import Estimate
from fedrbn.data.ready_made import from_partitions
from fedrbn.data.samples import DataSet, Domain, Samples
from fedrbn.errors import HardwareError
from fedrbn.federated import memory_need
from fedrbn.federated.assemble import assemble
from fedrbn.runs import overview as module
from fedrbn.runs.display import Display
from fedrbn.runs.overview import ensure_ready, overview


def data(count: int) -> DataSet:
    def samples(images: int) -> Samples:
        return Samples(torch.zeros(images, 3, 28, 28, dtype=torch.uint8), torch.arange(images) % 2)

    return DataSet("own", (Domain("a", samples(count), samples(9), "a"),), ("x", "y"), remarks=("3 files ignored",))


@pytest.fixture(autouse=True)
def known_times(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "estimate", lambda *_: Estimate(startup=4, training=60, evaluation=30))


def test_network_images_memory_and_time(tiny: Callable[..., Experiment]) -> None:
    wanted = tiny(federation={"fraction": 1.0, "validation": 0.2, "test_samples": None})
    lines = list(overview(assemble(wanted, data=data(100))))
    # Two users: half of the hundred each, of which a fifth is for validation. Nine test images are shared out.
    assert lines[1] == "2 clients (1 AT, 1 ST); images per user: train 40 / validation 10 / test 4-5"
    assert lines[2] == "3 files ignored"
    assert lines[0].startswith("network digits, width 0.0625: ")
    assert lines[0].endswith(" parameters, input 3 x 28 x 28, 2 classes")
    assert "4 rounds to go, 1 worker(s); estimated memory " in lines[3]
    assert lines[3].endswith("estimated time 2 min (start-up 4 s, training 60 s, evaluation 30 s)")
    assert len(lines) == 4


def test_network_and_images_are_shown_before_anything_is_measured(
    tiny: Callable[..., Experiment], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The steps of a large network take a minute, in which the screen should not be empty."""
    monkeypatch.setattr(module, "estimate", lambda *_: pytest.fail("measured"))
    lines = overview(assemble(tiny(federation={"fraction": 1.0}), data=data(100)))
    assert next(lines).startswith("network ")
    assert next(lines).startswith("2 clients ")


def test_memory_is_checked_before_the_first_whole_batch(
    tiny: Callable[..., Experiment], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A whole batch of large images could take all memory before anything is said."""
    assembly = assemble(tiny(federation={"fraction": 1.0}), data=data(100))
    monkeypatch.setattr(memory_need, "available_memory", lambda: 2**20)
    monkeypatch.setattr(module, "check_forward", lambda *_: pytest.fail("a whole batch was tried"))
    with pytest.raises(HardwareError, match=r"expected at most the 1 MiB that are free.*lower data.image_size"):
        ensure_ready(assembly)


def test_few_images_are_warned_of(tiny: Callable[..., Experiment]) -> None:
    wanted = tiny(federation={"fraction": 0.3, "validation": 0.5, "test_samples": None})
    page = io.StringIO()
    Display(Console(file=page, width=400), "mine").training(assemble(wanted, data=data(106)), 0)
    # The defaults of Digits: 0.3 of 106 images for two users, 16 each, half of them for validation.
    assert "mine: warning: 2 of 2 users train on fewer than 32 images (a-0 on 8), which is too few" in page.getvalue()
    assert "32 of 106 training images are used" in page.getvalue()
    assert (
        "lower federation.users_per_domain, lower federation.validation, raise federation.fraction or add images"
        in (page.getvalue())
    )


def test_the_remedy_for_few_images_names_only_what_can_be_changed(tiny: Callable[..., Experiment]) -> None:
    wanted = tiny(
        federation={"users_per_domain": 1, "at": 1.0, "fraction": 1.0, "validation": 0.2, "test_samples": None}
    )
    (warning,) = (line for line in overview(assemble(wanted, data=data(20))) if line.startswith("warning"))
    assert warning.endswith("To change that, lower federation.validation or add images to the smallest domain.")


def test_the_remedy_for_few_images_in_data_that_came_divided(tiny: Callable[..., Experiment]) -> None:
    parts = [[(torch.zeros(3, 28, 28), i % 2) for i in range(20)] for _ in range(3)]
    (warning,) = (
        line for line in overview(assemble(tiny(), data=from_partitions(parts))) if line.startswith("warning")
    )
    assert warning.endswith("Add images, or divide the data among fewer users.")
