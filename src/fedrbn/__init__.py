"""Federated Robustness Propagation (FedRBN): robustness shared through batch-norm statistics.

    import fedrbn
    record = fedrbn.run(fedrbn.make({"data": {"name": "digits-mini"}, "train": {"rounds": 5}}), "runs/first")
    network = fedrbn.load("runs/first").client("pen-1")     # an ordinary PyTorch network, pixels in [0, 1]

Names are imported when first used, so that `import fedrbn` and the command line's help are instant.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from fedrbn.attacks import PGD as PGD
    from fedrbn.config import Experiment as Experiment
    from fedrbn.config import make as make
    from fedrbn.data.samples import DataSet as DataSet
    from fedrbn.data.samples import Domain as Domain
    from fedrbn.data.samples import Samples as Samples
    from fedrbn.federated.methods import Method as Method
    from fedrbn.federated.server import federate as federate
    from fedrbn.nets.dual_bn import DualNet as DualNet
    from fedrbn.nets.dual_bn import dual as dual
    from fedrbn.nets.dual_bn import plain as plain
    from fedrbn.nets.dual_bn import single as single
    from fedrbn.runs.load import Trained as Trained
    from fedrbn.runs.load import load as load
    from fedrbn.runs.train import evaluate as evaluate
    from fedrbn.runs.train import resume as resume
    from fedrbn.runs.train import run as run
    from fedrbn.types import Branch as Branch
    from fedrbn.types import Role as Role
    from fedrbn.types import Stats as Stats

_HOME = {
    "Branch": "fedrbn.types",
    "DataSet": "fedrbn.data.samples",
    "Domain": "fedrbn.data.samples",
    "DualNet": "fedrbn.nets.dual_bn",
    "Experiment": "fedrbn.config",
    "Method": "fedrbn.federated.methods",
    "PGD": "fedrbn.attacks",
    "Role": "fedrbn.types",
    "Samples": "fedrbn.data.samples",
    "Stats": "fedrbn.types",
    "Trained": "fedrbn.runs.load",
    "dual": "fedrbn.nets.dual_bn",
    "evaluate": "fedrbn.runs.train",
    "federate": "fedrbn.federated.server",
    "load": "fedrbn.runs.load",
    "make": "fedrbn.config",
    "plain": "fedrbn.nets.dual_bn",
    "resume": "fedrbn.runs.train",
    "run": "fedrbn.runs.train",
    "single": "fedrbn.nets.dual_bn",
}

__all__ = sorted(_HOME)  # noqa: PLE0605  (a list of names; a test pins them)


def __getattr__(name: str) -> object:
    if name not in _HOME:
        raise AttributeError(f"module 'fedrbn' has no attribute {name!r}")
    return getattr(importlib.import_module(_HOME[name]), name)


def __dir__() -> list[str]:
    return sorted(_HOME)
