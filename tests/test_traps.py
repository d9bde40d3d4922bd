"""What a new user would run into, item by item: each scenario once led to a wrong model or a riddle, without an error."""

from __future__ import annotations

import random
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

import storeds
from photographs import jpeg
from storeds import errors
from storeds.testing.mongod import run_mongod

FILE_ENGINES = ("lmdb", "hdf5")
ENGINES = (*FILE_ENGINES, "mongodb")
MakeUrl = Callable[[str], str]

# 1. Validation data in training

# 2. Frozen epochs

# 3. Several images in a sample

# 4. Channels-last arrays

# 5. Partly read files

# 6. External randomness

# 7. Re-encoding

# 8. Missing labels

# 9. Records that moved, columns that changed

# 10. A damaged LMDB file

# 11. Full disks, leftovers, two writers, deadlines


def drawn_next() -> tuple[float, float, float]:
    """Return what the global generators of Python, NumPy and torch draw next, and leave them as they were."""
    states = random.getstate(), np.random.get_state(), torch.get_rng_state()
    drawn = random.random(), float(np.random.random()), float(torch.rand(()))
    random.setstate(states[0])
    np.random.set_state(states[1])
    torch.set_rng_state(states[2])
    return drawn


def test_nothing_draws_from_the_global_generators(make_engine_url: MakeUrl, tmp_path: Path) -> None:
    before = drawn_next()
    for engine in ENGINES:
        url, copy = make_engine_url(engine), make_engine_url(engine)
        with storeds.open_writer(url, {"image": "image", "label": "int"}) as writer:
            writer.append({"image": jpeg(n), "label": n} for n in range(8))
        storeds.convert(url, copy)
        assert storeds.verify(copy).ok
        crop = {"name": "RandomResizedCrop", "size": 8}
        dataset = storeds.StoreDataset(copy, transform=[crop], decode="tensor", seed=3)
        assert len([dataset[n] for n in range(8)]) == 8
        loader = storeds.ThreadLoader(dataset, num_workers=2, batch_size=4, shuffle=True, seed=3)
        assert len(list(loader)) == 2
        assert len(list(storeds.StoreIterable(url, transform=[crop], seed=3, shuffle_buffer=4))) == 8
    assert drawn_next() == before


def test_a_lost_mongodb_node_does_not_change_what_a_program_draws(tmp_path: Path) -> None:
    before = drawn_next()
    with run_mongod(tmp_path / "server") as uri:
        url = f"{uri}/db/lost?timeoutMS=500&serverSelectionTimeoutMS=100"
        with storeds.open_writer(url, {"x": "int"}) as writer:
            writer.append([{"x": 1}])
        backend = storeds.open_backend(url)
        assert backend.get_many([0]) == [{"x": 1}]
    with pytest.raises(errors.UnavailableError, match="attempts"):  # it was tried again, after random pauses
        backend.get_many([0])
    backend.close()
    assert drawn_next() == before


# 12. Hostile text

# 13. Interpreter exit


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("owner", ["__main__", "os"])
def test_a_writer_left_open_at_exit_says_nothing_and_can_be_resumed(
    make_engine_url: MakeUrl, engine: str, owner: str
) -> None:
    url = make_engine_url(engine)
    script = f"""
import {owner}, storeds
{owner}.writer = storeds.open_writer({url!r}, {{"x": "int"}}, commit_every=2)
{owner}.writer.append([{{"x": n}} for n in range(5)])
"""
    done = subprocess.run([sys.executable, "-W", "error", "-c", script], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    with pytest.raises(errors.StoreNotFoundError):
        storeds.open_backend(url)
    with storeds.open_writer(url, {"x": "int"}, resume=True) as writer:
        assert writer.count == 4


@pytest.mark.parametrize(
    "reading",
    [
        "iter(storeds.StoreIterable(url, reader='array', fields=['x']))",
        "iter(storeds.ThreadLoader(dataset, num_workers=2, batch_size=2))",
        "iter(storeds.StoreLoader(dataset, num_workers=1, batch_size=2))",
    ],
)
def test_an_epoch_left_unfinished_at_exit_says_nothing(make_engine_url: MakeUrl, reading: str) -> None:
    url = make_engine_url("lmdb")
    with storeds.open_writer(url, {"x": "int"}) as writer:
        writer.append({"x": n} for n in range(50))
    script = f"""
import os, storeds
url = {url!r}
dataset = storeds.StoreDataset(url, reader="array", fields=["x"])
os.epoch = {reading}
next(os.epoch)
"""
    done = subprocess.run([sys.executable, "-W", "error", "-c", script], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


# 14. Configs in every form

# 15. Folders of 🤗 datasets, cut files, appending


@pytest.mark.parametrize("engine", [*ENGINES, "memory"])
def test_appending_to_a_store_is_refused_with_a_way_that_keeps_its_records(
    make_engine_url: MakeUrl, engine: str
) -> None:
    url, more, both = (make_engine_url(engine) for _ in range(3))
    with storeds.open_writer(url, {"x": "int"}) as writer:
        writer.append([{"x": 1}])
    with pytest.raises(errors.StoreExistsError) as refusal:
        storeds.open_writer(url, {"x": "int"})
    said = str(refusal.value)
    assert "never changes" in said
    assert said.index("To add records") < said.index("convert") < said.index("delete") < said.index("overwrite=True")
    with storeds.open_writer(more, {"x": "int"}) as writer:  # as it says
        writer.append([{"x": 2}])
    storeds.convert([url, more], both)
    for stores in ([url, more], both):
        with storeds.open_backend(stores) as backend:
            assert backend.get_many(range(2)) == [{"x": 1}, {"x": 2}]


# 16. The command line

# 17. One picture a file

# 18. Names that look like classes or pairs

# 19. Opaque datasets

# 20. Trailing NUL bytes

# 21. LMDB entries that are not records

# 22. Two readings of one store

# 23. Layouts of well-known tools

# 24. Hidden folders
