"""`make fuzz`: 10,000 hostile inputs and more, and every bomb; writes results/reliability/fuzz.json.

    python -m fuzz.soak [--cases 12000] [--seed 1] [--only TEXT] [--out FILE]

Cases are decided by the seed. Exit code 1 if one of them ended in anything else than a result or an error for users.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections import Counter
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path

from hypothesis import HealthCheck, Phase, given, seed, settings

from fuzz.cases import ACCEPTED, REFUSED, Subject, outcome
from fuzz.subjects import SUBJECTS, warm_up

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "results" / "reliability" / "fuzz.json"
WORKERS = 2
_MOST_SHOWN = 300


@dataclass(frozen=True)
class Tally:
    """What happened to the cases of one subject."""

    name: str
    counts: Counter[str]
    failure: str | None
    seconds: float

    @property
    def tried(self) -> int:
        """How many cases."""
        return self.counts.total()


def fuzz(subject: Subject, cases: int, number: int) -> Tally:
    """Try so many inputs, decided by the seed `number`; stops at the first that fails."""
    counts: Counter[str] = Counter()
    started = time.perf_counter()

    @seed(number)
    @settings(
        max_examples=cases,
        deadline=None,
        database=None,
        suppress_health_check=list(HealthCheck),
        phases=[Phase.generate],
        report_multiple_bugs=False,
    )
    @given(given_input=subject.inputs)
    def run(given_input: object) -> None:
        counts[outcome(subject, given_input)] += 1

    failure = None
    try:
        run()
    except AssertionError as error:
        notes = getattr(error, "__notes__", [])
        failure = "\n".join([str(error), *notes])
        counts["failed"] += 1
    return Tally(subject.name, counts, failure, time.perf_counter() - started)


def share(total: int) -> dict[str, int]:
    """Cases for each subject, by weight; never fewer than `total` together."""
    weights = sum(subject.weight for subject in SUBJECTS)
    return {subject.name: -(-total * subject.weight // weights) for subject in SUBJECTS}


def _start(cache: str) -> None:
    """Get a worker process ready: its own copy of the run that is damaged, and no limit on patience."""
    os.environ["FEDRBN_CACHE"] = cache
    warm_up()


def _one(name: str, cases: int, number: int) -> Tally:
    subject = next(each for each in SUBJECTS if each.name == name)
    return fuzz(subject, cases, number)


def explode() -> list[dict[str, object]]:
    """Every bomb, in a process with little memory; see `fuzz.bombs`."""
    with tempfile.TemporaryDirectory() as folder:
        done = subprocess.run(
            [sys.executable, "-m", "fuzz.bombs", folder],
            env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
            capture_output=True,
            text=True,
            check=False,
        )
    if done.returncode:
        return [{"what": "bombs", "happened": f"failed: exit code {done.returncode}: {done.stderr[-_MOST_SHOWN:]}"}]
    return [json.loads(line) for line in done.stdout.splitlines()]


def bomb_row(bombs: list[dict[str, object]]) -> dict[str, object]:
    """The bombs as one row of the table."""
    failed = [f"{bomb['what']}: {bomb['happened']}" for bomb in bombs if str(bomb["happened"]).startswith("failed")]
    peak = max((int(str(bomb["peak_mb"])) for bomb in bombs if "peak_mb" in bomb), default=0)
    told = f"all refused; the process never held more than {peak:,} MB" if not failed else "; ".join(failed)
    what = "small files that unpack to gigabytes, or claim to"
    return {"fault": what, "tried": len(bombs), "happened": told, "lost": "nothing" if not failed else "?"}


def row(name: str, tallies: list[Tally]) -> dict[str, object]:
    """Tallies as one row of the table."""
    counts = sum((tally.counts for tally in tallies), Counter[str]())
    told = f"{counts[REFUSED]:,} refused with a message, {counts[ACCEPTED]:,} valid"
    failures = [f"{tally.name}: {tally.failure[:_MOST_SHOWN]}" for tally in tallies if tally.failure]
    if failures:
        told = "FAILED: " + "; ".join(failures)
    return {"fault": name, "tried": counts.total(), "happened": told, "lost": "nothing" if not failures else "?"}


def grouped(tallies: list[Tally]) -> list[dict[str, object]]:
    """One row for each group of subjects: what stands before the colon in their names."""
    groups: dict[str, list[Tally]] = {}
    for tally in tallies:
        groups.setdefault(tally.name.partition(":")[0], []).append(tally)
    rows = []
    for name, members in groups.items():
        parts = [tally.name.partition(": ")[2] for tally in members]
        rows.append(row(f"{name}: {', '.join(parts)}" if all(parts) else name, members))
    return rows


def main() -> int:
    """Run all and write the file."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cases", type=int, default=12_000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", default="", help="Subjects with this text in their name; nothing is written.")
    parser.add_argument("--out", type=Path, default=RESULTS)
    chosen = parser.parse_args()
    command = f"make fuzz CASES={chosen.cases} SEED={chosen.seed}"
    print(f"{command}: {len(SUBJECTS)} subjects", flush=True)
    counts = {name: cases for name, cases in share(chosen.cases).items() if chosen.only in name}
    tallies, started = [], time.perf_counter()
    with (
        tempfile.TemporaryDirectory() as cache,
        ProcessPoolExecutor(WORKERS, get_context("spawn"), _start, (cache,)) as pool,
    ):
        for future in [pool.submit(_one, name, cases, chosen.seed) for name, cases in counts.items()]:
            tallies.append(future.result())
            told = row(tallies[-1].name, [tallies[-1]])
            print(f"{tallies[-1].seconds:6.1f} s  {told['fault']}: {told['tried']}; {told['happened']}", flush=True)
    bombs = explode() if not chosen.only else []
    rows = [*grouped(tallies), *([bomb_row(bombs)] if bombs else [])]
    failed = [tally for tally in tallies if tally.failure] or any("failed" in str(bomb["happened"]) for bomb in bombs)
    print(f"{sum(tally.tried for tally in tallies) + len(bombs):,} cases, {'FAILED' if failed else 'none failed'}")
    for tally in tallies:
        if tally.failure:
            print(f"\n{tally.name}\n{tally.failure[:3000]}")
    if not chosen.only:
        content = {
            "section": "Bad input",
            "made_by": command,
            "seed": chosen.seed,
            "scale": f"{len(SUBJECTS)} kinds of input, each case in its own folder; a write outside it is a failure",
            "seconds": round(time.perf_counter() - started),
            "rows": rows,
        }
        chosen.out.parent.mkdir(parents=True, exist_ok=True)
        chosen.out.write_text(json.dumps(content, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
