"""Use your own network and your own images, from training to a file to deploy.

    python examples/own_network.py [RESULTS_FOLDER]

The network is any nn.Module with batch norm. The images are any uint8 tensors. The settings name both as
`module:function`. The same names work in a TOML file and on the command line.
"""

from __future__ import annotations

import sys
from pathlib import Path

import torch
from torch import Tensor, nn

import fedrbn


def network(classes: int, channels: int) -> nn.Module:
    """Your network: pixels in [0, 1] to logits."""
    return nn.Sequential(
        nn.Conv2d(channels, 8, kernel_size=3, stride=2, padding=1),
        nn.BatchNorm2d(8),
        nn.ReLU(),
        nn.Conv2d(8, 16, kernel_size=3, stride=2, padding=1),
        nn.BatchNorm2d(16),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(4),
        nn.Flatten(),
        nn.Linear(16 * 4 * 4, classes),
    )


def pictures(image_size: int | None) -> fedrbn.DataSet:
    """Your images: horizontal or vertical stripes from a dark and a bright camera. They are easy on purpose."""
    random = torch.Generator().manual_seed(0)

    def samples(count: int, light: int) -> fedrbn.Samples:
        labels = torch.arange(count) % 2
        side = image_size or 16
        images = torch.randint(0, 80, (count, 3, side, side), generator=random) + light
        for image, label in zip(images, labels, strict=True):
            stripes = image[:, ::2, :] if label else image[:, :, ::2]
            stripes += 60
        return fedrbn.Samples(images.clamp(0, 255).to(torch.uint8), labels)

    cameras = {"dark": 0, "bright": 90}
    domains = (fedrbn.Domain(name, samples(120, light), samples(40, light), name) for name, light in cameras.items())
    return fedrbn.DataSet("stripes", tuple(domains), ("vertical", "horizontal"))


def main(folder: Path) -> Tensor:
    """Train, evaluate, export, predict."""
    experiment = fedrbn.make(
        {
            "model": {"name": "own_network:network"},
            "data": {"name": "own_network:pictures"},
            "federation": {"users_per_domain": 2, "at": 0.5, "fraction": 1.0, "validation": 0.25},
            "train": {"rounds": 20, "lr": 0.05, "batch_size": 10, "validate_every": 10},
            "attack": {"eps": "4/255", "step_size": "1/255"},
            "run": {"workers": 1},
        }
    )
    record = fedrbn.run(experiment, folder / "run", force=True)
    print(f"mean over users: SA {record['mean']['sa']:.0%}, RA {record['mean']['ra']:.0%}")

    exported = fedrbn.export_client(folder / "run", "bright-1", folder / "bright.safetensors")
    print(f"exported {exported.path.name}: {exported.bytes_after} bytes, logits agree to {exported.deviation:.0e}")

    model = fedrbn.open_model(exported.path, network="own_network:network")
    pixels, labels = pictures(None).domains[1].test.pixels(slice(0, 8))
    right = model.logits(pixels).argmax(1) == labels
    print(f"the file gets {int(right.sum())} of {len(right)} right")
    return right


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else "stripes"))
