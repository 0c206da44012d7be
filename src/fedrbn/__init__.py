"""Federated Robustness Propagation (FedRBN): clients that can afford adversarial training make the others robust too.

    import fedrbn

    experiment = fedrbn.make({"data": {"name": "digits-mini"}, "train": {"rounds": 5}})
    evaluation = fedrbn.run(experiment, "runs/first")       # evaluation["mean"]["ra"]
    trained = fedrbn.load("runs/first")
    network = trained.client("pen-1")                       # an ordinary PyTorch network, pixels in [0, 1]

Every command has a function: `run`, `resume`, `evaluate`, `compare`, `export_client`, `open_model`, `predict`,
`onboard`, `plan_fleet`, `count_cost`, `reproduce_experiment`, `write_report`. Names are imported when they are first
used, so `import fedrbn` is instant.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from fedrbn.attacks import PGD as PGD
    from fedrbn.config import Experiment as Experiment
    from fedrbn.config import make as make
    from fedrbn.config import read as read_settings  # noqa: F401
    from fedrbn.cost.count import cost as count_cost  # noqa: F401
    from fedrbn.data.samples import DataSet as DataSet
    from fedrbn.data.samples import Domain as Domain
    from fedrbn.data.samples import Samples as Samples
    from fedrbn.evaluation.protocol import EvaluationSettings as EvaluationSettings
    from fedrbn.evaluation.results import Evaluation as Evaluation
    from fedrbn.evaluation.results import MethodComparison as MethodComparison
    from fedrbn.federated.methods import Method as Method
    from fedrbn.federated.server import federate as federate
    from fedrbn.models.export import export_client as export_client
    from fedrbn.models.model_file import predict as predict
    from fedrbn.models.model_file import read as open_model  # noqa: F401
    from fedrbn.models.onboarded import onboard as onboard
    from fedrbn.nets.dual_bn import DualNet as DualNet
    from fedrbn.nets.dual_bn import dual as dual
    from fedrbn.nets.dual_bn import plain as plain
    from fedrbn.nets.dual_bn import single as single
    from fedrbn.report import write_report as write_report
    from fedrbn.reproduce.by_name import reproduce_experiment as reproduce_experiment
    from fedrbn.runs.load import Trained as Trained
    from fedrbn.runs.load import load as load
    from fedrbn.runs.plan_fleet import plan_fleet as plan_fleet
    from fedrbn.runs.sweep import compare as compare
    from fedrbn.runs.train import evaluate as evaluate
    from fedrbn.runs.train import resume as resume
    from fedrbn.runs.train import run as run
    from fedrbn.types import Branch as Branch
    from fedrbn.types import Role as Role
    from fedrbn.types import Stats as Stats

_HOME = {
    "Branch": "fedrbn.types:Branch",
    "DataSet": "fedrbn.data.samples:DataSet",
    "Domain": "fedrbn.data.samples:Domain",
    "DualNet": "fedrbn.nets.dual_bn:DualNet",
    "Evaluation": "fedrbn.evaluation.results:Evaluation",
    "EvaluationSettings": "fedrbn.evaluation.protocol:EvaluationSettings",
    "Experiment": "fedrbn.config:Experiment",
    "Method": "fedrbn.federated.methods:Method",
    "MethodComparison": "fedrbn.evaluation.results:MethodComparison",
    "PGD": "fedrbn.attacks:PGD",
    "Role": "fedrbn.types:Role",
    "Samples": "fedrbn.data.samples:Samples",
    "Stats": "fedrbn.types:Stats",
    "Trained": "fedrbn.runs.load:Trained",
    "compare": "fedrbn.runs.sweep:compare",
    "count_cost": "fedrbn.cost.count:cost",
    "dual": "fedrbn.nets.dual_bn:dual",
    "evaluate": "fedrbn.runs.train:evaluate",
    "export_client": "fedrbn.models.export:export_client",
    "federate": "fedrbn.federated.server:federate",
    "load": "fedrbn.runs.load:load",
    "make": "fedrbn.config:make",
    "onboard": "fedrbn.models.onboarded:onboard",
    "open_model": "fedrbn.models.model_file:read",
    "plain": "fedrbn.nets.dual_bn:plain",
    "plan_fleet": "fedrbn.runs.plan_fleet:plan_fleet",
    "predict": "fedrbn.models.model_file:predict",
    "read_settings": "fedrbn.config:read",
    "reproduce_experiment": "fedrbn.reproduce.by_name:reproduce_experiment",
    "resume": "fedrbn.runs.train:resume",
    "run": "fedrbn.runs.train:run",
    "single": "fedrbn.nets.dual_bn:single",
    "write_report": "fedrbn.report:write_report",
}

__version__ = "0.2.0"

__all__ = sorted(_HOME)  # noqa: PLE0605  (a list of names; a test pins them)


def __getattr__(name: str) -> object:
    if name not in _HOME:
        raise AttributeError(f"module 'fedrbn' has no attribute {name!r}")
    module, _, found = _HOME[name].partition(":")
    return getattr(importlib.import_module(module), found)


def __dir__() -> list[str]:
    return sorted(_HOME)
