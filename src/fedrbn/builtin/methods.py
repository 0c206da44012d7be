"""The federated methods that `method.name` can name: each a function of the attack that returns a `Method`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from fedrbn.builtin import BuiltIn

_HOME = "fedrbn.federated.methods"


@dataclass(frozen=True)
class MethodEntry(BuiltIn):
    """A method, and the name that its ST users receive."""

    for_st: str | None = None
    """A method with the same ST users that needs no attack; a node that never attacks gets this name instead."""


METHODS: Mapping[str, MethodEntry] = {
    "fedrbn": MethodEntry(f"{_HOME}:fedrbn", "the paper's: dual, local batch norm; BN_a propagated to ST users"),
    "fedrbn+": MethodEntry(f"{_HOME}:fedrbn_plus", "ours: FedRBN whose ST users calibrate with a one-step attack"),
    "fedavg": MethodEntry(f"{_HOME}:fedavg", "plain FedAvg, without adversarial training"),
    "fedbn": MethodEntry(f"{_HOME}:fedbn", "plain FedBN: FedAvg with local batch norm, without adversarial training"),
    "fatavg": MethodEntry(f"{_HOME}:fatavg", "FedAvg whose AT users train adversarially"),
    "fatprox": MethodEntry(f"{_HOME}:fatprox", "FATAvg with FedProx's proximal term"),
    "fatbn": MethodEntry(f"{_HOME}:fatbn", "FATAvg with local batch norm, as in FedBN"),
    "fatavg+dbn": MethodEntry(f"{_HOME}:fatavg_dbn", "FATAvg with dual batch norm"),
    "fatmeta": MethodEntry(f"{_HOME}:fatmeta", "first-order Per-FedAvg with adversarial training"),
    "fedrob": MethodEntry(f"{_HOME}:fedrob", "FedAvg whose AT users train against an affine shift of their images"),
    "local-at": MethodEntry(f"{_HOME}:local_at", "no federation: every user trains alone"),
    "fedrbn-noprop": MethodEntry(f"{_HOME}:fedrbn_noprop", "FedRBN without propagation"),
    "fatavg-free": MethodEntry(f"{_HOME}:fatavg_free", "FATAvg whose AT users train by Free AT", for_st="fatavg"),
    "fatbn-free": MethodEntry(f"{_HOME}:fatbn_free", "FATBN whose AT users train by Free AT", for_st="fatbn"),
    "finetune": MethodEntry(f"{_HOME}:finetune", "FedAvg among the AT users, then fine-tuning among the ST users"),
}
