"""`python contend.py CONTENDER METHOD WORK OUT`: one contender's rounds; prints `round` after each, writes networks."""

from __future__ import annotations

import sys
from pathlib import Path

import torch
from safetensors.torch import save_file

sys.path.insert(0, str(Path(__file__).parent))
import workload


def main(contender: str, method: str, work: str, out: str) -> None:
    """Train and write."""
    torch.set_num_threads(1)
    states = _training(contender)(workload.read(Path(work)), method, lambda: print("round", flush=True))
    tensors = {f"{d}/{name}": t.detach().clone() for d, state in enumerate(states) for name, t in state.items()}
    save_file(tensors, out)


def _training(contender: str) -> workload.Train:
    """The contender's training; only its package is imported."""
    if contender == "ours":
        from ours import train  # noqa: PLC0415
    elif contender == "plain":
        from plain import train  # noqa: PLC0415
    elif contender == "flower_simulation":
        from flower_simulation import train  # noqa: PLC0415
    elif contender == "pfl_research":
        from pfl_research import train  # noqa: PLC0415
    else:
        sys.exit(f"got contender {contender!r}; expected ours, plain, flower_simulation or pfl_research.")
    return train


if __name__ == "__main__":
    main(*sys.argv[1:])
