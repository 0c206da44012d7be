"""Hostile settings: values, TOML text, --set, attacks and conditions of the command line, fleets and probes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import tomli_w
from hypothesis import strategies as st

from fedrbn import config
from fedrbn.attacks.named import attack_named, readers
from fedrbn.builtin.attacks import FAMILIES, PAPER
from fedrbn.cli.evaluate import attack_texts, parse_condition
from fedrbn.config import Experiment
from fedrbn.federated.options import resolved
from fedrbn.fleet import description, planner
from fedrbn.fleet.planner import Workload
from fedrbn.runs import sweep
from fedrbn.types import Role
from fuzz.cases import REFUSED, Subject, command
from fuzz.mutations import ODD_TEXTS, another_tree, as_json, mutated, scalars, texts, toml_values

PROJECT = Path(__file__).parents[2]
EXAMPLES = [path.read_bytes() for path in sorted((PROJECT / "src" / "fedrbn").rglob("*.toml"))]
KEYS = {section: [*field.annotation.model_fields] for section, field in Experiment.model_fields.items()}  # type: ignore[union-attr]

FLEET = {
    "deadline": 30,
    "classes": 10,
    "image_shape": [3, 28, 28],
    "model": {"width": 0.0625},
    "device": [
        {"id": "phone", "count": 2, "domain": "pen", "samples": 300, "macs_per_second": 2e9, "memory": "512 MB"},
        {"id": "laptop", "domain": "plain", "samples": 90, "probe": "laptop.json", "bandwidth": "8 Mbit/s"},
    ],
}
PROBE = {"speed": {"forward": 1e9, "backward": 1e9, "attack": 1e9}, "memory": 1e9, "memory_bandwidth": 1e10}
WORKLOAD = Workload(10**6, 10**5, 10**4, 10**5, {Role.AT: 10**5, Role.ST: 10**5}, 32, 1, 7, 0.5)


@st.composite
def settings(draw: st.DrawFn) -> dict[str, Any]:
    """Sections and keys mostly as they exist, with values of any kind."""
    sections = st.one_of(st.sampled_from([*KEYS]), texts) if draw(st.integers(0, 9)) == 0 else st.sampled_from([*KEYS])
    made: dict[str, Any] = {}
    for _ in range(draw(st.integers(1, 3))):
        section = draw(sections)
        if draw(st.integers(0, 19)) == 0:
            made[section] = draw(toml_values)
            continue
        key = draw(st.sampled_from(KEYS.get(section, ["name"]))) if draw(st.integers(0, 9)) else draw(texts)
        if isinstance(made.setdefault(section, {}), dict):
            made[section][key] = draw(st.one_of(toml_values, st.sampled_from(["8/255", 0.5, 1, 2, "clean", "bn"])))
    return made


def try_values(values: dict[str, Any], _: Path) -> None:
    experiment = config.make(values)
    assert config.from_toml(experiment.to_toml()) == experiment
    experiment.key()
    resolved(experiment)


def try_toml(text: bytes, folder: Path) -> None:
    (folder / "experiment.toml").write_bytes(text)
    config.make(config.read(folder / "experiment.toml"))


@st.composite
def set_texts(draw: st.DrawFn) -> list[str]:
    def one() -> str:
        section = draw(st.sampled_from([*KEYS]))
        name = f"{section}.{draw(st.sampled_from(KEYS[section]))}" if draw(st.integers(0, 5)) else draw(texts)
        value = draw(
            st.one_of(texts, scalars.map(str), st.sampled_from(["0,0.5,1", "[1, 2", "{a = 1}", '"', "[[" * 3000]))
        )
        return f"{name}={value}"

    return [one() for _ in range(draw(st.integers(1, 3)))]


def try_settings(given: list[str], _: Path) -> None:
    sweep.cells({}, ["fedrbn"], [config.parse_setting(text) for text in given], [1])


names = st.sampled_from([*PAPER, *FAMILIES, "", "paper", "corruptions", "os:system", "builtins:print"])
keys = st.sampled_from(sorted({key for name in FAMILIES for key in readers(name)}))
numbers = st.one_of(
    st.sampled_from(["8/255", "1/0", "-1", "nan", "inf", "1e400", "5", "1" * 5000, "yes", "standard"]), texts
)


@st.composite
def attack_lists(draw: st.DrawFn) -> str:
    attacks = []
    for _ in range(draw(st.integers(1, 3))):
        pairs = [f"{draw(keys)}={draw(numbers)}" for _ in range(draw(st.integers(0, 3)))]
        attacks.append(draw(names) + draw(st.sampled_from([":", "::", ""])) + ",".join(pairs))
    return ",".join(attacks) if draw(st.booleans()) else draw(texts)


def try_attacks(text: str, _: Path) -> None:
    for name in attack_texts(text):
        attack_named(name)


def try_condition(text: str, _: Path) -> None:
    parse_condition(text)


def try_fleet(given: tuple[bytes, bytes], folder: Path) -> None:
    written, probed = given
    (folder / "fleet.toml").write_bytes(written)
    (folder / "laptop.json").write_bytes(probed)
    found = description.read(folder / "fleet.toml")
    planner.plan(found.devices, WORKLOAD, found.deadline)


def as_toml(tree: Any) -> bytes:
    """TOML of a tree, or text that looks like it where the tree is none."""
    try:
        return tomli_w.dumps(tree).encode("utf-8", errors="surrogatepass")
    except (TypeError, ValueError, AttributeError, RecursionError):
        return str(tree)[:2000].encode("utf-8", errors="surrogatepass")


fleets = st.one_of(another_tree(FLEET).map(as_toml), mutated(as_toml(FLEET)))
probes = st.one_of(st.just(as_json(PROBE)), another_tree(PROBE).map(as_json), mutated(as_json(PROBE)))


def try_commands(arguments: list[str], folder: Path) -> str:
    """Settings on the command line up to where the work would begin: the output exists already and is no run."""
    (folder / "taken").mkdir()
    (folder / "taken" / "mine.txt").write_text("mine")
    told = command("run", "-q", *arguments, "--out", str(folder / "taken"), "--set", "train.rounds=1")
    assert told == REFUSED
    assert [path.name for path in (folder / "taken").iterdir()] == ["mine.txt"]
    return told


@st.composite
def run_options(draw: st.DrawFn) -> list[str]:
    """Options that are refused, or lead to a run on very little."""
    options = ["--set=federation.fraction=0.03", "--set=model.width=0.0625", "--set=run.workers=1"]
    for text in draw(set_texts()):
        options += [f"--set={text}"]
    return [option.replace("\0", "0") for option in options]


def dotted(form: str, parts: int) -> bytes:
    """TOML with a key of very many parts, for which a parser may need quadratic time."""
    return form.format(".".join(["a"] * parts)).encode()


SUBJECTS = [
    Subject("settings as values", settings(), try_values, weight=20),
    Subject(
        "TOML text",
        st.one_of(
            st.sampled_from(EXAMPLES).flatmap(mutated),
            st.binary(max_size=60),
            texts.map(lambda t: t.encode("utf-8", errors="surrogatepass")),
            st.builds(dotted, st.sampled_from(["{} = 1", "[{}]", "x = {{{} = 1}}"]), st.sampled_from([33, 20_000])),
        ),
        try_toml,
        weight=20,
    ),
    Subject("--set", set_texts(), try_settings, weight=20),
    Subject("--attacks", attack_lists(), try_attacks, weight=10),
    Subject(
        "--require",
        st.one_of(texts, st.text("ra>=<0.19 ", max_size=12), st.sampled_from(ODD_TEXTS)),
        try_condition,
        weight=5,
    ),
    Subject("fleet and probe files", st.tuples(fleets, probes), try_fleet, weight=15),
    Subject("command line: run", run_options(), try_commands, weight=3),
]
