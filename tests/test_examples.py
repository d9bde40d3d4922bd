"""Run the examples: frameworks that resume to the same weights, and the programs of seeds, with warnings as errors."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import pytest

EXAMPLES = Path(__file__).parents[1] / "examples"
STEPS = 57
"""Steps of an epoch in one process."""
ONCE = "seen without a stop: [1797, 1797]"  # each sample once an epoch


def run(folder: Path, script: str, *arguments: object, ranks: int = 0) -> str:
    """Run an example, under torchrun if there are ranks; return its output."""
    torchrun = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}"] if ranks else []
    command = [sys.executable, *torchrun, str(EXAMPLES / script), str(folder), *map(str, arguments)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=500)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


class Resume(NamedTuple):
    """An example, what it needs, and the steps of each training that it prints; the first has no stop, the last resumes."""

    needs: str
    script: str
    stop: int | None
    steps: list[int]
    ranks: int = 0
    prints: str = "the same weights\n"


STOPPED = [2 * STEPS, STEPS, 2 * STEPS]
RESUMES = {
    "StatefulDataLoader": Resume("torchdata", "resume_stateful.py", 70, [], prints="go on after step 70"),
    "Lightning, in the second epoch": Resume("lightning", "train_lightning.py", 70, [2 * STEPS, 70, 2 * STEPS]),
    "Lightning, after the first epoch": Resume("lightning", "train_lightning.py", STEPS, STOPPED),
    "Trainer, after the first epoch": Resume("transformers", "train_transformers.py", None, STOPPED, prints=""),
    "Accelerate, one process": Resume("accelerate", "train_accelerate.py", STEPS, [2 * STEPS, STEPS], prints=ONCE),
    "Accelerate, two processes": Resume("accelerate", "train_accelerate.py", 40, [2 * 29, 18], ranks=2, prints=ONCE),
}


@pytest.mark.share(1)
@pytest.mark.parametrize("name", RESUMES)
def test_a_framework_resumes_to_the_same_weights(tmp_path: Path, name: str) -> None:
    pytest.importorskip("sklearn")
    needs, script, stop, steps, ranks, prints = RESUMES[name]
    pytest.importorskip(needs)
    printed = run(tmp_path, script, *(() if stop is None else ("--stop", stop)), ranks=ranks)
    whole, *stopped, resumed = re.findall(r"weights ([0-9a-f]{16})", printed)
    assert whole == resumed
    assert whole not in stopped
    assert [int(number) for number in re.findall(r"(\d+) steps", printed)] == steps or not steps
    assert prints in printed
    assert printed.endswith("the same weights\n")


SEEDS = sorted((EXAMPLES / "seeds").glob("*.py"))
assert len(SEEDS) == 5


@pytest.mark.share(2)
@pytest.mark.parametrize("program", SEEDS, ids=lambda program: program.stem)
def test_a_seed_runs_from_nothing(program: Path, tmp_path: Path) -> None:
    command = [sys.executable, "-W", "error", str(program)]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=500)
    assert done.returncode == 0, done.stderr
    assert done.stdout
