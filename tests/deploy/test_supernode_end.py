"""A node that has given its server up ends, so that a supervisor can start it again."""

from __future__ import annotations

import subprocess
import sys

LOST = """
import sys, threading, time
from fedrbn.deploy import supernode
supernode._parse_supernode_lifespan_config = lambda: __import__("types").SimpleNamespace(
    host="127.0.0.1", port=9, runtime_root_certificates_path=None, runtime_dependency_install=False)
supernode.subprocess.Popen = lambda *_: None
# what Flower does: its HTTP server runs on in a thread when the connection is given up
supernode.flower_supernode = lambda: threading.Thread(target=time.sleep, args=(600,)).start()
supernode.main()
"""


def test_a_node_that_has_given_its_server_up_ends_with_an_error() -> None:
    done = subprocess.run([sys.executable, "-c", LOST], capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 1
    assert "connection to the SuperLink is lost" in done.stdout + done.stderr
