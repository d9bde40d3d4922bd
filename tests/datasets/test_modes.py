"""Every mode of the DataLoader gives what a plain list of the samples would, in one storage call a batch.

The modes are those of the documentation of `torch.utils.data`: how indices are drawn, what is wrapped around the dataset,
how samples are collated, how workers run. `make test` takes every two values of these, of the numbers of workers, the
start methods and the engines together at least once; `make test-full` takes every mode with all of the latter.
"""

from __future__ import annotations

import io
import itertools
from collections.abc import Iterator
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch.utils.data import DataLoader

import storeds
from _modes import WRAPPERS, Case, Counted, all_cases, jitter, mark, pairwise, plain, product_of_modes
from _stores import written
from make_store import make_store
from photographs import jpeg
from shares import FULL
from storeds import StoreDataset

# What PyTorch says of three workers on a machine with two processors.
pytestmark = pytest.mark.filterwarnings("ignore:This DataLoader will create:UserWarning")

COUNT = 24
FIELDS = ("image", "label", "index")
RECORDS: list[dict[str, Any]] = [{"image": jpeg(number, (24, 16)), "label": number * 7 % 13} for number in range(COUNT)]


def sample(number: int, decode: str) -> tuple[Any, Any, int]:
    """Return what a dataset of `FIELDS` is to give, decoded by Pillow."""
    record = RECORDS[number]
    with Image.open(io.BytesIO(record["image"])) as image:
        pixels = image.convert("RGB")
    if decode == "pil":
        return pixels, record["label"], number
    return torch.from_numpy(np.array(pixels).transpose(2, 0, 1).copy()), record["label"], number


TRUTH = {decode: [sample(number, decode) for number in range(COUNT)] for decode in ("pil", "tensor")}


def selected() -> list[Case]:
    cases = all_cases()
    taken = [cases[at] for at in pairwise(cases)]
    if FULL:
        taken = list(dict.fromkeys(taken + product_of_modes(cases)))
    return taken


@pytest.fixture(scope="module")
def stores(mongodb: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """Engine → URL of a store that holds `RECORDS`."""
    with written(mongodb, tmp_path_factory.mktemp("modes"), RECORDS) as urls:
        yield {**urls, "memory": make_store({"image": "image", "label": "int"}, RECORDS)}


@pytest.mark.parametrize("case", selected(), ids=str)
def test_a_loader_gives_what_a_plain_list_would_in_one_storage_call_a_batch(stores: dict[str, str], case: Case) -> None:
    backend = Counted(storeds.open_backend(stores[case.engine]))
    dataset = WRAPPERS[case.wrapper](StoreDataset(backend, fields=FIELDS, decode=case.decode))
    wrapped = WRAPPERS[case.wrapper](TRUTH[case.decode])
    truth = [wrapped[index] for index in range(len(wrapped))]
    assert len(dataset) == len(truth)

    began = torch.zeros(2, dtype=torch.int64).share_memory_()  # type: ignore[no-untyped-call]
    loader = DataLoader(dataset, worker_init_fn=partial(mark, began), **case.arguments(len(truth)))
    for order in case.orders(len(truth)):
        expected = [plain(case.expected(truth, asked)) for asked in order]
        found = [plain(batch) for batch in loader]
        if case.option == "unordered":
            expected, found = sorted(expected, key=repr), sorted(found, key=repr)
        assert found == expected
        assert backend.take_calls() == sorted(size for asked in order for size in case.calls(asked))
    assert began.tolist() == [1] * case.workers + [0] * (2 - case.workers)


def test_the_cases_pair_every_two_values_that_go_together() -> None:
    cases = all_cases()
    taken = [cases[at] for at in pairwise(cases)]
    for one, other in itertools.combinations(range(len(Case._fields)), 2):
        assert {(case[one], case[other]) for case in taken} == {(case[one], case[other]) for case in cases}
    assert len(taken) < 60


AUGMENT = [{"name": "RandomResizedCrop", "size": 8}, "RandomHorizontalFlip", "ToTensor", jitter]


def augmented(url: str) -> StoreDataset:
    return StoreDataset(url, fields=FIELDS, transform=AUGMENT, seed=11)


def two_epochs(dataset: StoreDataset, **arguments: Any) -> list[list[Any]]:
    """Return the samples of two epochs, through one loader, in the order of their indices."""
    loader = DataLoader(dataset, shuffle=True, collate_fn=plain, **arguments)
    epochs = []
    for epoch in (0, 1):
        dataset.set_epoch(epoch)
        epochs.append(sorted((each for batch in loader for each in batch), key=lambda each: int(each[2])))
    return epochs


class TestRandomness:
    """With a seed, a sample is a function of (seed, epoch, index) alone, in any process."""

    @pytest.mark.parametrize(
        ("workers", "method", "engine"),
        [
            (0, None, "hdf5"),
            (1, "fork", "mongodb"),
            (2, "fork", "lmdb"),
            (2, "forkserver", "mongodb"),
            (1, "spawn", "hdf5"),
        ],
    )
    def test_two_augmented_epochs_are_equal_everywhere(
        self, stores: dict[str, str], workers: int, method: str | None, engine: str
    ) -> None:
        expected = two_epochs(augmented(stores["memory"]), batch_size=7)
        found = two_epochs(
            augmented(stores[engine]),
            batch_size=3 + workers,
            num_workers=workers,
            multiprocessing_context=method,
            persistent_workers=workers > 0,
        )
        assert found == expected
        assert [index for _, _, index in expected[0]] == list(range(COUNT))
        assert not {image for image, *_ in expected[0]} & {image for image, *_ in expected[1]}

    def test_workers_that_start_again_each_epoch_draw_the_same(self, stores: dict[str, str]) -> None:
        expected = two_epochs(augmented(stores["memory"]), batch_size=7)
        found = two_epochs(augmented(stores["hdf5"]), batch_size=4, num_workers=2, multiprocessing_context="fork")
        assert found == expected
