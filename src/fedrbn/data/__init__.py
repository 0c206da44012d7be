"""Domains of images, and federations of users made from them.

    dataset = load("digits-mini")
    federation = build(dataset, FederationConfig(), seed=1)      # from fedrbn.data.federation

Importing this package is cheap: PyTorch and the data are loaded when `load` is called.
"""

from __future__ import annotations

from pathlib import PurePath
from typing import TYPE_CHECKING

from fedrbn.builtin.data_sets import AVAILABLE as AVAILABLE
from fedrbn.builtin.data_sets import Description as Description
from fedrbn.builtin.data_sets import folder_named
from fedrbn.errors import ConfigError, DataError

if TYPE_CHECKING:
    from fedrbn.data.samples import DataSet, Federation


def load(name: str, image_size: int | None = None) -> DataSet | Federation:
    """A data set by name, by the path of an image folder, or by `package.module:object`.

    The object is a `DataSet`, a `Federation` whose clients already have their data, or a function that takes
    image_size (a number of pixels, or None for the data's own size) and returns one of these.
    """
    from fedrbn.config import plugins  # noqa: PLC0415  (keeps the import of this package cheap)

    if name == plugins.GIVEN:
        raise plugins.given_again("data")
    if name in AVAILABLE:
        loaded: DataSet = AVAILABLE[name](image_size)
        return loaded
    folder = folder_named(name)
    if folder is not None:
        from fedrbn.data.sets.folder import image_folder  # noqa: PLC0415

        return image_folder(folder, image_size)
    if plugins.is_reference(name):
        return _load_own(name, image_size)
    if len(PurePath(name).parts) > 1:
        raise DataError(
            f"got data {name!r}, which is not a folder; expected <root>/<domain>/<class>/*.jpg|jpeg|png|webp. "
            f"Correct the path, or use one of {', '.join(AVAILABLE)}."
        )
    raise ConfigError(f"{plugins.unknown('data', name, AVAILABLE)} There is no folder {name!r} either.")


def _load_own(name: str, image_size: int | None) -> DataSet | Federation:
    from fedrbn.config import plugins  # noqa: PLC0415
    from fedrbn.data.samples import DataSet, Federation  # noqa: PLC0415

    found = plugins.resolve(name)
    if not isinstance(found, DataSet | Federation) and not plugins.accepts(found, 1):
        raise DataError(plugins.wrong_signature("data", name, found))
    made = plugins.called("data", name, found, image_size) if callable(found) else found
    if not isinstance(made, DataSet | Federation):
        raise DataError(
            f"got {type(made).__name__} from {name!r}; expected a fedrbn.data.samples.DataSet or Federation, or a "
            "function of image_size that returns one."
        )
    sides = made.image_shape[1:]
    if image_size is not None and sides != (image_size, image_size):
        raise DataError(
            f"got images of {sides[0]} x {sides[1]} from {name!r}; expected data.image_size = {image_size}. "
            "Remove data.image_size, or refer to a function of image_size that returns the images in that size."
        )
    return made
