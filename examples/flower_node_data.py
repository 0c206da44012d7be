"""Give a Flower node its own data. The images never leave the node.

    python examples/flower_node_data.py          # prints what the node would train on

Copy this file into the node's folder and change `images`. Then name the function in the node's node.toml:

    name = "clinic-1"
    data = "flower_node_data:images"
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import torch
from sklearn.datasets import load_digits

from fedrbn import Samples
from fedrbn.flower.site import SiteData


def images(node_config: Mapping[str, object]) -> SiteData:
    """Training, validation and test data without common images: uint8 pixels [n, 3, height, width], int64 labels."""
    found = load_digits()
    pixels = np.kron(found.images * 15.9375, np.ones((1, 4, 4))).astype(np.uint8)[:, 2:30, 2:30]
    everything = torch.from_numpy(pixels)[:, None].repeat(1, 3, 1, 1)
    labels = torch.from_numpy(found.target)
    train, validation, test = (Samples(everything[part], labels[part]) for part in (
        slice(0, 400), slice(400, 500), slice(500, 700),
    ))  # fmt: skip
    return SiteData(
        str(node_config.get("domain", "scans")), tuple(str(digit) for digit in range(10)), train, validation, test
    )


if __name__ == "__main__":
    site = images({})
    print(f"domain {site.domain}, classes {', '.join(site.classes)}")
    print(f"{len(site.train)} images to train, {len(site.validation)} to validate, {len(site.test)} to test")
