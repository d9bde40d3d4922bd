"""Train in several processes: ranks read real stores, one dies, and another number of ranks continues.

Starting ranks takes seconds, so a few runs serve all tests.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Collection
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

import storeds
from _distributed import Job, Pair, Run, Step, pairs, read_log, read_state, runs_to_json
from make_store import make_store
from photographs import saved
from storeds.loaders import EpochSampler

COUNT, BATCH, SEED = 47, 4, 3
BAD = {2, 11, 19, 28, 40}
WORLDS = (2, 3)
CROP = {"name": "RandomResizedCrop", "size": 6}


def write(url: str, bad: Collection[int] = ()) -> str:
    records = []
    for at in range(COUNT):
        pixels = np.random.default_rng(at).integers(0, 256, (8, 8, 3), dtype=np.uint8)
        blob = saved(Image.fromarray(pixels))
        records.append({"image": blob[: len(blob) // 2] if at in bad else blob, "label": at})
    return make_store({"image": "image", "label": "int"}, records, url)


class Runs:
    """The stores, what the ranks do with them, and where they wrote what they were given."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        for world in WORLDS:
            (folder / str(world)).mkdir()
        self.urls = {"good": write(f"lmdb://{folder}/good"), "bad": write(f"hdf5://{folder}/bad", BAD)}

    def config(self, store: str = "good", *, workers: int = 1, **dataset: Any) -> dict[str, Any]:
        fields = ["image", "label", "index"]
        described = {"url": self.urls[store], "seed": SEED, "fields": fields, "transform": [CROP, "ToTensor"]}
        return {
            "dataset": {**described, **dataset},
            "loader": {"batch_size": BATCH, "shuffle": True, "num_workers": workers},
        }

    def launch(self, runs: dict[int, list[Job]]) -> list[list[int]]:
        """Run jobs on each number of ranks, one after another; return the ranks' exit codes."""
        file = self.folder / "runs.json"
        file.write_text(runs_to_json([Run(world, str(self.folder / str(world)), jobs) for world, jobs in runs.items()]))
        script = Path(__file__).parents[1].joinpath("support", "_distributed.py")
        environment = {**os.environ, "GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1"}
        ended = subprocess.run(
            [sys.executable, script, file], env=environment, capture_output=True, text=True, timeout=500, check=True
        )
        return [json.loads(line) for line in ended.stdout.splitlines()]

    def logs(self, world: int, name: str) -> list[list[Step]]:
        return [read_log(self.folder / str(world), name, rank) for rank in range(world)]

    def checkpoint(self, world: int, name: str, rank: int) -> Path:
        return self.folder / str(world) / f"{name}-{rank}.state"

    def alone(self, config: dict[str, Any], *, epoch: int = 0, state: Any = None) -> list[list[Pair]]:
        """Return the batches of one epoch, or of the rest of one, in this process without ranks."""
        loader = storeds.build_loader(storeds.load_config(config))
        if state is not None:
            loader.load_state_dict(state)
        loader.set_epoch(epoch)
        return [pairs(batch) for batch in loader]


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Runs:
    return Runs(tmp_path_factory.mktemp("distributed"))


@pytest.fixture(scope="module")
def killed(runs: Runs) -> Runs:
    """Two ranks of which one died in its fourth step, and three of which one died after it kept its second."""
    codes = runs.launch(
        {
            2: [Job("killed", runs.config(), epochs=1, dies_at=4)],
            3: [Job("killed", runs.config(workers=0), epochs=1, dies_at=2, dies_before_it=False)],
        }
    )
    assert [ranks[1] for ranks in codes] == [-signal.SIGKILL] * 2
    assert 0 not in [code for ranks in codes for code in ranks]
    return runs


@pytest.fixture(scope="module")
def trained(killed: Runs) -> Runs:
    """What ran to its end: whole epochs on two and three ranks, and on three the rest of what two had begun."""
    runs = killed
    jobs = [
        Job("good", runs.config(), epochs=2),
        Job("skip", runs.config("bad", on_error="skip")),
        Job("replace", runs.config("bad", on_error="replace")),
    ]
    rest = Job("rest", runs.config(), resume=str(runs.checkpoint(2, "killed", 0)))
    assert runs.launch({2: jobs, 3: [*jobs, rest]}) == [[0, 0], [0, 0, 0]]
    return runs


def order(epoch: int = 0) -> list[int]:
    """Return the epoch's order, by which everything else is judged."""
    sampler = EpochSampler(COUNT, seed=SEED)
    sampler.set_epoch(epoch)
    return list(sampler)


def shares(indices: list[int], world: int) -> list[list[int]]:
    """Return what each rank draws: the ranks take turns, and the last ones repeat what comes first in the epoch."""
    padded = indices + order()[: -len(indices) % world]
    return [padded[rank::world] for rank in range(world)]


def seen(log: list[Step], epoch: int = 0) -> list[int]:
    return [index for step in log if step.epoch == epoch for index, _ in step.given]


@pytest.mark.parametrize("world", WORLDS)
class TestWholeEpochs:
    """Equal numbers of steps follow, because a lost or repeated sample would show."""

    def test_the_ranks_share_the_same_order_and_randomness_at_every_world_size(self, trained: Runs, world: int) -> None:
        logs = trained.logs(world, "good")
        for epoch in (0, 1):
            expected = order(epoch) + order(epoch)[: -COUNT % world]
            assert [seen(log, epoch) for log in logs] == [expected[rank::world] for rank in range(world)]
            alone = {pair for batch in trained.alone(trained.config(workers=0), epoch=epoch) for pair in batch}
            assert {pair for log in logs for step in log if step.epoch == epoch for pair in step.given} == alone

    def test_skipping_leaves_out_what_is_bad_and_nothing_else(self, trained: Runs, world: int) -> None:
        expected = [[index for index in share if index not in BAD] for share in shares(order(), world)]
        assert [seen(log) for log in trained.logs(world, "skip")] == expected

    def test_replacing_puts_the_same_good_samples_there_at_every_world_size(self, trained: Runs, world: int) -> None:
        alone = trained.alone(trained.config("bad", workers=0, on_error="replace"))
        instead = dict(zip(order(), (pair for batch in alone for pair in batch), strict=True))
        assert {drawn for drawn, (found, _) in instead.items() if drawn != found} == BAD
        for log, share in zip(trained.logs(world, "replace"), shares(order(), world), strict=True):
            assert [pair for step in log for pair in step.given] == [instead[index] for index in share]


def kept(runs: Runs, world: int, rank: int) -> tuple[list[int], dict[str, Any]]:
    """Return what all ranks together were given up to a rank's last checkpoint, in the epoch's order, and its state."""
    saved = read_state(runs.folder / str(world), "killed", rank)
    logs = [[step for step in log if step.step <= saved["step"]] for log in runs.logs(world, "killed")]
    turns = zip(*(seen(log) for log in logs), strict=True)
    return [index for turn in turns for index in turn], saved["loader"]


class TestARankThatDies:
    """Every checkpoint says exactly what all ranks were given, so any world takes up the rest, all of it, once."""

    @pytest.mark.parametrize("world", WORLDS)
    def test_what_was_kept_is_what_had_been_given(self, killed: Runs, world: int) -> None:
        for rank in range(world):
            given, state = kept(killed, world, rank)
            assert given == order()[: state["position"]]
            assert 0 < state["position"] <= 24  # of 47
        assert kept(killed, world, 1)[1]["position"] == 24
        begun, last = {2: (4, 3), 3: (2, 2)}[world]  # a step in which a rank died is in no checkpoint
        assert len(killed.logs(world, "killed")[1]) == begun
        assert [read_state(killed.folder / str(world), "killed", rank)["step"] for rank in range(world)][1] == last

    def test_three_ranks_go_on_where_two_were(self, trained: Runs) -> None:
        given, state = kept(trained, 2, 0)
        rest = trained.logs(3, "rest")
        assert [seen(log) for log in rest] == shares(order()[state["position"] :], 3)
        assert set(given) | {index for log in rest for index in seen(log)} == set(range(COUNT))
        found = [pair for log in rest for step in log for pair in step.given]
        whole = {pair for batch in trained.alone(trained.config(workers=0)) for pair in batch}
        assert set(found) <= whole  # augmented as they would have been

    @pytest.mark.parametrize("rank", [0, 1])
    def test_one_process_goes_on_where_three_were(self, killed: Runs, rank: int) -> None:
        given, state = kept(killed, 3, rank)
        rest = killed.alone(killed.config(workers=0), state=state)
        assert given + [index for batch in rest for index, _ in batch] == order()
