"""Check in a separate process whether storeds draws from global generators: ``python _seeded_program.py FOLDER``.

Logs at DEBUG, because PyMongo draws more random numbers then.
"""

from __future__ import annotations

import logging
import random
import sys
from pathlib import Path

import numpy as np
import torch

import storeds
from make_store import make_store
from photographs import jpeg
from storeds import errors
from storeds.backends.mongodb.reading import MONGODB  # noqa: F401  # before run_mongod asks its server whether it is ready
from storeds.testing import run_mongod


def drawn_next() -> tuple[float, float, float]:
    """Return what the global generators of Python, NumPy and torch draw next, and leave them as they were."""
    states = random.getstate(), np.random.get_state(), torch.get_rng_state()
    drawn = random.random(), float(np.random.random()), float(torch.rand(()))
    random.setstate(states[0])
    np.random.set_state(states[1])
    torch.set_rng_state(states[2])
    return drawn


def use(url: str, copy: str) -> None:
    """Write, convert, verify and read a store in every way that takes a seed."""
    make_store({"image": "image", "label": "int"}, ({"image": jpeg(n), "label": n} for n in range(8)), url)
    storeds.convert(url, copy)
    report = storeds.verify(copy)
    assert report.ok
    assert copy in str(report)
    assert str(storeds.info(copy))
    crop = {"name": "RandomResizedCrop", "size": 8}
    dataset = storeds.StoreDataset(copy, transform=[crop], decode="tensor", seed=3)
    assert len([dataset[n] for n in range(8)]) == 8
    loader = storeds.StoreLoader(dataset, start_method="thread", num_workers=2, batch_size=4, shuffle=True, seed=3)
    assert len(list(loader)) == 2
    assert len(list(storeds.StoreIterable(url, transform=[crop], seed=3, shuffle=True))) == 8


def lose_a_node(folder: Path) -> None:
    """Read from a MongoDB server that goes away, which is tried again after random pauses."""
    with run_mongod(folder) as uri:
        url = f"{uri}/db/lost?timeoutMS=3000"
        make_store({"x": "int"}, [{"x": 1}], url)
        backend = storeds.open_backend(url)
        assert backend.get_many([0]) == [{"x": 1}]
    try:
        backend.get_many([0])
    except errors.UnavailableError as error:
        assert "attempts" in str(error)  # a program without pytest
    else:
        raise AssertionError("a server that is gone was read")
    backend.close()


if __name__ == "__main__":
    logging.basicConfig(level=logging.DEBUG, handlers=[logging.NullHandler()])
    before = drawn_next()
    folder = Path(sys.argv[1])
    use("memory://seeded", f"hdf5://{folder}/copy.h5")
    lose_a_node(folder / "server")
    assert drawn_next() == before
