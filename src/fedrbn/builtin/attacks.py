"""The attacks that `attack.name` and `fedrbn evaluate --attacks` can name, and the paper's settings of them.

Each entry is a function that returns the attack. Its parameters that are numbers, text or booleans are the settings
that a text such as `pgd:steps=50,eps=8/255` can set.
"""

from __future__ import annotations

from collections.abc import Mapping

from fedrbn.builtin import BuiltIn

ON_LOSS: Mapping[str, BuiltIn] = {
    "pgd": BuiltIn("fedrbn.attacks.pgd:pgd", "projected gradient ascent, the paper's attack"),
    "mia": BuiltIn("fedrbn.attacks.pgd:mia", "the momentum iterative attack"),
    "fgsm-rs": BuiltIn("fedrbn.attacks.pgd:fgsm_rs", "one step from a random start"),
}
"""Attacks on any loss, `attack(loss, x, generator)`: clients can also train with them."""

ON_LOGITS: Mapping[str, BuiltIn] = {
    "autoattack": BuiltIn("fedrbn.attacks.autoattack:autoattack", "AutoAttack, an ensemble of four"),
    "apgd": BuiltIn("fedrbn.attacks.autoattack:apgd", "APGD alone"),
    "square": BuiltIn("fedrbn.attacks.autoattack:square", "Square alone: random search without gradients"),
    "lsa": BuiltIn("fedrbn.attacks.local_search:LocalSearch", "local search by single pixels, without gradients"),
}
"""Attacks on logits and labels, `attack(logits, x, y, generator)`: for evaluation only."""

CORRUPTIONS: Mapping[str, BuiltIn] = {
    "gaussian-noise": BuiltIn("fedrbn.attacks.corruptions:gaussian_noise", "Gaussian noise on every pixel"),
    "gaussian-blur": BuiltIn("fedrbn.attacks.corruptions:gaussian_blur", "Gaussian blur"),
    "contrast": BuiltIn("fedrbn.attacks.corruptions:contrast", "less contrast"),
    "pixelate": BuiltIn("fedrbn.attacks.corruptions:pixelate", "fewer pixels"),
}
"""Common corruptions, which do not use the network: for evaluation only."""

PAPER: Mapping[str, str] = {
    "pgd-7": "pgd:steps=7,step=2/255",
    "pgd-20": "pgd:steps=20,step=2/255",
    "pgd-100": "pgd:steps=100,step=2/255",
    "mia-20": "mia:steps=20,step=2/255",
    "mia-100": "mia:steps=100,step=2/255",
    "aa": "autoattack:version=standard",
    "lsa-7": "lsa:rounds=7",
}
"""The attacks of the paper's training (pgd-7) and of its table of attacks; ε is the run's unless given.

The paper states the step size of 2/255 only for 7 steps. We use it for the others too: 20 steps reach 40/255 and 100
steps 200/255, more than the width of the ball (32/255 and 16/255), so every start can reach every point.
"""

PAPER_TABLE = (
    "pgd-20:eps=16/255",
    "pgd-100:eps=8/255",
    "mia-20:eps=16/255",
    "mia-100:eps=8/255",
    "aa:eps=8/255",
    "lsa-7",
)
"""The paper's table of attacks, each with the ε of that table."""

FAMILIES: Mapping[str, BuiltIn] = {**ON_LOSS, **ON_LOGITS, **CORRUPTIONS}
"""Every attack and corruption."""
