"""The default folders of runs: in a store, with names made of method, λ, seed and key."""

from __future__ import annotations

from pathlib import Path

from fedrbn.config import Experiment
from fedrbn.errors import StorageError
from fedrbn.federated.options import resolved
from fedrbn.runs.directory import RunDirectory


def run_folder(store: Path, experiment: Experiment, prefix: str = "") -> Path:
    """The folder of an experiment's run, whether it exists or not.

    A run under the shorter name of earlier versions is found too. A folder with the right name that holds another
    experiment is refused, because its results belong to other settings.
    """
    names = (experiment.run_name(), experiment.former_run_name())
    paths = [store / f"{prefix}{name}" for name in names]
    found = next((path for path in paths if (path / "config.toml").exists()), None)
    if found is None:
        return paths[0]
    there = RunDirectory.open(found).experiment()
    if there.key() != resolved(experiment).key():
        changed = ", ".join(name for name, _, _ in there.differences(experiment))
        raise StorageError(
            f"got {found}, which holds another experiment (key {there.key()}; it differs in {changed}); "
            f"expected {experiment.key()}. It may have been continued with more rounds: rename that folder."
        )
    return found
