"""Attacks: values that are called with a loss (or logits and labels), pixels in [0, 1] and a random generator."""

from fedrbn.attacks.autoattack import AutoAttack
from fedrbn.attacks.corruptions import Corruption, Oblivious
from fedrbn.attacks.local_search import LocalSearch
from fedrbn.attacks.named import attack_named, described, epsilon, with_eps
from fedrbn.attacks.pgd import PGD
from fedrbn.attacks.protocols import Attack, Logits, LogitsAttack, Loss, Margin, Untargeted
from fedrbn.attacks.threat import from_config

__all__ = [
    "PGD",
    "Attack",
    "AutoAttack",
    "Corruption",
    "LocalSearch",
    "Logits",
    "LogitsAttack",
    "Loss",
    "Margin",
    "Oblivious",
    "Untargeted",
    "attack_named",
    "described",
    "epsilon",
    "from_config",
    "with_eps",
]
