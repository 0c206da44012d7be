"""What the commands print on terminals of other encodings."""

from __future__ import annotations

import io
import sys

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
