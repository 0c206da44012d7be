from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from fuzz.subjects import warm_up


@pytest.fixture(scope="session", autouse=True)
def ready(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A cache of the tests' own, and the run that is damaged."""
    folder = tmp_path_factory.mktemp("cache")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("FEDRBN_CACHE", str(folder))
        warm_up()
        yield folder
