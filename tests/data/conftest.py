from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch

from fedrbn.data.samples import DataSet, Domain, Samples
from fedrbn.data.sets.digits_mini import digits_mini


@pytest.fixture(scope="session", autouse=True)
def cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A cache of the tests' own: what the user has cached is neither used nor touched."""
    folder = tmp_path_factory.mktemp("cache")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("FEDRBN_CACHE", str(folder))
        yield folder


@pytest.fixture(scope="session")
def mini(cache: Path) -> DataSet:
    return digits_mini()


def samples(count: int, classes: int = 10, offset: int = 0) -> Samples:
    """Images that name themselves: every pixel pair of image i spells out offset + i."""
    numbers = torch.arange(offset, offset + count)
    images = torch.stack([numbers // 256, numbers % 256], dim=1).to(torch.uint8)
    return Samples(images[:, :, None, None].repeat(1, 1, 2, 2), torch.arange(count) % classes)


@pytest.fixture(scope="session")
def numbered() -> Callable[..., DataSet]:
    """A data set of self-naming images, from the sizes of its domains' training parts."""

    def make(*sizes: int, test: int = 40, classes: int = 10) -> DataSet:
        domains = [
            Domain(f"d{i}", samples(size, classes), samples(test, classes, offset=30_000), f"Domain {i}")
            for i, size in enumerate(sizes)
        ]
        return DataSet("numbered", tuple(domains), tuple(str(c) for c in range(classes)))

    return make
