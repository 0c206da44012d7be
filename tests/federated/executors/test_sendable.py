"""Code that worker processes cannot import runs in this process, with a hint; errors say what is wrong, not pickle."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
from torch import nn

import fedrbn
from fedrbn.attacks import PGD
from fedrbn.config import Experiment
from fedrbn.errors import ConfigError, FederationError
from fedrbn.federated.assemble import assemble
from fedrbn.federated.executors import processes
from fedrbn.federated.executors.sendable import unsendable
from fedrbn.federated.methods import METHODS
from fedrbn.nets.digits import digits_cnn

NOTEBOOK = """
import fedrbn
from torch import nn

class Net(nn.Sequential):
    def __init__(self, num_classes):
        conv, norm = nn.Conv2d(3, 4, 5, stride=4), nn.BatchNorm2d(4)
        super().__init__(conv, norm, nn.ReLU(), nn.Flatten(), nn.Linear(144, num_classes))

settings = {
    "federation": {"users_per_domain": 2, "at": 0.5, "fraction": 0.03, "test_samples": 2},
    "train": {"rounds": 1}, "attack": {"steps": 1}, "run": {"workers": 2},
}
for number, network in enumerate((Net, Net(10))):  # a class and an instance
    fedrbn.run(fedrbn.make(settings), f"run{number}", network=network)
print("trained")
"""


def local_network(num_classes: int) -> nn.Module:
    class Local(nn.Sequential):
        pass

    return Local(nn.Conv2d(3, 4, 5, stride=4), nn.BatchNorm2d(4), nn.Flatten(), nn.Linear(144, num_classes))


def test_what_has_a_name_in_a_module_can_be_sent() -> None:
    assert unsendable(digits_cnn(10, width=1 / 16), METHODS["fedrbn"](PGD()), Path) is None
    assert unsendable(local_network(2)) == "local_network.<locals>.Local, which is defined inside a function"
    assert unsendable((Path, {"a": partial(lambda: 1)})) is not None


def test_what_a_notebook_defines_cannot(monkeypatch: pytest.MonkeyPatch) -> None:
    class Net(nn.Module):
        pass

    Net.__module__, Net.__qualname__ = "__main__", "Net"
    main = sys.modules["__main__"]
    monkeypatch.setattr(main, "Net", Net, raising=False)
    monkeypatch.setattr(main, "__file__", __file__, raising=False)
    assert unsendable(Net()) is None  # a script is imported again by its workers
    monkeypatch.delattr(main, "__file__")
    assert unsendable(Net()) == "Net, which is defined in a notebook or at a prompt"


def test_a_local_network_trains_in_this_process_with_a_hint(tiny: Callable[..., Experiment]) -> None:
    wanted = tiny(run={"workers": 2})
    assembly = assemble(wanted, local_network)
    assert assembly.workers == 1
    assert assembly.hints[0].startswith(
        "clients run in this process, because of local_network.<locals>.Local, which is"
    )
    assert "move the code to a module and import it" in assembly.hints[0]
    assert assemble(wanted).workers == 2
    assert assemble(wanted).hints == ()
    with pytest.raises(ConfigError, match=r"got faults.deadline_seconds = 5 with local_network"):
        assemble(tiny(faults={"deadline_seconds": 5}), local_network)


def test_the_hint_reaches_who_does_not_watch(tiny: Callable[..., Experiment], tmp_path: Path) -> None:
    with pytest.warns(UserWarning, match="clients run in this process"):
        fedrbn.run(tiny(run={"workers": 2}, train={"rounds": 1}), tmp_path / "run", network=local_network)


def test_the_hint_is_not_given_twice(
    tiny: Callable[..., Experiment],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    recwarn: pytest.WarningsRecorder,
) -> None:
    wanted = tiny(run={"workers": 2}, train={"rounds": 1})
    fedrbn.run(wanted, tmp_path / "run", network=local_network, progress=True)
    assert "clients run in this process" in " ".join(capsys.readouterr().err.split())
    assert not [each for each in recwarn if "clients run in this process" in str(each.message)]


def test_what_slips_through_is_explained() -> None:
    worker = processes._Worker(lambda: 1)  # type: ignore[arg-type]
    with pytest.raises(FederationError, match=r"got code that cannot be sent to a worker process .*run.workers = 1"):
        worker.start()


@pytest.mark.slow
def test_a_notebook_trains(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-"], input=NOTEBOOK, cwd=tmp_path, capture_output=True, text=True, check=True, timeout=500
    )
    assert done.stdout == "trained\n"
    assert (
        done.stderr.count("UserWarning: clients run in this process, because of Net, which is defined in a notebook")
        == 2
    )
