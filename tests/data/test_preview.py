from __future__ import annotations

from pathlib import Path

import torch
from PIL import Image

from fedrbn.data.preview import contact_sheet
from fedrbn.data.samples import DataSet, Domain, Samples


def _data(labels: list[int], channels: int = 3, side: int = 28) -> DataSet:
    """Image i is flat with brightness 10 i."""
    grey = (10 * torch.arange(len(labels), dtype=torch.uint8)).reshape(-1, 1, 1, 1)
    part = Samples(grey.repeat(1, channels, side, side), torch.tensor(labels))
    return DataSet("flat", (Domain("a", part, part, "A"), Domain("b", part, part, "B")), ("x", "y", "z"))


def _cells(path: Path, columns: int, rows: int, domain: int = 0) -> list[int]:
    """Brightness in the middle of every cell: 60 pixels apart, 4 from the left, below a caption of 22."""
    with Image.open(path) as image:
        sheet = image.convert("L")
    top = domain * (22 + rows * 60) + 22
    pixels = [sheet.getpixel((4 + 60 * c + 28, top + 60 * r + 28)) for r in range(rows) for c in range(columns)]
    return [int(pixel) for pixel in pixels if isinstance(pixel, int)]


def test_classes_take_turns(tmp_path: Path) -> None:
    # Class x is images 0, 1, 5; y is 2, 4; z is 3. In turn: 0 2 3, then 1 4, then 5.
    contact_sheet(_data([0, 0, 1, 2, 1, 0]), tmp_path / "sheet.png", rows=2, columns=3)
    assert _cells(tmp_path / "sheet.png", columns=3, rows=2) == [0, 20, 30, 10, 40, 50]
    assert _cells(tmp_path / "sheet.png", columns=3, rows=2, domain=1) == [0, 20, 30, 10, 40, 50]


def test_few_images_leave_cells_blank(tmp_path: Path) -> None:
    contact_sheet(_data([0, 1]), tmp_path / "sheet.png", rows=1, columns=3)
    assert _cells(tmp_path / "sheet.png", columns=3, rows=1) == [0, 10, 255]


def test_grey_and_large_images_fit(tmp_path: Path) -> None:
    contact_sheet(_data([0, 1, 2], channels=1, side=100), tmp_path / "sheet.png", rows=1, columns=3)
    assert _cells(tmp_path / "sheet.png", columns=3, rows=1) == [0, 10, 20]


def test_the_same_data_give_the_same_file(mini: DataSet, tmp_path: Path) -> None:
    contact_sheet(mini, tmp_path / "one.png")
    contact_sheet(mini, tmp_path / "two.png")
    assert (tmp_path / "one.png").read_bytes() == (tmp_path / "two.png").read_bytes()
    with Image.open(tmp_path / "one.png") as sheet:
        assert sheet.size == (12 * 60 + 4, 5 * (22 + 4 * 60) + 4)
