"""How well `fedrbn run` estimates its own time: estimated over measured processor seconds of a small run.

The estimate is what the overview before a run prints. Writes estimates.json.
"""

from __future__ import annotations

import tempfile
import time
from pathlib import Path
from unittest import mock

from measuring import Row, show

import fedrbn
from fedrbn.cost.estimate import estimate
from fedrbn.federated.assemble import assemble

SETTINGS = {
    "data": {"name": "digits-mini"},
    "federation": {"users_per_domain": 2, "at": 0.5, "fraction": 0.2, "test_samples": 40},
    "model": {"width": 1 / 16},
    "train": {"rounds": 6, "validate_every": 2, "lr": 0.05},
    "run": {"workers": 1},
}


def main() -> None:
    """Measure and print."""
    experiment = fedrbn.make(SETTINGS)
    with mock.patch.object(time, "perf_counter", time.process_time), tempfile.TemporaryDirectory() as folder:
        expected = estimate(assemble(experiment)).total
        started = time.process_time()
        fedrbn.run(experiment, Path(folder) / "run")
        measured = time.process_time() - started
    rows = [Row("estimated over measured time of a run, lower bound", expected / measured, "x", 0.4)]
    rows.append(Row("estimated over measured time of a run, upper bound", expected / measured, "x", 2.5, "less"))
    title = "Estimate before a run (CPU time)"
    show(title, rows, Path(__file__).with_suffix(".json"), estimated_seconds=expected, measured_seconds=measured)


if __name__ == "__main__":
    main()
