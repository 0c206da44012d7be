"""CPU seconds of a forked job before it can start, as in a node of `fedrbn.deploy.supernode`. Run it as `python -c
"import forked; forked.main()"`: each job would import a main module with a file again."""

from __future__ import annotations

import os
import tempfile
import time
from pathlib import Path

from flwr.supercore.constant import TaskType
from flwr.supercore.superexec.executor import ExecutionSpec

from fedrbn.deploy.supernode import ForkedJobs


def note(spec: ExecutionSpec) -> None:
    """A job that writes the CPU seconds of its process so far, with everything imported that a client needs."""
    import flwr.supernode.runtime.run_clientapp  # noqa: F401, PLC0415

    import fedrbn.flower.client_app  # noqa: F401, PLC0415

    Path(spec.token).write_text(str(time.process_time()), encoding="utf-8")


def main() -> None:
    """Print the CPU seconds of the second of two jobs: the first waits for the imports."""
    jobs = ForkedJobs(note)
    with tempfile.TemporaryDirectory(prefix="fedrbn-bench-") as folder:
        for number in (1, 2):
            file = Path(folder) / str(number)
            parent = os.getpid()
            spec = ExecutionSpec(
                TaskType.CLIENT_APP, "127.0.0.1:1", str(file), True, None, False, parent, False, number
            )
            jobs.launch(spec)
            jobs.running[-1].join()
        print(file.read_text(encoding="utf-8"))
