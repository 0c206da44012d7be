"""The data of a site that fails when it is told to: by a file named `fault` in the folder of its node."""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path

from fedrbn.data import load
from fedrbn.data.samples import DataSet
from fedrbn.flower.site import SiteData

NEVER = 3600.0
"""Seconds; longer than any deadline of a test."""


def images(node_config: Mapping[str, object]) -> SiteData:
    """Twenty-four digits to train with and eight to be tested with; `raise` and `sleep` are what it can be told."""
    told = Path("fault").read_text().strip() if Path("fault").exists() else ""
    if told == "raise":
        raise RuntimeError("the disk with the images is gone")
    if told == "sleep":
        time.sleep(NEVER)
    digits = load("digits-mini", None)
    assert isinstance(digits, DataSet)
    domain = str(node_config["domain"])
    source = digits.only((domain,)).domains[0]
    return SiteData(
        domain=domain,
        classes=digits.classes,
        train=source.train.first(24),
        validation=source.train.first(0),
        test=source.test.first(8),
    )
