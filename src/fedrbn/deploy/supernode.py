"""Flower's SuperNode with jobs that start in a fraction of a second, because they do not import PyTorch again.

Flower starts a new interpreter for every message, which first imports PyTorch, Flower and this package: with small
workloads that is most of the time of a deployed round. Here one process of the node imports them, does nothing else,
and is forked for each job (Python's `forkserver`). Each job still has its own process, which starts in the same state
as every other, gets the same task token and ends with the job. The token is passed through a pipe between the node's
own processes, not on a command line that every user of the machine can read.

    python -P -m fedrbn.deploy.supernode <the options of flower-supernode>
"""

from __future__ import annotations

import multiprocessing
import os
import subprocess
import sys
from collections.abc import Callable
from multiprocessing.context import ForkServerProcess

from flwr.common.constant import ISOLATION_MODE_PROCESS
from flwr.supercore.address import resolve_bind_address
from flwr.supercore.cli.flower_superexec import flower_superexec
from flwr.supercore.constant import TaskType
from flwr.supercore.exit import ExitCode, flwr_exit
from flwr.supercore.superexec import run_superexec as superexec
from flwr.supercore.superexec.executor import ExecutionSpec, LaunchResult
from flwr.supercore.tls import get_client_tls_args
from flwr.supernode.cli.flower_supernode import _parse_supernode_lifespan_config, flower_supernode

PRELOADED = ("fedrbn.deploy.supernode", "flwr.supernode.runtime.run_clientapp", "fedrbn.flower.client_app")
"""Modules that are already imported when a job starts."""
_STARTER = "from fedrbn.deploy.supernode import start_jobs; start_jobs()"


def run_job(spec: ExecutionSpec) -> None:
    """What a job's process does: the same as the command flwr-clientapp after its imports."""
    from flwr.supercore.tls import validate_and_resolve_root_certificates  # noqa: PLC0415
    from flwr.supernode.runtime.run_clientapp import run_clientapp  # noqa: PLC0415  (imported in the job's own process)

    run_clientapp(
        runtime_api_address=spec.runtime_api_address,
        token=spec.token,
        insecure=spec.insecure,
        certificates=validate_and_resolve_root_certificates(spec.root_certificates_path, spec.insecure),
        parent_pid=spec.parent_pid,
        runtime_dependency_install=spec.runtime_dependency_install,
    )


class ForkedJobs:
    """A Flower `Executor`: each ClientApp task runs in a fork of a process that has imported `PRELOADED`."""

    def __init__(self, job: Callable[[ExecutionSpec], None] = run_job) -> None:
        self.job = job
        self.context = multiprocessing.get_context("forkserver")
        self.context.set_forkserver_preload(list(PRELOADED))
        self.running: list[ForkServerProcess] = []

    def get_eligible_capacity(
        self,
        supported_task_types: set[TaskType],
        *,
        insecure: bool = False,  # noqa: ARG002
        root_certificates_path: str | None = None,  # noqa: ARG002
    ) -> tuple[set[TaskType], set[str]]:
        """A node runs only ClientApps."""
        return supported_task_types & {TaskType.CLIENT_APP}, set()

    def wait_for_capacity(self, *_: object, **__: object) -> None:
        """A fork can start immediately."""

    def launch(self, spec: ExecutionSpec) -> LaunchResult:
        """Start a job."""
        if spec.task_type is not TaskType.CLIENT_APP:
            return LaunchResult.failed(f"got a task of type {spec.task_type}; expected a ClientApp at a SuperNode.")
        process = self.context.Process(target=self.job, args=(spec,), name=f"job {spec.task_id}")
        try:
            process.start()
        except OSError as error:  # out of memory or processes
            return LaunchResult.failed(str(error))
        self.running.append(process)
        return LaunchResult.accepted()

    def reconcile(self) -> None:
        """Remove jobs that have ended."""
        self.running = [process for process in self.running if process.is_alive()]

    def close(self) -> None:
        """End the jobs: their results are no longer needed."""
        for process in self.running:
            process.terminate()


def start_jobs() -> None:
    """Flower's SuperExec, which asks the SuperNode for tasks, with forked jobs. Flower has no setting for a custom
    executor, so the name that it looks up is replaced in this process."""
    setattr(superexec, "get_executor", lambda *_, **__: ForkedJobs())  # noqa: B010  (Flower does not export the name)
    flower_superexec()


def starter_command(
    host: str, port: int, root_certificates: str | None, parent: int, install_dependencies: bool
) -> list[str]:
    """The command for the process that starts jobs, with the options that a SuperNode gives to flower-superexec."""
    address = resolve_bind_address(f"[{host}]:{port}" if ":" in host else f"{host}:{port}")
    tls = get_client_tls_args(insecure=root_certificates is None, root_certificates_path=root_certificates)
    more = ["--allow-runtime-dependency-installation"] if install_dependencies else []
    known = ["--runtime-api-address", address, "--parent-pid", str(parent)]
    return [sys.executable, "-P", "-c", _STARTER, *tls, *known, *more]


def main() -> None:
    """Start the process that starts jobs, then the SuperNode, until a signal ends it; both end together."""
    config = _parse_supernode_lifespan_config()
    command = starter_command(
        config.host,
        config.port,
        config.runtime_root_certificates_path,
        os.getpid(),
        config.runtime_dependency_install,
    )
    subprocess.Popen(command)  # noqa: S603  (this interpreter, with our own options)
    sys.argv += ["--isolation", ISOLATION_MODE_PROCESS]  # another process starts the jobs
    flower_supernode()
    # This point is reached when the SuperNode has given up on the SuperLink, for example after a TLS handshake that
    # took too long. Its HTTP server would keep the process alive forever, without a connection.
    flwr_exit(ExitCode.SUPERNODE_CONNECTION_ERROR, "The connection to the SuperLink is lost. Start the node again.")


if __name__ == "__main__":
    main()
