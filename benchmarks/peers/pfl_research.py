"""Apple's pfl-research: its SimulatedBackend, FederatedAveraging and PyTorchModel.

It averages trainable parameters. FedAvg with batch norm also averages running statistics, and FedBN keeps all of batch
norm with the user. This needs only a model with a different map of variables and an algorithm that loads a user's batch
norm.
"""

from __future__ import annotations

import types
from typing import Any

import torch
import torch.nn.functional as F
from pfl.aggregate.simulate import SimulatedBackend
from pfl.algorithm.base import NNAlgorithmParams
from pfl.algorithm.federated_averaging import FederatedAveraging
from pfl.callback.base import TrainingProcessCallback
from pfl.data.dataset import Dataset
from pfl.data.federated_dataset import FederatedDataset
from pfl.data.sampling import get_user_sampler
from pfl.hyperparam import NNTrainHyperParams
from pfl.metrics import Metrics, Weighted
from pfl.model.pytorch import PyTorchModel
from workload import BATCH, LR, State, Tell, Work, shared_names


class SharedModel(PyTorchModel):
    """A model that averages these tensors; the mean change is added unscaled."""

    def __init__(self, module: torch.nn.Module, names: list[str]) -> None:
        super().__init__(module, torch.optim.SGD, torch.optim.SGD(module.parameters(), lr=1.0))
        tensors = module.state_dict(keep_vars=True)
        self._variable_map = {name: tensors[name] for name in names}

    @torch.no_grad()
    def apply_model_update(self, statistics: Any) -> tuple[PyTorchModel, Metrics]:
        """Add the mean change."""
        for name, difference in statistics.items():
            self.variable_map[name].data.add_(difference)
        return self, Metrics()


class OwnTensors(FederatedAveraging):
    """FedAvg in which each user keeps the tensors of the model that are not averaged."""

    def __init__(self, kept: list[State]) -> None:
        super().__init__()
        self.kept = kept

    def train_one_user(self, initial_model_state: Any, model: Any, user_dataset: Any, central_context: Any) -> Any:
        """Train with the user's own tensors, and keep them."""
        own, tensors = self.kept[int(user_dataset.user_id)], model.pytorch_model.state_dict()
        for name, value in own.items():
            tensors[name].copy_(value)
        made = super().train_one_user(initial_model_state, model, user_dataset, central_context)
        for name, value in own.items():
            value.copy_(tensors[name])
        return made


class Rounds(TrainingProcessCallback):
    """Counts central iterations, which decide the order of batches."""

    def __init__(self, tell: Tell) -> None:
        self.tell = tell
        self.number = 0

    def after_central_iteration(self, aggregate_metrics: Any, model: Any, *, central_iteration: int) -> Any:  # noqa: ARG002
        """A round is over."""
        self.number = central_iteration + 1
        self.tell()
        return False, Metrics()


@torch.no_grad()
def _metrics(self: torch.nn.Module, x: torch.Tensor, y: torch.Tensor) -> dict[str, Weighted]:
    loss = F.cross_entropy(self.eval()(x), y, reduction="sum").item()
    return {"loss": Weighted(loss, len(y))}


def train(work: Work, method: str, tell: Tell) -> list[State]:
    """Central iterations with every user, without evaluation."""
    net = work.network()
    net.loss = types.MethodType(lambda self, x, y: F.cross_entropy(self.train()(x), y), net)
    net.metrics = types.MethodType(_metrics, net)
    names = shared_names(net, method)
    own = [name for name in net.state_dict() if name not in names]
    kept = [{name: net.state_dict()[name].clone() for name in own} for _ in work.images]
    rounds, users = Rounds(tell), list(range(len(work.images)))

    def user(number: int) -> Dataset:
        order = work.order[rounds.number][number]
        return Dataset([work.images[number][order], work.labels[number][order]], user_id=str(number))

    data = FederatedDataset(user, get_user_sampler("minimize_reuse", users))
    # users are evaluated only in the first round, the warm-up
    params = NNAlgorithmParams(work.rounds, work.rounds, train_cohort_size=len(users), val_cohort_size=0)
    local = NNTrainHyperParams(local_num_epochs=1, local_learning_rate=LR, local_batch_size=BATCH)
    model = SharedModel(net, names)
    backend = SimulatedBackend(data, val_data=None)
    algorithm = OwnTensors(kept)
    algorithm.run(params, backend, model, local, callbacks=[rounds], send_metrics_to_platform=False)
    shared = {name: net.state_dict()[name].clone() for name in names}
    return [shared | user_own for user_own in kept]
