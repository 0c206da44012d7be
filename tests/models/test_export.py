from __future__ import annotations

import json
import socket
from pathlib import Path

import pytest
import safetensors
import safetensors.torch
import torch
from PIL import Image
from torch import nn
from typer.testing import CliRunner

import fedrbn
from fedrbn.cli import app
from fedrbn.errors import ModelFileError
from fedrbn.models import model_file
from fedrbn.models.export import Exported, export_client, export_network, measured
from fedrbn.models.model_file import Card, predict, read
from fedrbn.runs.directory import RunDirectory
from fedrbn.types import Branch


@pytest.fixture(scope="module")
def files(trained: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Exported]:
    """One client in each format."""
    pytest.importorskip("onnxruntime")
    folder = tmp_path_factory.mktemp("models")
    return {
        suffix: export_client(trained, "pen-1", folder / f"pen{suffix}") for suffix in (".safetensors", ".onnx", ".pt2")
    }


@pytest.mark.parametrize("suffix", [".safetensors", ".onnx", ".pt2"])
def test_what_is_read_back_predicts_the_same(trained: Path, files: dict[str, Exported], suffix: str) -> None:
    pixels = torch.rand(7, 3, 28, 28, generator=torch.Generator().manual_seed(1))
    model = read(files[suffix].path, trust=True)
    with torch.no_grad():
        expected = fedrbn.load(trained).client("pen-1")(pixels)
    torch.testing.assert_close(model.logits(pixels), expected, rtol=1e-4, atol=1e-5)
    assert torch.equal(model.logits(pixels).argmax(1), expected.argmax(1))


@pytest.mark.parametrize("suffix", [".safetensors", ".onnx", ".pt2"])
def test_the_card_says_what_was_measured(trained: Path, files: dict[str, Exported], suffix: str) -> None:
    card = read(files[suffix].path, trust=True).card
    record = RunDirectory.open(trained).records("evaluations.jsonl")[-1]
    row = record["users"]["pen-1"]
    assert card == files[suffix].card
    assert (card.method, card.client, card.domain, card.branch) == ("fedrbn", "pen-1", "pen", "noised")
    assert (card.sa, card.ra) == (row["sa@noised"], row["ra@noised"])
    assert card.attack["eps"] == pytest.approx(8 / 255)
    assert card.classes == tuple("0123456789")
    assert card.folded == 5


def test_sizes_and_times_are_measured(files: dict[str, Exported]) -> None:
    """The digits network at width 1/16: 5 batch norms of 4 + 4 + 8 + 128 + 32 = 176 channels are folded.

    Each channel loses w, b, μ, σ² and each layer its count of 8 bytes; no bias is added, as every layer has one.
    """
    with safetensors.safe_open(files[".safetensors"].path, framework="pt") as file:
        stored = sum(file.get_tensor(name).nbytes for name in file.keys())  # noqa: SIM118
    for exported in files.values():
        assert exported.bytes_before - stored == 176 * 4 * 4 + 5 * 8
        assert exported.bytes_after == exported.path.stat().st_size
        assert exported.milliseconds_before > 0
        assert exported.milliseconds_after > 0
        assert 0 <= exported.deviation < 1e-4


def test_a_quick_look_does_not_replace_the_measurement(tmp_path: Path) -> None:
    """The run's own attack first, then most images, then the newest; the sa of each record says which it is."""
    directory = RunDirectory(tmp_path)

    def add(sa: float, own: bool, images: int) -> None:
        attacks = {"pgd-7": {"eps": 0.03, "settings": "PGD()", "in_config": own}}
        row = {"domain": "x", "role": "AT", "predicts": "noised", "sa@noised": sa, "ra@noised": 0.0}
        record = {"part": "test", "round": 1, "attack": "pgd-7", "threat": "pixel", "attacks": attacks}
        record |= {"method": "fedrbn", "data": "x", "seed": 1, "deployment": "noised", "samples_digest": "0"}
        record["users"] = {"a": row}
        record |= {key: {} for key in ("labels", "domains", "mean", "interval", "worst_domain")}
        directory.append("evaluations.jsonl", {**record, "samples": {"sa@noised": images}})

    assert measured(directory, "a", Branch.NOISED) == {}
    for sa, own, images, chosen in [(0.1, False, 900, 0.1), (0.2, True, 500, 0.2), (0.3, True, 20, 0.2)]:
        add(sa, own, images)
        assert measured(directory, "a", Branch.NOISED)["sa"] == chosen
    add(0.4, False, 999)
    assert measured(directory, "a", Branch.NOISED)["sa"] == 0.2
    add(0.5, True, 500)
    assert measured(directory, "a", Branch.NOISED)["sa"] == 0.5


def test_a_branch_can_be_chosen(trained: Path, tmp_path: Path) -> None:
    exported = export_client(trained, "pen-1", tmp_path / "clean.safetensors", Branch.CLEAN)
    pixels = torch.rand(3, 3, 28, 28, generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        expected = fedrbn.load(trained).client("pen-1", Branch.CLEAN)(pixels)
    assert exported.card.branch == "clean"
    torch.testing.assert_close(read(exported.path).logits(pixels), expected, rtol=1e-4, atol=1e-5)


def test_without_folding_the_logits_are_the_same_bit_for_bit(trained: Path, tmp_path: Path) -> None:
    exported = export_client(trained, "pen-1", tmp_path / "whole.safetensors", folding=False)
    assert exported.deviation == 0
    assert exported.card.folded == 0


def test_a_network_that_does_not_survive_is_not_written(files: dict[str, Exported], tmp_path: Path) -> None:
    class Forgetful(nn.Module):
        """Its scale is not among its tensors, so a file of weights cannot carry it."""

        def __init__(self) -> None:
            super().__init__()
            self.net = read_network(files[".safetensors"].card)
            self.scale = 3.0

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            result: torch.Tensor = self.scale * self.net(x)
            return result

    net, card = Forgetful().eval(), files[".safetensors"].card
    target = tmp_path / "model.safetensors"
    with pytest.raises((ModelFileError, ValueError)):
        export_network(net, card, target)
    assert list(tmp_path.iterdir()) == []


def read_network(card: Card) -> nn.Module:
    return model_file.structure(card.model_copy(update={"folded": 0}))


def test_refusals(trained: Path, files: dict[str, Exported], tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="Did you mean 'pen-1'"):
        export_client(trained, "pen1", tmp_path / "a.onnx")
    with pytest.raises(ModelFileError, match=r"got a\.pth; expected a name ending in \.safetensors, \.onnx, \.pt2"):
        export_client(trained, "pen-1", tmp_path / "a.pth")
    with pytest.raises(ModelFileError, match="can run code"):
        read(files[".pt2"].path)
    with pytest.raises(ModelFileError, match="which is not a file"):
        read(tmp_path / "absent.onnx")


def test_files_that_are_not_ours_are_refused(tmp_path: Path) -> None:
    pytest.importorskip("onnxruntime")
    for name in ("a.safetensors", "a.onnx"):
        (tmp_path / name).write_bytes(b"nothing of the kind")
        with pytest.raises(ModelFileError, match=r"cannot be read|cannot read"):
            read(tmp_path / name)
    other = tmp_path / "other.safetensors"
    other.write_bytes(safetensors.torch.save({"x": torch.zeros(1)}, metadata={"fedrbn": '{"format": "else"}'}))
    with pytest.raises(ModelFileError, match="without a valid description"):
        read(other)


def test_a_file_cannot_choose_what_code_runs(files: dict[str, Exported], tmp_path: Path) -> None:
    """A card that names code is refused before that code is imported, unless the user names it too."""
    source = files[".safetensors"]
    card = source.card.model_copy(update={"network": "socket:socket"})
    with safetensors.safe_open(source.path, framework="pt") as file:
        values = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    target = tmp_path / "evil.safetensors"
    target.write_bytes(safetensors.torch.save(values, metadata={"fedrbn": card.model_dump_json()}))
    with pytest.raises(ModelFileError, match=f"{socket.__name__}:socket.*must not choose what code runs"):
        read(target)
    read(target, network="digits")


def test_predictions_of_image_files(files: dict[str, Exported], tmp_path: Path) -> None:
    random = torch.Generator().manual_seed(3)
    paths = []
    for number in range(2):
        pixels = torch.randint(0, 256, (28, 28, 3), generator=random, dtype=torch.uint8)
        paths.append(tmp_path / f"{number}.png")
        Image.fromarray(pixels.numpy()).save(paths[-1])
    found = {suffix: predict(read(exported.path, trust=True), paths) for suffix, exported in files.items()}
    first = found[".onnx"]
    batch = torch.stack([torch.from_numpy(_array(path)).permute(2, 0, 1).float() / 255 for path in paths])
    expected = read(files[".onnx"].path).logits(batch).softmax(1)
    assert [p.label for p in first] == [str(int(row.argmax())) for row in expected]
    assert [p.probability for p in first] == pytest.approx(expected.amax(1).tolist())
    assert all(p.probability >= p.runner_up_probability for p in first)
    for others in found.values():
        assert [(p.label, p.runner_up) for p in others] == [(p.label, p.runner_up) for p in first]


def _array(path: Path) -> object:
    import numpy as np  # noqa: PLC0415

    with Image.open(path) as image:
        return np.asarray(image).copy()


def test_the_commands(trained: Path, tmp_path: Path) -> None:
    model, picture = tmp_path / "m.safetensors", tmp_path / "p.png"
    Image.new("RGB", (40, 40), (200, 30, 30)).save(picture)
    runner = CliRunner()
    exported = runner.invoke(app, ["export", str(trained), "--client", "pen-1", "-o", str(model)])
    assert exported.exit_code == 0, exported.output
    for words in ("client pen-1, BN_a", "at ε = 8/255", "folded: 5, kept: 0", "logits agree", "size", "latency"):
        assert words in exported.output
    predicted = runner.invoke(app, ["predict", str(model), str(picture), "--json"])
    assert predicted.exit_code == 0, predicted.output
    (answer,) = json.loads(predicted.output)
    assert answer["label"] in "0123456789"
    assert 0.1 <= answer["probability"] <= 1


def _changed_card(path: Path, other: Path, **changed: object) -> Path:
    """The model file with other values in its card."""
    with safetensors.safe_open(path, framework="pt") as file:
        card = json.loads(file.metadata()[model_file.KEY])
        values = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118  (not a mapping)
    safetensors.torch.save_file(values, other, {model_file.KEY: json.dumps(card | changed)})
    return other


@pytest.mark.parametrize("changed", [{"sa": 57.0}, {"ra": -1.0}, {"round": -9}, {"classes": ["a" * 1001] * 10}])
def test_impossible_descriptions_are_refused(
    files: dict[str, Exported], tmp_path: Path, changed: dict[str, object]
) -> None:
    model_file.read(_changed_card(files[".safetensors"].path, tmp_path / "same.safetensors"))
    with pytest.raises(ModelFileError, match="without a valid description"):
        model_file.read(_changed_card(files[".safetensors"].path, tmp_path / "other.safetensors", **changed))


def test_a_model_without_finite_outputs_makes_no_prediction(files: dict[str, Exported], tmp_path: Path) -> None:
    weights = safetensors.torch.load_file(files[".safetensors"].path)
    with safetensors.safe_open(files[".safetensors"].path, framework="pt") as file:
        facts = file.metadata()
    path, image = tmp_path / "nan.safetensors", tmp_path / "image.png"
    safetensors.torch.save_file({name: value * torch.nan for name, value in weights.items()}, path, facts)
    Image.new("RGB", (28, 28)).save(image)
    with pytest.raises(ModelFileError, match="NaN; expected a finite number for each class"):
        model_file.predict(model_file.read(path), [image])


@pytest.mark.parametrize("beside", [True, False], ids=["beside the model", "in the working directory"])
def test_an_onnx_model_opens_no_other_file(
    files: dict[str, Exported], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, beside: bool
) -> None:
    onnx = pytest.importorskip("onnx")
    graph = onnx.load(str(files[".onnx"].path))
    weights = graph.graph.initializer[0]
    (tmp_path / "models").mkdir()
    monkeypatch.chdir(tmp_path)
    (tmp_path / "models" / "w.bin" if beside else tmp_path / "w.bin").write_bytes(weights.raw_data)
    size = len(weights.raw_data)
    weights.ClearField("raw_data")
    weights.data_location = onnx.TensorProto.EXTERNAL
    for key, value in (("location", "w.bin"), ("offset", "0"), ("length", str(size))):
        weights.external_data.add(key=key, value=value)
    path = tmp_path / "models" / "m.onnx"
    path.write_bytes(graph.SerializeToString())
    with pytest.raises(ModelFileError, match="onnxruntime cannot read"):
        model_file.read(path)
