"""Attacks: values that are called with a loss (or logits and labels), pixels in [0, 1] and a random generator."""

from fedrbn.attacks.pgd import PGD
from fedrbn.attacks.protocols import Attack, Logits, LogitsAttack, Loss, Untargeted
from fedrbn.attacks.threat import from_config

__all__ = ["PGD", "Attack", "Logits", "LogitsAttack", "Loss", "Untargeted", "from_config"]
