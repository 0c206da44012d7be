"""The page: complete, closed to the network, escaped, and with the numbers of the files."""

from __future__ import annotations

import base64
import hashlib
import itertools
import json
import re
import shutil
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import pytest
from PIL import Image
from tests.report.conftest import Page

import fedrbn
from fedrbn.config import Experiment
from fedrbn.errors import StorageError
from fedrbn.report import write_report
from fedrbn.report.page import render

EVIL = '<img src=x onerror="alert(1)">'


@pytest.fixture(scope="module")
def text(trained: Path) -> str:
    return render([trained], checks=False)


@pytest.fixture(scope="module")
def page(text: str) -> Page:
    return Page(text)


def test_the_page_shows_the_numbers_of_the_record(page: Page, trained: Path) -> None:
    record = json.loads((trained / "evaluations.jsonl").read_text(encoding="utf-8").splitlines()[0])
    head, *rows = page.tables["Accuracies in %, by domain and role"]
    assert head[:4] == ["domain", "SA", "RA", "RA adaptive"]
    found = {row[0]: row[1:4] for row in rows}
    columns = ("sa", "ra", "ra adaptive")
    for domain, values in record["domains"].items():
        assert found[domain] == [f"{100 * values[column]:.1f}" for column in columns]
    assert found["all users"] == [f"{100 * record['mean'][column]:.1f}" for column in columns]
    users = {row[0]: row for row in page.tables["Every user, in %"][1:]}
    assert users.keys() == record["users"].keys()
    assert users["pen-1"][4] == f"{100 * record['users']['pen-1']['sa']:.1f}"


def test_costs_and_validation_are_those_of_the_files(page: Page, trained: Path) -> None:
    record = json.loads((trained / "evaluations.jsonl").read_text(encoding="utf-8").splitlines()[0])
    rows = {row[0]: row[1:] for row in page.tables["Multiply-accumulates (MAC) and bytes of tensors"][1:]}
    per_epoch = record["cost"]["macs_per_epoch"]
    assert rows["Computing: one epoch of all users"] == [f"{per_epoch[k] / 1e6:.0f} MMAC" for k in ("paper", "actual")]
    rounds = [json.loads(line) for line in (trained / "rounds.jsonl").read_text(encoding="utf-8").splitlines()]
    validated = {str(r["round"]): r["validation"] for r in rounds if "validation" in r}
    shown = {row[0]: row[1:] for row in page.tables["Validation over rounds, in %"][1:]}
    assert shown == {
        number: [f"{100 * found[key]:.1f}" for key in ("sa_st", "ra_at", "score")]
        for number, found in validated.items()
    }
    assert list(shown) == ["2", "4"]


def test_nothing_can_be_loaded_from_anywhere(text: str, page: Page) -> None:
    policy = next(meta["content"] for meta in page.of("meta") if meta.get("http-equiv") == "Content-Security-Policy")
    assert policy is not None
    rules = dict(rule.split(" ", 1) for rule in policy.split("; "))
    assert rules["default-src"] == "'none'"
    assert rules["img-src"] == "data:"
    for name, tag in (("style-src", "style"), ("script-src", "script")):
        content = re.findall(f"<{tag}>(.*?)</{tag}>", text, re.DOTALL)
        assert len(content) == 1
        digest = base64.b64encode(hashlib.sha256(content[0].encode()).digest()).decode()
        assert rules[name] == f"'sha256-{digest}'"
    for _, attributes in page.elements:
        assert "style" not in attributes  # the policy would refuse it
        for name in ("src", "href"):
            assert (attributes.get(name) or "#").startswith(("#", "data:"))


def test_every_table_is_named_and_every_row_and_column_too(text: str, page: Page) -> None:
    assert "" not in page.tables
    assert text.count("<caption>") == len(page.of("table"))
    assert {cell.get("scope") for cell in page.of("th")} == {"row", "col"}
    assert all(image.get("alt") for image in page.of("img"))
    assert [tag for tag, _ in page.elements if tag in {"header", "main", "nav", "footer"}] == [
        "header",
        "nav",
        "main",
        "footer",
    ]
    levels = [int(tag[1]) for tag, _ in page.elements if re.fullmatch("h[1-6]", tag)]
    assert levels[0] == levels.count(1) == 1
    assert all(after - before <= 1 for before, after in pairwise(levels))


def test_links_lead_to_places_on_the_page(page: Page) -> None:
    ids = [attributes["id"] for _, attributes in page.elements if "id" in attributes]
    assert len(ids) == len(set(ids))
    targets = [link["href"] for link in page.of("a")]
    assert len(targets) > 5
    assert {target[1:] for target in targets if target} <= set(ids)


def test_what_files_say_is_escaped(trained: Path, tmp_path: Path) -> None:
    """A client, a domain label, a method and a data set with names that are HTML."""
    run = Path(shutil.copytree(trained, tmp_path / "run"))
    inside_json = json.dumps(EVIL)[1:-1]
    for name in ("rounds.jsonl", "evaluations.jsonl", "federation.json"):
        content = (run / name).read_text(encoding="utf-8")
        for old in ("plain-0", '"plain"'):
            content = content.replace(old, f'"{inside_json}"' if old[0] == '"' else inside_json)
        (run / name).write_text(content, encoding="utf-8")
    config = (run / "config.toml").read_text(encoding="utf-8")
    (run / "config.toml").write_text(config.replace('"digits-mini"', f"'{EVIL}'"), encoding="utf-8")
    page = Page(render([run]))
    assert EVIL in page.text
    assert [tag for tag, _ in page.elements].count("script") == 1
    assert not [image for image in page.of("img") if image.get("src") == "x"]
    assert not [attributes for _, attributes in page.elements if "onerror" in attributes]
    assert any(EVIL in (mark.get("aria-label") or "") for _, mark in page.elements)
    assert "The networks could not be loaded" in page.text  # its checkpoint does not have that client


def test_the_rest_is_shown_where_the_data_are_missing(tiny: Callable[..., Experiment], tmp_path: Path) -> None:
    """A run on a folder of images that is gone by now."""
    folder, run = tmp_path / "no-such-folder", tmp_path / "run"
    for number, (domain, name, _) in enumerate(itertools.product("ab", ("cat", "dog"), range(40))):
        (folder / domain / name).mkdir(parents=True, exist_ok=True)
        Image.effect_noise((28, 28), 50).convert("RGB").save(folder / domain / name / f"{number}.png")
    own = {"fraction": 1.0, "validation": 0.2}
    fedrbn.run(tiny(data={"name": str(folder), "image_size": 28}, federation=own, train={"rounds": 1}), run)
    shutil.rmtree(folder)
    announced: list[str] = []
    page = Page(render([run], announce=announced.append))
    assert [line.partition(":")[0] for line in announced] == ["fedrbn, seed 1"]
    assert page.text.count("The run's data are needed for this and could not be used") == 2  # images and check-list
    assert "no-such-folder" in page.text
    assert "Accuracies in %, by domain and role" in page.tables
    assert any(caption.startswith("Weights α") for caption in page.tables)  # needs the checkpoint only
    assert not page.of("img")


def test_an_unfinished_run_and_one_without_a_checkpoint_have_a_page(trained: Path, tmp_path: Path) -> None:
    run = Path(shutil.copytree(trained, tmp_path / "run"))
    (run / "evaluations.jsonl").unlink()
    page = Page(render([run], images=False, checks=False))
    assert "Not finished: 4 of 4 rounds." in page.text
    assert "Validation over rounds, in %" in page.tables
    assert "Images were not requested." in page.text
    for name in ("rounds.jsonl", "best.safetensors", "last.safetensors"):
        (run / name).unlink()
    assert "Not finished: 0 of 4 rounds." in Page(render([run])).text


def test_failed_checks_raise_an_alarm(trained: Path, tmp_path: Path) -> None:
    run = Path(shutil.copytree(trained, tmp_path / "run"))
    record = json.loads((run / "evaluations.jsonl").read_text(encoding="utf-8").splitlines()[0])
    record["checks"] = [
        {"name": "gradients do not vanish", "passed": False, "detail": "present at 3.0% of inputs"},
        {"name": "black-box search does not beat the gradient attack", "passed": None, "detail": "not tried"},
    ]
    with (run / "evaluations.jsonl").open("a", encoding="utf-8") as file:
        file.write(json.dumps(record) + "\n")
    page = Page(render([run], images=False, announce=pytest.fail))  # nothing to wait for: the list is recorded
    assert "1 of these failed. Do not trust the robust accuracies before you know why." in page.text
    caption = next(name for name in page.tables if name.startswith("Warning signs"))
    assert caption.endswith("measured by fedrbn evaluate on samples of every user")
    assert [row[2] for row in page.tables[caption]] == ["result", "✗ FAILED", "? NOT MEASURED"]
    assert "1 of these could not be measured. What they test is unchecked." in page.text
    # Records of earlier versions, such as this one, do not say what a line judges nor what it allows.
    assert page.tables[caption][1] == ["all", "gradients do not vanish", "✗ FAILED", "present at 3.0% of inputs", ""]


def test_several_runs_and_a_reproduced_table_share_a_page(trained: Path, rival: Path, result: Path) -> None:
    page = Page(render([trained, rival, result], images=False, checks=False))
    assert "Accuracies in %, mean over users" in page.tables
    assert "Sample by sample" in page.text
    grid = page.tables["Digits: our number and the paper's number"]
    assert grid[0] == ["", "20\u00a0% RA", "paper", "20\u00a0% SA", "paper", "20\u00a0% T", "paper"]
    # means of 41, 43 and 80, 82; standard deviation |a − b| / √2 = 1.41…
    assert grid[1] == ["FedRBN", "42.0 ± 1.4", "62.0", "81.0 ± 1.4", "84.9", "0.00612 ± 0", "7.4"]
    assert grid[2] == ["<script>alert(1)</script>", "", "60.0", "", "87.3", "", ""]
    scatter = page.tables["Robust over standard accuracy (20 %), in %"]
    assert scatter[1:] == [
        ["FedRBN", "ours", "81.0", "42.0"],
        ["FedRBN", "paper", "84.9", "62.0"],
        ["<script>alert(1)</script>", "paper", "87.3", "60.0"],
    ]
    assert [tag for tag, _ in page.elements].count("script") == 1
    assert "Digits (run on digits-mini)" in page.text


def test_the_same_run_gives_the_same_page(trained: Path, text: str) -> None:
    assert render([trained], checks=False) == text


def test_the_file_is_written_where_it_was_asked_for(trained: Path, tmp_path: Path) -> None:
    out = write_report([trained], tmp_path / "new" / "report.html", images=False, checks=False)
    assert out.read_text(encoding="utf-8").startswith("<!DOCTYPE html>")
    with pytest.raises(StorageError, match=r"which is a directory; expected the name of a file"):
        write_report([trained], tmp_path, images=False, checks=False)
    (tmp_path / "file").write_text("")
    with pytest.raises(StorageError, match=r"cannot be written .*Choose another -o"):
        write_report([trained], tmp_path / "file" / "report.html", images=False, checks=False)
