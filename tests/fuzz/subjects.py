"""All kinds of hostile input, and what has to be there before they are tried."""

from __future__ import annotations

from fuzz import configs, files, network, trained
from fuzz.cases import Subject

SUBJECTS: list[Subject] = [*configs.SUBJECTS, *files.SUBJECTS, *trained.SUBJECTS, *network.SUBJECTS]


def warm_up() -> None:
    """Train the run that is damaged, and with it draw the embedded digits: cases only read these."""
    trained.original()
    trained.model(".safetensors")
    trained.model(".onnx")
