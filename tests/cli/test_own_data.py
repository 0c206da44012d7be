"""From an empty folder to a deployed network: own images and an own network, no option but paths, and every mistake."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from typer.testing import CliRunner

from fedrbn.cli import app
from fedrbn.errors import FedRBNError

pytestmark = pytest.mark.slow

OWN = """
import torch
from torch import nn

class Net(nn.Sequential):
    def __init__(self, num_classes, in_channels=3):
        conv, norm = nn.Conv2d(in_channels, 8, 8, stride=8), nn.BatchNorm2d(8)
        super().__init__(conv, norm, nn.ReLU(), nn.Flatten(), nn.Linear(512, num_classes))

def thousand():
    return Net(1000)

def five():
    return Net(5)

def no_norm(num_classes):
    return nn.Sequential(nn.Flatten(), nn.Linear(3 * 64 * 64, num_classes))

class Broken(Net):
    def forward(self, x):
        return super().forward(x[:, :1])

def local(num_classes):
    class Sulks(Net):
        def forward(self, x):
            if torch.is_grad_enabled():
                raise ArithmeticError("not today")
            return super().forward(x)

    return Sulks(num_classes)

class Late(Net):
    def forward(self, x):
        if torch.is_grad_enabled():
            raise ArithmeticError("not today")
        return super().forward(x)
"""


def images(folder: Path, kind: str, count: int, light: int) -> None:
    """Noise with bars or dots on it."""
    random = np.random.default_rng([light, len(kind)])
    folder.mkdir(parents=True)
    for number in range(count):
        pixels = random.integers(0, 60, (40, 48, 3)) + light
        pixels[:: 8 if kind == "dots" else 1, ::8] += 100
        suffix = ("png", "jpg", "webp")[number % 3]
        Image.fromarray(pixels.clip(0, 255).astype(np.uint8)).save(folder / f"{number}.{suffix}")


def fedrbn(folder: Path, *arguments: str) -> str:
    """What the command prints; it is a program of its own, as for anybody."""
    command = [sys.executable, "-c", "from fedrbn.cli import main; main()", *arguments]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=1200, check=False)
    printed = done.stdout + done.stderr
    assert done.returncode == 0, printed
    return printed


def refused(*arguments: str) -> str:
    """The one message that the command ends with, without the two seconds that a program takes to begin."""
    result = CliRunner().invoke(app, arguments)
    assert isinstance(result.exception, FedRBNError), result.output
    return str(result.exception)


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with two domains of images and a network."""
    folder = tmp_path_factory.mktemp("own")
    for domain, light in (("day", 90), ("night", 20)):
        for kind in ("bars", "dots"):
            images(folder / "photos" / domain / kind, kind, 52, light)
    images(folder / "unlabelled", "bars", 12, 60)
    (folder / "photos" / "day" / "bars" / "moving.gif").write_bytes(b"GIF89a")
    (folder / "own.py").write_text(OWN, encoding="utf-8")
    return folder


def test_from_a_folder_to_a_deployed_network(place: Path) -> None:
    checked = fedrbn(place, "data", "check", "photos")
    assert "42 / 10" in checked  # 52 images of a class, split 80/20
    assert "ignored files: 1\n  day/bars/moving.gif: with the suffix .gif" in checked
    ran = fedrbn(place, "run", "--data", "photos", "--set", "model.name=own:Net", "--out", "run")
    # Two users share the 84 training images of a domain; a fifth of 42, rounded up, is for validation. The network has
    # 3 · 8 · 64 + 8 weights of the convolution, 2 · 8 of batch norm and 512 · 2 + 2 of the last layer.
    assert "network own:Net: 2,586 parameters, input 3 x 64 x 64, 2 classes" in ran
    assert "4 clients (2 AT, 2 ST); images per user: train 33 / validation 9 / test 10" in ran
    assert "1 file ignored (images are .jpg, .jpeg, .png, .webp): 1 with the suffix .gif" in ran
    assert "estimated memory " in ran
    assert "start-up " in ran
    assert "warning" not in ran.split("round 1/60")[0]
    record = json.loads((place / "run" / "evaluations.jsonl").read_text(encoding="utf-8"))
    assert record["mean"]["sa"] > 0.9  # bars and dots are easy
    assert "clip = 10.0" in (place / "run" / "config.toml").read_text(encoding="utf-8")
    fedrbn(place, "report", "run")
    assert "night" in (place / "report.html").read_text(encoding="utf-8")
    assert "logits agree" in fedrbn(place, "export", "run", "-o", "model.onnx")
    predicted = fedrbn(place, "predict", "model.onnx", "photos/day/bars/0.png", "photos/night/dots/2.webp")
    assert [line.split()[1] for line in predicted.splitlines()] == ["bars", "dots"]
    assert "BN_c measured on 12 images of unlabelled" in fedrbn(place, "onboard", "run", "--data", "unlabelled")


@pytest.mark.parametrize(
    ("network", "message"),
    [
        ("thousand", "your network gives [16, 1000] for [16, 3, 64, 64]; expected logits [16, 2]"),
        ("five", "your network gives [16, 5] for [16, 3, 64, 64]; expected logits [16, 2]"),
        ("no_norm", "without a batch-norm layer"),
        ("Broken", "your network failed on [16, 3, 64, 64]: RuntimeError: "),
        ("Late", "your network failed on [16, 3, 64, 64]: ArithmeticError: not today (own.py, line "),
        ("local", "your network failed on [16, 3, 64, 64]: ArithmeticError: not today (own.py, line "),
    ],
)
def test_networks_that_cannot_train(place: Path, monkeypatch: pytest.MonkeyPatch, network: str, message: str) -> None:
    monkeypatch.chdir(place)
    monkeypatch.syspath_prepend(place)
    printed = refused("run", "--data", "photos", "--set", f"model.name=own:{network}", "--out", network)
    assert message in printed
    assert "pickle" not in printed


def test_data_that_cannot_be_learnt_from(place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(place)
    images(tmp_path / "one" / "day" / "bars", "bars", 30, 90)
    assert "got training images of the class 'bars' only; expected at least two" in refused("run", "--data", "one")
    large = ("--set", "model.name=digits", "--set", "data.image_size=1024", "--out", "large")
    message = refused("run", "--data", str(place / "photos"), *large)
    assert "got network 'digits' for images of 1024 x 1024 pixels" in message
    assert "Set data.image_size = 64, or model.name = 'resnet18'" in message


def test_few_images_are_warned_of(place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(place)
    for kind in ("bars", "dots"):
        images(tmp_path / "few" / "day" / kind, kind, 20, 90)
    settings = ("--set", "model.name=own:Net", "--rounds", "1", "--workers", "1", "--out", "run")
    result = CliRunner().invoke(app, ["run", "--data", "few", *settings])
    assert result.exit_code == 0
    # 80 % of 40 images for two users, a fifth of 16, rounded up, for validation.
    assert "warning: 2 of 2 users train on fewer than 32 images (day-0 on 12)" in " ".join(result.output.split())
