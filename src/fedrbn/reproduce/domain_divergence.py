"""Tests whether batch-norm similarity (Eq. 4) is a proxy for the domain divergence of the paper's lemma.

The lemma weights AT users by d_HΔH of their domain and the receiver's. As usual, it is estimated from the error e of a
classifier that separates held-out images of the two domains:

    d = 2 (1 − 2e)          2 for domains that are separated without error, 0 for domains that cannot be

The classifier is linear (ridge regression on images of 14 × 14 pixels). The similarity is the mean over all pairs of
users of the two domains, from clean statistics. If it is a proxy, the rank correlation of the two is below 0.
"""

from __future__ import annotations

import itertools
import math
from pathlib import Path
from statistics import fmean

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional as F

from fedrbn.data.samples import Federation
from fedrbn.federated.assemble import assemble
from fedrbn.federated.propagation import similarity
from fedrbn.nets.state import batch_norms
from fedrbn.randomness import derive
from fedrbn.runs.directory import RunDirectory
from fedrbn.runs.load import load

SIDE = 14
MOST_IMAGES = 1000
"""Images of each domain."""


def measure(path: Path) -> dict[str, float]:
    """Compare all pairs of domains of a trained run."""
    from scipy.stats import spearmanr  # noqa: PLC0415  (a second of CPU, for this measure alone)

    federation = assemble(RunDirectory.open(path).experiment()).federation
    seed = derive(load(path).experiment.run.seed, "divergence")
    found: dict[str, float] = {}
    alike = similarities(path, federation)
    for one, other in itertools.combinations(federation.domains, 2):
        rng = np.random.default_rng([seed, *(federation.domains.index(name) for name in (one, other))])
        apart = domain_divergence(_images(federation, one), _images(federation, other), rng)
        for pair in (f"{one} {other}", f"{other} {one}"):  # a table may name them in either order
            found |= {f"similarity {pair}": alike[one, other], f"divergence {pair}": apart}
    both = [[value for text, value in found.items() if text.startswith(kind)] for kind in ("similarity", "divergence")]
    if all(len(set(values)) > 1 for values in both):  # a rank correlation with a constant is undefined
        found["correlation"] = float(spearmanr(*both).statistic)
    return found


def neighbours(path: Path) -> dict[str, float]:
    """The percentage of users whose most similar user (Eq. 4) is of their own domain, and the percentage by chance.

    If clean statistics cluster by domain, it is close to 100.
    """
    trained = load(path)
    domains = {member.id: member.domain for member in trained.plan.members if member.id in trained.state.reported}
    users = list(domains)
    alike = similarity(trained.state.personal, users, users, batch_norms(trained.net)).fill_diagonal_(-math.inf)
    same = [domains[user] == domains[users[int(nearest)]] for user, nearest in zip(users, alike.argmax(1), strict=True)]
    by_chance = [(list(domains.values()).count(domains[user]) - 1) / (len(users) - 1) for user in users]
    return {"neighbours same": 100 * fmean(same), "neighbours chance": 100 * fmean(by_chance)}


def similarities(path: Path, federation: Federation) -> dict[tuple[str, str], float]:
    """For every pair of domains, the mean of Sim (Eq. 4) over pairs of their users."""
    trained = load(path)
    users = {domain: [c.id for c in federation.clients if c.domain == domain] for domain in federation.domains}
    norms = batch_norms(trained.net)
    return {
        (one, other): similarity(trained.state.personal, users[one], users[other], norms).mean().item()
        for one, other in itertools.combinations(federation.domains, 2)
    }


def domain_divergence(one: NDArray[np.float32], other: NDArray[np.float32], rng: np.random.Generator) -> float:
    """d from the error of a linear classifier, trained on half of the rows of both and tested on the other half."""
    from sklearn.linear_model import RidgeClassifier  # noqa: PLC0415  (a second of CPU, for this measure alone)

    count = min(len(one), len(other), MOST_IMAGES) // 2 * 2
    halves = [rng.permutation(rows)[:count].reshape(2, count // 2, -1) for rows in (one, other)]
    train, test = (np.concatenate([half[part] for half in halves]) for part in (0, 1))
    labels = np.repeat([0, 1], count // 2)
    error = float(np.mean(RidgeClassifier().fit(train, labels).predict(test) != labels))
    return max(0.0, 2 * (1 - 2 * error))


def _images(federation: Federation, domain: str) -> NDArray[np.float32]:
    """Clean training images of a domain, downscaled, one per row."""
    parts = [c.train.images for c in federation.clients if c.domain == domain]
    parts += [c.validation.images for c in federation.clients if c.domain == domain]
    pixels: Tensor = torch.cat(parts)[: 2 * MOST_IMAGES].float() / 255
    rows: NDArray[np.float32] = F.adaptive_avg_pool2d(pixels, SIDE).flatten(1).numpy()
    return rows
