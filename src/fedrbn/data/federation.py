"""A federation: every domain of a data set spread over users, some of whom can afford adversarial training."""

from __future__ import annotations

import difflib
import math
from collections.abc import Sequence

import numpy as np
import torch

from fedrbn.config import Dirichlet, FederationConfig, FirstDomains
from fedrbn.data.partition import Index, dirichlet_sizes, even_sizes, held_out, least_count, skewed_labels
from fedrbn.data.samples import Client, DataSet, Domain, Federation, Samples
from fedrbn.randomness import derive
from fedrbn.types import Role


def build(dataset: DataSet, config: FederationConfig, seed: int) -> Federation:
    """Users `<domain>-0`, `<domain>-1`, … of every domain, with their private data and their role.

    All domains are cut to the size of the smallest, times `config.fraction`, so that none outweighs the others. The
    test set of a domain is shared out among its users. Train and test parts are never mixed.
    """
    names = tuple(domain.name for domain in dataset.domains)
    at = at_users(names, config)
    total = _training_images(dataset, config)
    clients = tuple(client for domain in dataset.domains for client in _clients(domain, config, total, at, seed))
    return Federation(
        clients=clients,
        domains=names,
        labels={domain.name: domain.label for domain in dataset.domains},
        classes=dataset.classes,
        equal_sizes=not isinstance(config.partition.sizes, Dirichlet),
    )


def at_users(domains: Sequence[str], config: FederationConfig) -> frozenset[str]:
    """The ids of the users that train adversarially; a ratio takes the first users of each domain."""
    users = config.users_per_domain
    if isinstance(config.at, tuple):
        members = {domain: [_user(domain, i) for i in range(users)] for domain in domains}
        members |= {user: [user] for domain in domains for user in members[domain]}
        return frozenset(user for name in config.at for user in members[_known(name, list(members), "domain or user")])
    if isinstance(config.at, FirstDomains):
        ratio, chosen = config.at.ratio, _chosen_domains(domains, config.at.domains)
    else:
        ratio, chosen = config.at, tuple(domains)
    count = round(ratio * users)
    if ratio > 0 and count == 0:
        raise ValueError(
            f"got federation.at with ratio {ratio:g} of {users} users per domain, which rounds to none; expected at "
            f"least {1 / users:.3g}, which is one user. Raise the ratio or users_per_domain, set at = 0 for no "
            "adversarial training, or name the users."
        )
    return frozenset(_user(domain, i) for domain in chosen for i in range(count))


def _user(domain: str, number: int) -> str:
    return f"{domain}-{number}"


def _chosen_domains(domains: Sequence[str], chosen: int | tuple[str, ...]) -> tuple[str, ...]:
    if isinstance(chosen, tuple):
        return tuple(_known(name, domains, "domain") for name in chosen)
    if not 1 <= chosen <= len(domains):
        raise ValueError(
            f"got federation.at with the first {chosen} domains; expected 1 to {len(domains)}, because the data has "
            f"{', '.join(domains)}. Correct at.domains, or list domains by name."
        )
    return tuple(domains[:chosen])


def _known(name: str, known: Sequence[str], kind: str) -> str:
    if name in known:
        return name
    nearest = difflib.get_close_matches(name, known, n=3, cutoff=0.4)
    advice = f"Did you mean {', '.join(nearest)}?" if nearest else f"There are {', '.join(known[:5])}."
    raise ValueError(f"got {name!r} in federation.at; expected a {kind} of this federation. {advice}")


def _training_images(dataset: DataSet, config: FederationConfig) -> int:
    """How many training images of each domain are used; refuses before any work if they are too few for its users."""
    users, least = config.users_per_domain, least_count(config.min_samples, config.validation)
    smallest = min(dataset.domains, key=lambda domain: len(domain.train))
    total = round(config.fraction * len(smallest.train))
    if total < users * least:
        fraction = math.ceil(1000 * users * least / len(smallest.train)) / 1000
        cures = [f"raise fraction to at least {fraction:g}"] if fraction <= 1 else []
        cures += [f"lower users_per_domain to at most {total // least}"] if total >= least else []
        raise ValueError(
            f"got {total} training images per domain (fraction {config.fraction:g} of the {len(smallest.train)} of "
            f"{smallest.name}, the smallest) for users_per_domain = {users}; expected at least {users * least}: "
            f"{least} each, of which validation = {config.validation:g} leaves min_samples = {config.min_samples} to "
            f"train on. Remedy: {', or '.join([*cures, 'lower validation or min_samples'])}."
        )
    for domain in dataset.domains:
        if len(domain.test) < users:
            raise ValueError(
                f"got {len(domain.test)} test images in {domain.name} for users_per_domain = {users}; expected at "
                f"least one each. Lower users_per_domain to at most {len(domain.test)}, or add test images."
            )
    return total


def _clients(domain: Domain, config: FederationConfig, total: int, at: frozenset[str], seed: int) -> list[Client]:
    rng = np.random.default_rng(derive(seed, "federation", domain.name))
    used = rng.permutation(len(domain.train))[:total]
    training = [used[rows] for rows in _shares(domain.train.labels.numpy()[used], config, rng)]
    test = np.split(
        rng.permutation(len(domain.test)), even_sizes(len(domain.test), config.users_per_domain).cumsum()[:-1]
    )
    clients = []
    for number, (rows, test_rows) in enumerate(zip(training, test, strict=True)):
        user, cut = _user(domain.name, number), held_out(len(rows), config.validation)
        clients.append(
            Client(
                id=user,
                domain=domain.name,
                role=Role.AT if user in at else Role.ST,
                train=_take(domain.train, rows[cut:]),
                validation=_take(domain.train, rows[:cut]),
                test=_take(domain.test, test_rows[: config.test_samples]),
            )
        )
    return clients


def _shares(labels: Index, config: FederationConfig, rng: np.random.Generator) -> list[Index]:
    """Each user's positions among these labels, in random order."""
    sizes, mix, users = config.partition.sizes, config.partition.labels, config.users_per_domain
    if isinstance(sizes, Dirichlet):
        least = least_count(config.min_samples, config.validation)
        counts = dirichlet_sizes(len(labels), users, sizes.concentration, least, rng)
    else:
        counts = even_sizes(len(labels), users)
    if isinstance(mix, Dirichlet):
        return skewed_labels(labels, counts, mix.concentration, rng)
    return np.split(np.arange(len(labels)), counts.cumsum()[:-1])


def _take(samples: Samples, rows: Index) -> Samples:
    return samples.take(torch.from_numpy(rows))
