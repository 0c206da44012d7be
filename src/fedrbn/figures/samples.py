"""Images of every domain, to see how they differ."""

from __future__ import annotations

import numpy as np
from matplotlib.figure import Figure
from numpy.typing import NDArray
from torch import Tensor

from fedrbn import data
from fedrbn.data.federation import pooled
from fedrbn.data.samples import DataSet, Federation
from fedrbn.figures import style
from fedrbn.figures.sources import Request

DEFAULT = "digits"
"""The paper's first data set."""


def samples(request: Request) -> Figure:
    """One image of each class in each domain."""
    name = request.data or DEFAULT
    loaded = data.load(name)
    dataset = pooled(loaded, name) if isinstance(loaded, Federation) else loaded
    return sheet(dataset)


def sheet(dataset: DataSet) -> Figure:
    """Rows are domains, columns classes: the first training image of each; empty if there is none."""
    rows, columns = len(dataset.domains), len(dataset.classes)
    figure = style.page(style.TEXT, 0.45 + 0.98 * style.TEXT / (columns + 1) * rows)
    panels = figure.subplots(rows, columns, squeeze=False)
    for row, domain in zip(panels, dataset.domains, strict=True):
        for label, axes in enumerate(row):
            found = (domain.train.labels == label).nonzero()
            if len(found):
                axes.imshow(_picture(domain.train.images[int(found[0])]), cmap="gray", vmin=0, vmax=255)
            axes.set(xticks=[], yticks=[])
            axes.grid(visible=False)
            axes.spines[:].set_visible(False)
        row[0].set_ylabel(domain.label.replace(" (", "\n("), rotation=0, ha="right", va="center")
    for axes, name in zip(panels[0], dataset.classes, strict=True):
        axes.set_title(name, fontsize=8 if len(name) < 8 else 6)
    return style.finish(figure, f"{dataset.name}: the first training image of each class in each domain.")


def _picture(image: Tensor) -> NDArray[np.uint8]:
    """[height, width, 3], or [height, width] of one channel."""
    pixels: NDArray[np.uint8] = image.permute(1, 2, 0).numpy()
    return pixels[:, :, 0] if pixels.shape[2] == 1 else pixels
