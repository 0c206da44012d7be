"""Each node of a site as a separate machine: a namespace, a small disk, a clock, and a supervisor like systemd.

The supervisor follows the site's own `fedrbn-supernode.service`, which decides whether a node that ends is restarted.
"""

from __future__ import annotations

import shlex
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from typer.testing import CliRunner

from fedrbn.deploy.site import SCRIPT, Site, write
from soak.network.namespaces import Network
from soak.setting import LostError

MOST_STARTS = 60
_FILLER = ".filler"
_SUPERVISED = """#!/bin/sh
# What systemd does with fedrbn-supernode.service, on a machine that is a network namespace.
cd "$(dirname "$0")"
again=$(sed -n 's/^Restart=//p' fedrbn-supernode.service) pause=$(sed -n 's/^RestartSec=//p' fedrbn-supernode.service)
trap 'kill $child; wait $child; exit 0' TERM
for start in $(seq {most}); do
  {inside} env $(cat clock) sh ./machine.sh &
  child=$!
  wait $child
  code=$?
  echo "supervisor: ended with exit code $code"
  kill -KILL $(ip netns pids {namespace}) 2>/dev/null  # remaining processes, as systemd does
  if [ "$again" != always ] && [ $code = 0 ]; then exit 0; fi
  sleep "$pause"
done
"""


def settle(site: Site, network: Network) -> None:
    """Make every node's script start it in its own namespace, under a supervisor; clocks are correct."""
    for name in network.nodes:
        folder = site.node(name)
        (folder / "supernode.sh").rename(folder / "machine.sh")
        namespace = network.of(name)
        script = _SUPERVISED.format(
            most=MOST_STARTS, inside=shlex.join(network.command(namespace)), namespace=namespace
        )
        write(folder / "supernode.sh", script.encode(), SCRIPT)
        set_clock(site, name)


def register(site: Site) -> None:
    """Register all keys in one process; `register.sh` starts a process per key, each with seconds of processor time.

    A command of `flwr.sh` must have run before: it writes the address of the SuperLink.
    """
    from flwr.cli.app import app as flwr_cli  # noqa: PLC0415  (slow, and warns about its own options)

    for key in sorted((site.server / "keys").glob("*.pub")):
        arguments = ["supernode", "register", str(key), "site", "--name", key.stem]
        done = CliRunner(env={"FLWR_HOME": str(site.server / "flwr")}).invoke(flwr_cli, arguments)
        if done.exit_code:
            raise LostError(f"got {done.output!r} for the key of {key.stem}; expected it to be registered.")


def other_clock(folder: Path) -> Path | None:
    """A library that gives a process another date, built in this folder; None if there is no C compiler."""
    compiler, made = shutil.which("cc"), folder / "clock.so"
    if compiler is None:
        return None
    source = Path(__file__).with_name("clock.c")
    subprocess.run([compiler, "-shared", "-fPIC", "-O1", "-o", str(made), str(source)], check=True, timeout=60)  # noqa: S603
    return made


def set_clock(site: Site, node: str, offset: int = 0, library: Path | None = None) -> None:
    """Set a node's clock forward by `offset` seconds, from its next start on; without a library it is correct."""
    wrong = "" if library is None else f"LD_PRELOAD={library} CLOCK_OFFSET={offset}"
    (site.node(node) / "clock").write_text(wrong)


@contextmanager
def small_disk(folder: Path, megabytes: int) -> Iterator[None]:
    """Within the block, a folder with its content is on a separate disk."""
    with tempfile.TemporaryDirectory(prefix="fedrbn-soak-") as kept:
        shutil.copytree(folder, kept, dirs_exist_ok=True)
        options = f"size={megabytes}m,mode=0700"
        subprocess.run(["mount", "-t", "tmpfs", "-o", options, "soak", str(folder)], check=True, timeout=30)  # noqa: S603, S607
        try:
            shutil.copytree(kept, folder, dirs_exist_ok=True)
            yield
        finally:
            subprocess.run(["umount", "-l", str(folder)], check=True, timeout=30)  # noqa: S603, S607


def fill(folder: Path) -> int:
    """Fill the disk of a folder; returns the bytes that were free."""
    written = 0
    with (folder / _FILLER).open("wb", buffering=0) as file:
        for size in (1 << 20, 1 << 12, 1):
            for _ in range(1 << 16):
                try:
                    written += file.write(bytes(size))
                except OSError:
                    break
    return written


def make_room(folder: Path) -> None:
    """Free the disk again."""
    (folder / _FILLER).unlink()
