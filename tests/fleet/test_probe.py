from __future__ import annotations

import http.server
import json
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from torch import nn
from typer.testing import CliRunner

from fedrbn import config
from fedrbn.cli import app
from fedrbn.fleet.probe import activation_bytes, download_speed, forward_macs, free_memory, network, probe, workload
from fedrbn.hardware import one_thread
from fedrbn.nets.dual_bn import dual
from fedrbn.types import Role


def test_macs_of_the_digits_network() -> None:
    """28²·75·64 + 14²·1600·64 + 7²·1600·128 in convolutions, 6272·2048 + 2048·512 + 512·10 in linear layers."""
    net = network(config.make({"model": {"width": 1.0}}), 10, (3, 28, 28))
    assert forward_macs(net, (3, 28, 28)) == 47_767_552


def test_activations_kept_for_the_backward_pass() -> None:
    """The linear layer keeps its 4 inputs, batch norm its 3 inputs, ReLU its 3 outputs, each of 4 bytes."""
    net = dual(nn.Sequential(nn.Flatten(), nn.Linear(4, 3), nn.BatchNorm1d(3), nn.ReLU()))
    assert activation_bytes(net, (1, 2, 2)) == 4 * (4 + 3 + 3)


def test_workload_counts_what_travels() -> None:
    """An ST user does not upload BN_a: μ, σ² of 176 channels (4 bytes each) and 5 counts of 8 bytes."""
    experiment = config.make({"model": {"width": 1 / 16}, "train": {"batch_size": 16}, "attack": {"steps": 3}})
    found = workload(experiment, 10, (3, 28, 28))
    assert found.upload_bytes[Role.AT] == found.download_bytes == found.weight_bytes
    assert found.upload_bytes[Role.AT] - found.upload_bytes[Role.ST] == 176 * 2 * 4 + 5 * 8
    assert (found.batch_size, found.attack_steps, found.lam) == (16, 3, 0.5)


def test_a_short_probe() -> None:
    with one_thread():
        net = network(config.make({"model": {"width": 1 / 16}}), 10, (3, 28, 28))
        found = probe(net, (3, 28, 28), batch_size=8, seconds=0.2)
    assert 1e6 < found.speed.forward < 1e13
    assert 1e6 < found.speed.backward < 1e13
    assert found.speed.attack > 0
    assert found.memory_bandwidth > 1e7
    assert found.bandwidth is None
    memory = free_memory()
    assert memory is None or memory > 1e6


@pytest.fixture
def address() -> Iterator[str]:
    class Server(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.end_headers()
            self.wfile.write(bytes(0 if self.path == "/empty" else 1_000_000))

        def log_message(self, *_: object) -> None:
            pass

    with http.server.HTTPServer(("127.0.0.1", 0), Server) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


def test_download_speed(address: str) -> None:
    assert download_speed(f"{address}/file", seconds=2.0) > 1e5
    with pytest.raises(ValueError, match="got nothing"):
        download_speed(f"{address}/empty", seconds=1.0)
    with pytest.raises(ValueError, match=r"expected an address with http"):
        download_speed("file:///etc/hostname", seconds=1.0)


def test_the_command_prints_what_a_fleet_reads(tmp_path: Path) -> None:
    settings = tmp_path / "small.toml"
    settings.write_text("[model]\nwidth = 0.0625\n")
    result = CliRunner().invoke(app, ["probe", str(settings), "--seconds", "0.2", "--json"])
    assert result.exit_code == 0, result.output
    assert set(json.loads(result.output)) == {"speed", "memory", "memory_bandwidth", "bandwidth"}
    words = CliRunner().invoke(app, ["probe", str(settings), "--seconds", "0.2"]).output
    assert "GMAC/s" in words
    assert "not measured" in words
