"""A fleet on this machine says what is wrong with its SuperLink, and says it at once."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from fedrbn import config
from fedrbn.deploy.certificates import Issued, issue
from fedrbn.deploy.fleet import fleet, local_plan
from fedrbn.deploy.site import create
from fedrbn.errors import DeployError

SERVING = """
import http.server, ssl
server = http.server.HTTPServer(("127.0.0.1", {port}), http.server.SimpleHTTPRequestHandler)
context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
context.load_cert_chain("server.crt", "server.key")
server.socket = context.wrap_socket(server.socket, server_side=True)
server.serve_forever()
"""


def test_a_server_whose_certificate_has_expired_is_an_error_at_once(tmp_path: Path) -> None:
    site = create(tmp_path / "site", local_plan(config.make({}), 1))
    authority = Issued((site.authority / "ca.crt").read_bytes(), (site.authority / "ca.key").read_bytes())
    expired = issue(authority, site.hosts, days=-1 / 48)  # half an hour ago
    (site.server / "server.crt").write_bytes(expired.certificate)
    (site.server / "server.key").write_bytes(expired.key)
    (site.server / "serve.py").write_text(SERVING.format(port=site.port))
    (site.server / "superlink.sh").write_text('cd "$(dirname "$0")"\nexec "$FEDRBN_BIN/python" serve.py\n')
    started = time.monotonic()
    with (
        fleet(site, tmp_path / "logs") as deployed,
        pytest.raises(DeployError, match=r"certificate has expired.*renew"),
    ):
        deployed.start_superlink(startup=300)
    assert time.monotonic() - started < 300
