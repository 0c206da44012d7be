"""What fuzzing has found, once: each of these ended in a traceback, in gigabytes of memory, or in a bare message."""

from __future__ import annotations

import json
import math
import os
import zipfile
import zlib
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from fedrbn import config
from fedrbn.config import ConfigError
from fedrbn.data import memory_limit
from fedrbn.data.prepare import changed_files
from fedrbn.data.prepared import read_archive
from fedrbn.data.raw.usps import read_libsvm
from fedrbn.data.sets.folder import decode
from fedrbn.errors import ModelFileError, StorageError
from fedrbn.federated.training.memory import remember
from fedrbn.fleet import description
from fedrbn.models import model_file
from fedrbn.models.model_file import Card
from fedrbn.runs.directory import RunDirectory
from fedrbn.runs.measured import measured_seconds
from fedrbn.runs.records import evaluations, rounds
from fedrbn.runs.recovery import recover
from fuzz import trained
from fuzz.bombs import chunk, npy_header
from fuzz.cases import REFUSED, command
from fuzz.configs import FLEET, PROBE, as_toml
from fuzz.files import digits_npz
from fuzz.trained import CLIENT, damaged, original

USABLE = r"got .*expected"


class TestSettings:
    def test_a_seed_that_pytorch_cannot_take(self) -> None:
        with pytest.raises(ConfigError, match=r"run\.seed: got 18446744073709551616; expected"):
            config.make({"run": {"seed": 2**64}})

    def test_a_number_that_python_will_not_write(self) -> None:
        _, _, (value,) = config.parse_setting(f"run.seed=0x{'f' * 9000}")
        with pytest.raises(ConfigError, match=r"got a value of type int that is too large to show; expected"):
            config.make({"run": {"seed": value}})

    def test_a_page_of_a_value_is_not_shown_whole(self) -> None:
        with pytest.raises(ConfigError) as error:
            config.make({"train": {"rounds": "x" * 10_000}})
        assert len(str(error.value)) < 500

    @pytest.mark.parametrize("value", [3, [], "x"])
    def test_a_section_that_is_no_table(self, value: object) -> None:
        with pytest.raises(ConfigError, match=rf"\[run\]: {USABLE}"):
            config.make({"run": value})

    def test_a_section_whose_name_is_not_text(self) -> None:
        with pytest.raises(ConfigError, match=USABLE):
            config.make({"\ud800": {"name": 0}})

    def test_text_that_is_no_toml(self, tmp_path: Path) -> None:
        (tmp_path / "x.toml").write_text("= 3")
        with pytest.raises(ConfigError, match=rf"(?s){USABLE}"):
            config.read(tmp_path / "x.toml")


class TestDataFiles:
    def test_images_that_do_not_fit_into_memory(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """9,000 images of 1024² in RGB are 3 · 9000 · 2²⁰ = 28.3 · 10⁹ bytes, and twice that with the copy: 52.7 GiB.

        In 8 GiB go images of side isqrt(8 · 2³⁰ // (2 · 3 · 9000)) = isqrt(159072) = 398.
        """
        monkeypatch.setattr(memory_limit, "available_memory", lambda: 8 * 2**30)
        assert math.isqrt(8 * 2**30 // 54_000) == 398
        with pytest.raises(ValueError, match=r"need 52\.7 GiB.*expected.*8\.0 GiB.*at most 398"):
            memory_limit.empty_images(9000, 1024)
        assert memory_limit.empty_images(10, 398).shape == (10, 398, 398, 3)
        memory_limit.check_memory(9000, 398)
        with pytest.raises(ValueError, match="expected"):
            memory_limit.check_memory(9000, 399)

    def test_where_the_system_does_not_say_nothing_is_refused(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(memory_limit, "available_memory", lambda: None)
        memory_limit.check_memory(10**9, 1024)

    def test_the_system_says_how_much_memory_is_free(self) -> None:
        free = memory_limit.available_memory()
        assert free is None or 2**20 < free < os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")

    @pytest.mark.parametrize(
        "content",
        [
            npy_header(10**13) + b"\1" * 10,
            npy_header(18446744073709551617),
            b"\x93NUMPY\x01\x00\x76\x00" + b"(" * 118,
            b"\x93NUMPY\x07\x07\x76\x00" + b" " * 118,
            npy_header(2, -2) + b"\1" * 4,
            npy_header(3) + b"\1" * 4,
        ],
        ids=["terabytes", "too large for C", "brackets", "version", "negative", "a byte too many"],
    )
    def test_an_npz_whose_headers_lie(self, content: bytes, tmp_path: Path) -> None:
        with zipfile.ZipFile(tmp_path / "x.npz", "w") as archive:
            archive.writestr("a.npy", content)
        with pytest.raises(ValueError, match=USABLE):
            read_archive(tmp_path / "x.npz", ("a",))

    def test_an_npz_with_damaged_compression(self, tmp_path: Path) -> None:
        content = bytearray(digits_npz(compress=True))
        content[200:204] = b"\xff\xff\xff\xff"
        (tmp_path / "x.npz").write_bytes(content)
        with pytest.raises(ValueError, match=USABLE):
            read_archive(tmp_path / "x.npz", ("train_images",))

    def test_whole_arrays_come_back(self, tmp_path: Path) -> None:
        arrays: dict[str, Any] = {"a": np.arange(6).reshape(2, 3), "b": np.array(["x", "yz"]), "c": np.array(3.5)}
        for save in (np.savez, np.savez_compressed):
            save(tmp_path / "x.npz", **arrays)
            found = read_archive(tmp_path / "x.npz", ("a", "b", "c"))
            assert all(np.array_equal(found[name], array) for name, array in arrays.items())

    def test_a_pipe_is_not_read_for_ever(self, tmp_path: Path) -> None:
        os.mkfifo(tmp_path / "x.png")
        with pytest.raises(ValueError, match=USABLE):
            decode(tmp_path / "x.png", "x.png", 8)

    def test_a_name_that_no_file_can_have(self, tmp_path: Path) -> None:
        (tmp_path / "checksums.json").write_text(json.dumps({"a" * 5000: {"sha256": "00"}}))
        assert changed_files(tmp_path) == [f"{'a' * 5000} is missing"]

    def test_rows_of_nothing(self, tmp_path: Path) -> None:
        """Each empty row becomes 256 numbers: two bytes of text, two kilobytes of memory."""
        (tmp_path / "usps").write_text("1\n" * 100_001)
        with pytest.raises(ValueError, match=USABLE):
            read_libsvm(tmp_path / "usps")

    def test_text_inside_a_picture(self, tmp_path: Path) -> None:
        header = chunk(b"IHDR", bytes([0, 0, 0, 8, 0, 0, 0, 8, 8, 2, 0, 0, 0]))
        text = chunk(b"zTXt", b"c\0\0" + zlib.compress(bytes(2**22)))
        (tmp_path / "x.png").write_bytes(b"\x89PNG\r\n\x1a\n" + header + text)
        with pytest.raises(ValueError, match=USABLE):
            decode(tmp_path / "x.png", "x.png", 8)


class TestRunDirectories:
    @pytest.mark.parametrize("instead", ["folder", "loop", "missing"])
    def test_a_config_that_is_no_file(self, instead: str, tmp_path: Path) -> None:
        with pytest.raises(StorageError, match=USABLE):
            RunDirectory(damaged(("config.toml", instead), tmp_path)).experiment()

    def test_a_config_that_is_no_text(self, tmp_path: Path) -> None:
        with pytest.raises(StorageError, match=USABLE):
            RunDirectory(damaged(("config.toml", b"\xff"), tmp_path)).experiment()

    @pytest.mark.parametrize("content", [b"[1]\n", b"[" * 100_000 + b"\n", b"null\n", "folder"], ids=repr)
    def test_lines_that_are_no_records(self, content: bytes | str, tmp_path: Path) -> None:
        with pytest.raises(StorageError, match=USABLE):
            RunDirectory(damaged(("rounds.jsonl", content), tmp_path)).records("rounds.jsonl")

    @pytest.mark.parametrize("number", ["x", None, 1.5, []])
    def test_a_round_without_a_number(self, number: object, tmp_path: Path) -> None:
        record = {**json.loads(original()["rounds.jsonl"].splitlines()[0]), "round": number}
        run = damaged(("rounds.jsonl", json.dumps(record).encode() + b"\n"), tmp_path)
        with pytest.raises(StorageError, match=USABLE):
            recover(RunDirectory(run))
        with pytest.raises(StorageError, match=USABLE):
            rounds(RunDirectory(run))

    @pytest.mark.parametrize(
        ("key", "value"),
        [("mean", {"sa": "x"}), ("attack", "other"), ("attacks", []), ("samples", {}), ("users", {"a": {"sa": []}})],
    )
    def test_an_evaluation_that_says_something_else(self, key: str, value: object, tmp_path: Path) -> None:
        record = {**json.loads(original()["evaluations.jsonl"]), key: value}
        run = damaged(("evaluations.jsonl", json.dumps(record).encode() + b"\n"), tmp_path)
        with pytest.raises(StorageError, match=USABLE):
            evaluations(RunDirectory(run))
        assert command("run", "-q", "--resume", str(run)) == REFUSED
        assert command("export", str(run), "--client", CLIENT, "--out", str(tmp_path / "m.safetensors")) == REFUSED

    @pytest.mark.parametrize("shape", [[3, 10**9, 10**9], [3, 0, 28], [3, float("inf"), 28], "abc"], ids=repr)
    def test_a_federation_of_other_images(self, shape: object, tmp_path: Path) -> None:
        content = {**json.loads(original()["federation.json"]), "image_shape": shape}
        run = damaged(("federation.json", json.dumps(content).encode()), tmp_path)
        with pytest.raises(StorageError, match=USABLE):
            RunDirectory(run).description()

    def test_rounds_of_a_client_that_is_no_member(self, tmp_path: Path) -> None:
        content = json.loads(original()["federation.json"])
        content["members"] = content["members"][:2]
        run = damaged(("federation.json", json.dumps(content).encode()), tmp_path)
        with pytest.raises(ConfigError, match=USABLE):
            measured_seconds(run)

    def test_a_client_with_a_very_long_name(self, tmp_path: Path) -> None:
        with pytest.raises(StorageError, match=USABLE):
            remember(tmp_path, "x" * 300, 2, {"noise": torch.zeros(1)})


class TestModelFiles:
    @pytest.mark.parametrize("shape", [(3, 5000, 28), (3, 0, 28), (3, 2048, 2048)])
    def test_a_card_for_images_that_fit_nowhere(self, shape: tuple[int, int, int], tmp_path: Path) -> None:
        (tmp_path / "m.safetensors").write_bytes(trained.model(".safetensors"))
        card = model_file.read(tmp_path / "m.safetensors").card.model_dump()
        with pytest.raises(ValueError, match="image_shape"):
            Card.model_validate(card | {"image_shape": shape})

    def test_a_card_of_a_larger_network_than_the_file_holds(self, tmp_path: Path) -> None:
        content = trained.model(".safetensors")
        size = int.from_bytes(content[:8], "little")
        header = json.loads(content[8 : 8 + size])
        card = json.loads(header["__metadata__"]["fedrbn"]) | {"width": 4.0, "image_shape": [3, 512, 512]}
        header["__metadata__"]["fedrbn"] = json.dumps(card)
        text = json.dumps(header).encode()
        (tmp_path / "m.safetensors").write_bytes(len(text).to_bytes(8, "little") + text + content[8 + size :])
        with pytest.raises(ModelFileError, match=USABLE):
            model_file.read(tmp_path / "m.safetensors")

    def test_a_model_that_answers_otherwise_than_its_card_says(self, tmp_path: Path) -> None:
        (tmp_path / "m.safetensors").write_bytes(trained.model(".safetensors"))
        (tmp_path / "x.png").write_bytes(trained.picture())
        model = model_file.read(tmp_path / "m.safetensors")
        for answer in (torch.zeros(1, 11), torch.zeros(10), torch.zeros(2, 10)):
            other = replace(model, logits=lambda _, answer=answer: answer)
            with pytest.raises(ModelFileError, match=USABLE):
                model_file.predict(other, [tmp_path / "x.png"])

    def test_a_card_that_is_no_text(self, tmp_path: Path) -> None:
        (tmp_path / "m.onnx").write_bytes(trained.model(".onnx").replace(b'"client":"pen-1"', b'"client":"p\xd0n-1"'))
        with pytest.raises(ModelFileError, match=USABLE):
            model_file.read(tmp_path / "m.onnx")

    @pytest.mark.parametrize("suffix", [".onnx", ".safetensors"])
    def test_a_shipped_model_does_not_tell_where_it_was_made(self, suffix: str) -> None:
        content = trained.model(suffix)
        assert b'"client":"pen-1"' in content.replace(b"\\", b"")
        assert str(Path(model_file.__file__).parent).encode() not in content
        assert b"site-packages" not in content

    def test_a_trusted_file_that_is_no_archive(self, tmp_path: Path) -> None:
        (tmp_path / "m.pt2").write_bytes(b"PK\3\4 nothing")
        with pytest.raises(ModelFileError, match=USABLE):
            model_file.read(tmp_path / "m.pt2", trust=True)


class TestFleets:
    @pytest.mark.parametrize(
        "change",
        [{"memory": [1]}, {"memory": "x"}, {"bandwidth": -1}, {"speed": {"forward": "nan"}}, {"speed": 3}],
        ids=repr,
    )
    def test_a_probe_that_measured_something_else(self, change: dict[str, Any], tmp_path: Path) -> None:
        (tmp_path / "laptop.json").write_text(json.dumps(PROBE | change))
        (tmp_path / "f.toml").write_bytes(as_toml(FLEET))
        with pytest.raises(ConfigError, match=USABLE):
            description.read(tmp_path / "f.toml")

    @pytest.mark.parametrize(
        "change",
        [{"image_shape": [3, 10**6, 10**6]}, {"classes": 10**9}, {"count": 10**9}, {"image_shape": [3, -1, 28]}],
        ids=repr,
    )
    def test_a_fleet_that_fits_into_no_memory(self, change: dict[str, Any], tmp_path: Path) -> None:
        device = {"id": '"x"', "domain": '"d"', "samples": 1, "macs_per_second": 1.0}
        top = {"deadline": 1} | {key: value for key, value in change.items() if key != "count"}
        device |= {key: value for key, value in change.items() if key == "count"}
        lines = [f"{key} = {value}" for key, value in top.items()]
        lines += ["[[device]]", *(f"{key} = {value}" for key, value in device.items())]
        (tmp_path / "f.toml").write_text("\n".join(lines))
        with pytest.raises(ConfigError, match=USABLE):
            description.read(tmp_path / "f.toml")
