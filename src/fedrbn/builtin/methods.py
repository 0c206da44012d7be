"""The federated methods that `method.name` can name: each a function of the attack that returns a `Method`."""

from __future__ import annotations

from collections.abc import Mapping

from fedrbn.builtin import BuiltIn

_HOME = "fedrbn.federated.methods"

METHODS: Mapping[str, BuiltIn] = {
    "fedrbn": BuiltIn(f"{_HOME}:fedrbn", "the paper's: dual, local batch norm; BN_a propagated to ST users"),
    "fedrbn+": BuiltIn(f"{_HOME}:fedrbn_plus", "ours: FedRBN whose ST users calibrate with a one-step attack"),
    "fatavg": BuiltIn(f"{_HOME}:fatavg", "FedAvg whose AT users train adversarially"),
    "fatprox": BuiltIn(f"{_HOME}:fatprox", "FATAvg with FedProx's proximal term"),
    "fatbn": BuiltIn(f"{_HOME}:fatbn", "FATAvg with local batch norm, as in FedBN"),
    "fatavg+dbn": BuiltIn(f"{_HOME}:fatavg_dbn", "FATAvg with dual batch norm"),
    "fatmeta": BuiltIn(f"{_HOME}:fatmeta", "first-order Per-FedAvg with adversarial training"),
    "fedrob": BuiltIn(f"{_HOME}:fedrob", "FedAvg whose AT users train against an affine shift of their images"),
    "local-at": BuiltIn(f"{_HOME}:local_at", "no federation: everybody trains alone"),
    "fedrbn-noprop": BuiltIn(f"{_HOME}:fedrbn_noprop", "FedRBN without propagation"),
    "fatavg-free": BuiltIn(f"{_HOME}:fatavg_free", "FATAvg whose AT users train by Free AT"),
    "fatbn-free": BuiltIn(f"{_HOME}:fatbn_free", "FATBN whose AT users train by Free AT"),
    "finetune": BuiltIn(f"{_HOME}:finetune", "FedAvg among the AT users, then fine-tuning among the ST users"),
}
