"""Run the examples: each trains in its own process and prints whether a resumed training ends with the same weights."""

from __future__ import annotations

import functools
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[1] / "examples"
STEPS = 57
"""Steps of an epoch in one process."""


def run(folder: Path, script: str, *arguments: object, ranks: int = 0) -> str:
    """Run an example, under torchrun if there are ranks; return its output."""
    torchrun = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}"] if ranks else []
    command = [sys.executable, *torchrun, str(EXAMPLES / script), str(folder), *map(str, arguments)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=150)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def weights(printed: str) -> list[str]:
    return re.findall(r"weights ([0-9a-f]{16})", printed)


def stateful_dataloader_resumes(folder: Path) -> None:
    pytest.importorskip("torchdata")
    printed = run(folder, "resume_stateful.py", "--stop", STEPS + 13)
    assert f"go on after step {STEPS + 13}" in printed
    whole, resumed = weights(printed)
    assert whole == resumed
    assert printed.endswith("the same weights\n")


def lightning_resumes(folder: Path, *, stop: int) -> None:
    pytest.importorskip("lightning")
    printed = run(folder, "train_lightning.py", "--stop", stop)
    whole, stopped, resumed = weights(printed)
    assert stopped != whole == resumed
    assert re.findall(r"(\d+) steps", printed) == [str(2 * STEPS), str(stop), str(2 * STEPS)]
    assert printed.endswith("the same weights\n")


def accelerate_resumes(folder: Path, *, ranks: int, steps: int, stop: int) -> None:
    pytest.importorskip("accelerate")
    printed = run(folder, "train_accelerate.py", "--stop", stop, ranks=ranks)
    whole, resumed = weights(printed)
    assert whole == resumed
    assert re.findall(r"(\d+) steps", printed) == [str(2 * steps), str(2 * steps - stop)]
    assert "seen without a stop: [1797, 1797]" in printed  # each sample once an epoch
    assert printed.endswith("the same weights\n")


def trainer_resumes(folder: Path) -> None:
    pytest.importorskip("transformers")
    whole, stopped, resumed = weights(printed := run(folder, "train_transformers.py"))
    assert stopped != whole == resumed
    assert re.findall(r"(\d+) steps", printed) == [str(2 * STEPS), str(STEPS), str(2 * STEPS)]


RESUMES: dict[str, Callable[[Path], None]] = {
    "StatefulDataLoader": stateful_dataloader_resumes,
    "Lightning, in the second epoch": functools.partial(lightning_resumes, stop=STEPS + 13),
    "Lightning, after the first epoch": functools.partial(lightning_resumes, stop=STEPS),
    "Trainer, after the first epoch": trainer_resumes,
    "Accelerate, one process": functools.partial(accelerate_resumes, ranks=0, steps=STEPS, stop=STEPS),
    "Accelerate, two processes": functools.partial(accelerate_resumes, ranks=2, steps=29, stop=40),
}


@pytest.mark.share(1)
@pytest.mark.parametrize("name", RESUMES)
def test_a_framework_resumes_to_the_same_weights(tmp_path: Path, name: str) -> None:
    pytest.importorskip("sklearn")
    RESUMES[name](tmp_path)
