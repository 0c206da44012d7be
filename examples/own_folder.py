"""Train on your own folder of images: root/<domain>/<class>/*.png.

    python examples/own_folder.py [RESULTS_FOLDER]

The example draws its images, discs and squares from two cameras, so that it runs anywhere.
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
from PIL import Image, ImageDraw

import fedrbn


def draw(root: Path) -> None:
    """Draw 60 images for each camera and class."""
    random = np.random.default_rng(0)
    for camera, ground in {"indoor": 60, "outdoor": 170}.items():
        for shape in ("disc", "square"):
            folder = root / camera / shape
            folder.mkdir(parents=True, exist_ok=True)
            for number in range(60):
                image = Image.fromarray(random.integers(ground, ground + 40, (32, 32, 3), dtype=np.uint8))
                left, top = (int(side) for side in random.integers(2, 14, 2))
                pen = ImageDraw.Draw(image)
                (pen.ellipse if shape == "disc" else pen.rectangle)((left, top, left + 14, top + 14), fill="white")
                image.save(folder / f"{number}.png")


def main(folder: Path) -> None:
    """Draw the images, train, and print the accuracies of both cameras."""
    draw(folder / "photos")
    experiment = fedrbn.make({
        "data": {"name": str(folder / "photos"), "image_size": 28},
        "federation": {"users_per_domain": 2, "fraction": 1.0, "at": ["indoor"]},
        "model": {"width": 0.125},
        "train": {"rounds": 3, "batch_size": 8},
        "run": {"workers": 1},
    })  # fmt: skip
    evaluation = fedrbn.run(experiment, folder / "run", force=True)
    for domain, found in evaluation["domains"].items():
        print(f"{domain}: SA {found['sa']:.0%}, RA {found['ra']:.0%}")


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else "own_folder"))
