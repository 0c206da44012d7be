"""A node's jobs are forks of a process that has imported what they need, and share nothing else."""

from __future__ import annotations

import json
import multiprocessing.connection
import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest
from flwr.supercore.constant import TaskType
from flwr.supercore.superexec.executor import ExecutionSpec, LaunchResultStatus

from fedrbn.deploy.supernode import ForkedJobs, starter_command

RAN: list[str] = []
"""What a job of this process has done."""


def spec(token: str, task_type: TaskType = TaskType.CLIENT_APP) -> ExecutionSpec:
    return ExecutionSpec(
        task_type=task_type,
        runtime_api_address="127.0.0.1:1",
        token=token,
        insecure=True,
        root_certificates_path=None,
        runtime_dependency_install=False,
        parent_pid=os.getpid(),
        suppress_output=False,
        task_id=1,
    )


def note(given: ExecutionSpec) -> None:
    """A job that writes what it finds to the file that its token names."""
    found = {
        "pid": os.getpid(),
        "preloaded": "torch" in sys.modules and "fedrbn.flower.client_app" in sys.modules,
        "before": list(RAN),
        "command": Path("/proc/self/cmdline").read_text(encoding="utf-8"),
    }
    RAN.append(given.token)
    Path(given.token).write_text(json.dumps(found), encoding="utf-8")


@pytest.mark.slow
def test_every_job_is_a_new_process_with_all_imports_and_nothing_of_earlier_jobs(tmp_path: Path) -> None:
    jobs = ForkedJobs(note)
    files = [tmp_path / f"{i}.json" for i in range(2)]
    for file in files:
        assert jobs.launch(spec(str(file))).status is LaunchResultStatus.ACCEPTED
        jobs.running[-1].join(300)
    jobs.reconcile()
    assert jobs.running == []
    first, second = (json.loads(file.read_text(encoding="utf-8")) for file in files)
    assert len({first["pid"], second["pid"], os.getpid()}) == 3
    assert first["preloaded"]
    assert second["preloaded"]
    assert second["before"] == []  # the first job's list died with its process
    assert str(files[0]) not in first["command"]  # a token is not on a command line


def test_a_node_takes_client_apps_only() -> None:
    jobs = ForkedJobs(note)
    assert jobs.get_eligible_capacity(set(TaskType)) == ({TaskType.CLIENT_APP}, set())
    refused = jobs.launch(spec("token", TaskType.SERVER_APP))
    assert refused.status is LaunchResultStatus.FAILED
    assert jobs.running == []


def test_the_starter_gets_what_a_supernode_gives_to_flower_superexec() -> None:
    """As `start_client_internal` of Flower 1.41 calls it: TLS of the Runtime API, its address, who must be alive."""
    command = starter_command("127.0.0.1", 9094, None, 17, install_dependencies=False)
    assert command[0] == sys.executable
    assert command[4:] == ["--insecure", "--runtime-api-address", "127.0.0.1:9094", "--parent-pid", "17"]
    secure = starter_command("127.0.0.1", 9094, "ca.crt", 17, install_dependencies=True)
    assert secure[4:6] == ["--root-certificates", "ca.crt"]
    assert secure[-1] == "--allow-runtime-dependency-installation"


def test_other_users_do_not_reach_the_forking_process() -> None:
    """Whoever connects to it chooses what it runs, so its socket is a file that only this user gets to."""
    address = Path(multiprocessing.connection.arbitrary_address("AF_UNIX"))
    assert address.is_absolute()  # an abstract socket, which everybody may connect to, begins with a zero byte
    assert stat.S_IMODE(address.parent.stat().st_mode) == 0o700


CLIENT = "import sys, fedrbn.flower.client_app; print('\\n'.join(sys.modules))"
NEEDLESS = {"PIL", "h5py", "jinja2", "matplotlib", "onnx", "opacus", "pandas", "ray", "scipy", "sklearn", "tensorboard"}
"""Installed with fedrbn or its extras, and of no use to a client that trains."""
ELSEWHERE = {"cli", "deploy", "figures", "models", "report", "reproduce"}
"""Folders of this package that a client does not run."""


def test_a_client_imports_only_what_it_needs() -> None:
    told = subprocess.run([sys.executable, "-c", CLIENT], capture_output=True, text=True, check=True).stdout.split()
    packages = {name.partition(".")[0] for name in told}
    assert "torch" in packages
    assert packages & NEEDLESS == set()
    assert {name.split(".")[1] for name in told if name.startswith("fedrbn.")} & ELSEWHERE == set()
