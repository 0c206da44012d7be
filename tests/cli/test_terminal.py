"""What the commands print on terminals of other encodings."""

from __future__ import annotations

import io
import subprocess
import sys
from pathlib import Path

import pytest

from fedrbn import cli


@pytest.mark.parametrize("encoding", ["ascii", "latin-1", "utf-8"])
def test_a_terminal_without_greek_letters_gets_escapes(encoding: str, monkeypatch: pytest.MonkeyPatch) -> None:
    page = io.BytesIO()
    monkeypatch.setattr("sys.stdout", io.TextIOWrapper(page, encoding=encoding))
    monkeypatch.setattr("sys.argv", ["fedrbn", "settings"])
    with pytest.raises(SystemExit) as end:
        cli.main()
    sys.stdout.flush()
    assert end.value.code == 0
    assert ("λ" if encoding == "utf-8" else "\\u03bb") in page.getvalue().decode(encoding)


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="/dev/full does not exist here")
def test_output_on_a_full_disk_is_an_error_message() -> None:
    command = [sys.executable, "-c", "from fedrbn.cli import main; main()", "settings"]
    with Path("/dev/full").open("w") as full:
        ended = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, check=False)
    assert ended.returncode == 2
    assert "got no space for the output; expected a disk with free space." in ended.stderr
    assert "Traceback" not in ended.stderr
