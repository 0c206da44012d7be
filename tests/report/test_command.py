"""fedrbn report, and the page that fedrbn compare writes."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from fedrbn import cli


def command(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> int:
    monkeypatch.setattr(sys, "argv", ["fedrbn", *arguments])
    monkeypatch.setattr(sys, "path", list(sys.path))
    try:
        cli.main()
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else 0
    return 0


def test_report_names_the_file_it_wrote(
    trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "page.html"
    assert command(monkeypatch, "report", str(trained), "-o", str(out), "--no-images", "--no-checks") == 0
    assert capsys.readouterr().err == f"wrote {out}\n"
    assert out.is_file()


def test_report_refuses_what_holds_no_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert command(monkeypatch, "report", str(tmp_path)) == 2
    assert capsys.readouterr().err.startswith(f"error: got {tmp_path}, which contains no run")


def test_compare_writes_a_page_and_names_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tiny_options: list[str]
) -> None:
    out = tmp_path / "report.html"
    asked = ["compare", "--methods", "fedrbn,fatbn", "--rounds", "1", "--out", str(tmp_path / "store"), "-q"]
    assert command(monkeypatch, *asked, *tiny_options, "--report", str(out)) == 0
    assert capsys.readouterr().err.splitlines()[-1] == f"report: {out}"
    page = out.read_text(encoding="utf-8")
    assert page.index(">fedrbn, seed 1<") < page.index(">fatbn, seed 1<")  # in the order asked for
