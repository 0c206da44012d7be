"""A federation: every domain of a data set spread over users, some of whom can afford adversarial training."""

from __future__ import annotations

import difflib
import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
import torch

from fedrbn.builtin.data_sets import OWN_DATA
from fedrbn.config import AtUsers, Dirichlet, FederationConfig, FirstDomains
from fedrbn.data.partition import Index, dirichlet_sizes, even_sizes, held_out, least_count, skewed_labels
from fedrbn.data.samples import LEAST_CLASSES, Client, DataSet, Domain, Federation, Samples
from fedrbn.errors import DataError
from fedrbn.randomness import derive
from fedrbn.types import Role

_DIVIDING = ("users_per_domain", "fraction", "validation", "partition", "min_samples", "test_samples")
"""The settings that decide how data are divided among users."""


def build(data: DataSet | Federation, config: FederationConfig, seed: int) -> Federation:
    """Users `<domain>-0`, `<domain>-1`, … of every domain, with their private data and their role.

    All domains are reduced to the size of the smallest, times `config.fraction`, so that they all have the same
    weight. The test set of a domain is divided among its users. Train and test parts are never mixed.

    A ready-made federation keeps its users and their data, and also their roles unless `config.at` names others.
    """
    if isinstance(data, Federation):
        return _adopted(data, config)
    _check_classes([domain.train for domain in data.domains], data.classes)
    names = tuple(domain.name for domain in data.domains)
    at = _adversarial({name: [_user(name, i) for i in range(config.users_per_domain)] for name in names}, config)
    total = _training_images(data, config)
    clients = tuple(
        client for domain in data.domains for client in _clients(domain, config, total, at, seed, data.augment)
    )
    return Federation(
        clients=clients,
        domains=names,
        labels={domain.name: domain.label for domain in data.domains},
        classes=data.classes,
        equal_sizes=not isinstance(config.partition.sizes, Dirichlet),
        remarks=(*data.remarks, *_unused(data, total)),
    )


def _unused(data: DataSet, total: int) -> list[str]:
    """A line that says how many training images are used, if some are not."""
    every = sum(len(domain.train) for domain in data.domains)
    smallest = min(data.domains, key=lambda domain: len(domain.train))
    if total * len(data.domains) == every:
        return []
    return [
        f"{total * len(data.domains):,} of {every:,} training images are used: {total:,} of each domain, because "
        f"{smallest.name}, the smallest, has {len(smallest.train):,}"
    ]


def _adopted(federation: Federation, config: FederationConfig) -> Federation:
    """A ready-made federation with this config, which cannot change how the data are divided."""
    _check_classes([client.train for client in federation.clients], federation.classes)
    usual = FederationConfig()
    defaults = (usual, usual.model_copy(update=dict(OWN_DATA["federation"])))
    # Compares values, not which ones were set: an experiment that was written and read back has all of them set.
    changed = min(
        ([name for name in _DIVIDING if getattr(config, name) != getattr(each, name)] for each in defaults), key=len
    )
    if changed:
        raise DataError(
            f"got federation.{', federation.'.join(changed)} with data that are already a federation; expected only "
            "federation.at or federation.duties, and federation.participants. Remove the setting, or divide the data "
            "in your own code."
        )
    if config.at == usual.at and config.duties is None:
        return federation
    members = {
        domain: [client.id for client in federation.clients if client.domain == domain] for domain in federation.domains
    }
    at = _adversarial(members, config)
    return replace(
        federation,
        clients=tuple(replace(c, role=Role.AT if c.id in at else Role.ST) for c in federation.clients),
    )


def _check_classes(parts: Sequence[Samples], classes: Sequence[str]) -> None:
    """Refuse training data of only one class, which any network gets right."""
    found = sorted({int(label) for part in parts for label in set(part.labels.tolist())})
    if len(found) < LEAST_CLASSES:
        raise DataError(
            f"got training images of the class {classes[found[0]]!r} only; expected at least two classes. Add images "
            "of another class."
        )


def pooled(federation: Federation, name: str) -> DataSet:
    """The data of all clients merged into domains, for inspection: validation images count as training images."""
    domains = []
    for domain in federation.domains:
        clients = [client for client in federation.clients if client.domain == domain]
        train = _joined([part for client in clients for part in (client.train, client.validation)])
        domains.append(Domain(domain, train, _joined([client.test for client in clients]), federation.labels[domain]))
    return DataSet(name, tuple(domains), federation.classes)


def _joined(parts: list[Samples]) -> Samples:
    filled = [part for part in parts if len(part)]
    return Samples(torch.cat([part.images for part in filled]), torch.cat([part.labels for part in filled]))


def _adversarial(users: Mapping[str, Sequence[str]], config: FederationConfig) -> frozenset[str]:
    """The ids of the users that train any batch adversarially, by `config.duties` or otherwise by `config.at`."""
    if config.duties is None:
        return at_users(users, config.at)
    planned, ids = config.duties.clients, [user for own in users.values() for user in own]
    for name in planned:
        _known(name, ids, "user", "federation.duties")
    missing = [user for user in ids if user not in planned]
    if missing:
        raise DataError(
            f"got federation.duties without user {missing[0]!r}; expected a duty for each of the {len(ids)} users. Add "
            "it as a device to the fleet and plan again."
        )
    return frozenset(user for user, own in planned.items() if own.at_share)


def at_users(users: Mapping[str, Sequence[str]], at: AtUsers) -> frozenset[str]:
    """The ids of the users that train adversarially; a ratio takes the first users of each domain."""
    if isinstance(at, tuple):
        members = {**users, **{user: [user] for ids in users.values() for user in ids}}
        return frozenset(user for name in at for user in members[_known(name, list(members), "domain or user")])
    if isinstance(at, FirstDomains):
        ratio, chosen = at.ratio, _chosen_domains([*users], at.domains)
    else:
        ratio, chosen = at, tuple(users)
    found = frozenset(user for domain in chosen for user in users[domain][: round(ratio * len(users[domain]))])
    if ratio > 0 and not found:
        most = max(len(users[domain]) for domain in chosen)
        raise DataError(
            f"got federation.at with ratio {ratio:g} of {most} users per domain, which rounds to none; expected at "
            f"least {1 / most:.3g}, which is one user. Raise the ratio or users_per_domain, set at = 0 for no "
            "adversarial training, or name the users."
        )
    return found


def _user(domain: str, number: int) -> str:
    return f"{domain}-{number}"


def _chosen_domains(domains: Sequence[str], chosen: int | tuple[str, ...]) -> tuple[str, ...]:
    if isinstance(chosen, tuple):
        return tuple(_known(name, domains, "domain") for name in chosen)
    if not 1 <= chosen <= len(domains):
        raise DataError(
            f"got federation.at with the first {chosen} domains; expected 1 to {len(domains)}, because the data has "
            f"{', '.join(domains)}. Correct at.domains, or list domains by name."
        )
    return tuple(domains[:chosen])


def _known(name: str, known: Sequence[str], kind: str, setting: str = "federation.at") -> str:
    if name in known:
        return name
    nearest = difflib.get_close_matches(name, known, n=3, cutoff=0.4)
    advice = f"Did you mean {', '.join(nearest)}?" if nearest else f"There are {', '.join(known[:5])}."
    raise DataError(f"got {name!r} in {setting}; expected a {kind} of this federation. {advice}")


def _training_images(dataset: DataSet, config: FederationConfig) -> int:
    """The number of training images used per domain; refused before any work if it is too small for the users."""
    users, least = config.users_per_domain, least_count(config.min_samples, config.validation)
    smallest = min(dataset.domains, key=lambda domain: len(domain.train))
    total = round(config.fraction * len(smallest.train))
    if total < users * least:
        fraction = math.ceil(1000 * users * least / len(smallest.train)) / 1000
        cures = [f"raise fraction to at least {fraction:g}"] if fraction <= 1 else []
        cures += [f"lower users_per_domain to at most {total // least}"] if total >= least else []
        raise DataError(
            f"got {total} training images per domain (fraction {config.fraction:g} of the {len(smallest.train)} of "
            f"{smallest.name}, the smallest) for users_per_domain = {users}; expected at least {users * least}: "
            f"{least} each, of which validation = {config.validation:g} leaves min_samples = {config.min_samples} to "
            f"train on. Remedy: {', or '.join([*cures, 'lower validation or min_samples'])}."
        )
    for domain in dataset.domains:
        if len(domain.test) < users:
            raise DataError(
                f"got {len(domain.test)} test images in {domain.name} for users_per_domain = {users}; expected at "
                f"least one each. Lower users_per_domain to at most {len(domain.test)}, or add test images."
            )
    return total


def _clients(
    domain: Domain, config: FederationConfig, total: int, at: frozenset[str], seed: int, augment: bool
) -> list[Client]:
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
                augment=augment,
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
