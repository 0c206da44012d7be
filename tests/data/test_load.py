from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import torch

from fedrbn.data import AVAILABLE, load
from fedrbn.data.samples import DataSet, Federation


@pytest.fixture
def own_module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """An importable module `my_pictures` with a data set, a function that makes one, and something else."""
    (tmp_path / "my_pictures.py").write_text(
        "import torch\n"
        "from fedrbn.data.samples import Client, DataSet, Domain, Federation, Samples\n"
        "from fedrbn.types import Role\n"
        "def make(image_size):\n"
        "    side = image_size or 6\n"
        "    part = Samples(torch.zeros(2, 3, side, side, dtype=torch.uint8), torch.tensor([0, 1]))\n"
        "    return DataSet('mine', (Domain('one', part, part, 'one'),), ('a', 'b'))\n"
        "fixed = make(None)\n"
        "def fleet(image_size):\n"
        "    part = make(image_size).domains[0].train\n"
        "    client = Client('a', 'one', Role.ST, part, part, part)\n"
        "    return Federation((client,), ('one',), {'one': 'One'}, ('a', 'b'), True)\n"
        "ready = fleet(None)\n"
        "other = 3\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "my_pictures", raising=False)
    return "my_pictures"


def test_descriptions_tell_the_truth(mini: DataSet) -> None:
    described = AVAILABLE["digits-mini"]
    assert tuple(domain.name for domain in mini.domains) == described.domains
    assert tuple(len(domain.train) for domain in mini.domains) == described.train
    assert tuple(len(domain.test) for domain in mini.domains) == described.test
    assert mini.domains[0].train.images.shape[2] == described.image_size
    assert not described.needs_files
    assert AVAILABLE["digits"].needs_files


def test_by_name(mini: DataSet) -> None:
    loaded = load("digits-mini")
    assert isinstance(loaded, DataSet)
    assert torch.equal(loaded.domains[4].test.images, mini.domains[4].test.images)


def test_own_data_set_and_own_function(own_module: str) -> None:
    fixed = load(f"{own_module}:fixed")
    assert isinstance(fixed, DataSet)
    assert fixed.name == "mine"
    assert load(f"{own_module}:make").image_shape == (3, 6, 6)
    assert load(f"{own_module}:make", 9).image_shape == (3, 9, 9)


def test_own_federation(own_module: str) -> None:
    ready = load(f"{own_module}:ready")
    assert isinstance(ready, Federation)
    assert [client.id for client in ready.clients] == ["a"]
    assert load(f"{own_module}:fleet", 9).image_shape == (3, 9, 9)
    with pytest.raises(ValueError, match=r"got images of 6 x 6 .*expected data.image_size = 9"):
        load(f"{own_module}:ready", 9)


def test_own_things_are_checked(own_module: str) -> None:
    with pytest.raises(ValueError, match=r"got data 'my_pictures:other', which is int; expected .*DataSet"):
        load(f"{own_module}:other")
    with pytest.raises(ValueError, match=r"got images of 6 x 6 .*expected data.image_size = 9"):
        load(f"{own_module}:fixed", 9)


def test_unknown_names_suggest_the_nearest() -> None:
    with pytest.raises(ValueError, match=r"got data 'digit-mini'.*Did you mean 'digits-mini'"):
        load("digit-mini")


def test_a_path_that_is_not_there() -> None:
    with pytest.raises(ValueError, match=r"got data './no/such', which is not a folder"):
        load("./no/such")


def test_listing_data_does_not_load_torch() -> None:
    code = "import sys, fedrbn.data; sys.exit('torch' in sys.modules or 'numpy' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
