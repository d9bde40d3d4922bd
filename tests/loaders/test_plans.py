"""What an epoch has: quotas, weights, groups and buckets are exact, whatever the ranks, the workers and the engine."""

from __future__ import annotations

import copy
import pickle
from collections import Counter
from collections.abc import Callable
from fractions import Fraction
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.data import (
    BatchSampler,
    ConcatDataset,
    DataLoader,
    DistributedSampler,
    SequentialSampler,
    Subset,
    SubsetRandomSampler,
    WeightedRandomSampler,
)

import storeds
from make_store import make_store
from photographs import jpeg
from shares import examples
from storeds import EpochSampler, StoreDataset, StoreLoader
from storeds.errors import BadSamplesError, ConfigError
from storeds.protocols import Field
from threaded import threaded

COUNT = 90
FIELDS = {"label": "int", "weight": "float", "patient": "str", "length": "int", "width": "int", "height": "int"}
_rng = np.random.default_rng(0)
LABELS = np.sort(_rng.choice(3, COUNT, p=[0.7, 0.25, 0.05]))
WEIGHTS = np.round(_rng.random(COUNT) * (_rng.random(COUNT) > 0.2), 3)
PATIENTS = np.array([f"p{number}" for number in _rng.integers(0, 25, COUNT)])
LENGTHS = _rng.integers(1, 60, COUNT)
COLUMNS = {
    "label": LABELS,
    "weight": WEIGHTS,
    "patient": PATIENTS,
    "length": LENGTHS,
    "width": 100 + np.arange(COUNT),
    "height": 100 + np.arange(COUNT) * 7 % 100,
}
RECORDS = [{name: values[at].item() for name, values in COLUMNS.items()} for at in range(COUNT)]


def dataset(url: str | None = None) -> StoreDataset:
    url = make_store(FIELDS, RECORDS, url, attrs={"classes": ["cat", "dog", "emu"]})
    return StoreDataset(url, reader="array", fields=["index", "label"], seed=5)


@pytest.fixture(scope="module")
def plain() -> StoreDataset:
    return dataset()


@pytest.mark.parametrize("engine", ["lmdb", "hdf5", "mongodb"])
def test_every_engine_has_the_same_plans(
    plain: StoreDataset, engine: str, make_engine_url: Callable[[str], str]
) -> None:
    other = dataset(make_engine_url(engine))
    fields = {"balance": "label", "weights": "weight", "group_by": "patient", "bucket_by": "length"}
    for setting in fields.items():
        arguments: Any = {"batch_size": 12, **dict([setting])}
        assert list(EpochSampler(other, **arguments)) == list(EpochSampler(plain, **arguments))


def drawn(sampler: EpochSampler) -> list[int]:
    """Return the indices of a pass, one after another."""
    return [index for place in sampler for index in (place if isinstance(place, list) else [place])]


def exact_quotas(count: int, shares: list[float]) -> list[int]:
    """Divide by largest remainder, in fractions."""
    parts = [Fraction(str(share)) for share in shares]
    whole = [part * count / sum(parts) for part in parts]
    quotas = [int(each) for each in whole]
    for at in sorted(range(len(shares)), key=lambda at: quotas[at] - whole[at])[: count - sum(quotas)]:
        quotas[at] += 1
    return quotas


def test_weights_and_descriptions_name_the_classes_of_roles() -> None:
    fields, roles = {"image": "image", "kind": "str"}, {"kind": {"role": "label", "classes": "distinct"}}
    url = make_store(fields, [{"image": jpeg(n), "kind": ("cat", "dog")[n % 2]} for n in range(20)])
    loader = StoreLoader(StoreDataset(url, roles=roles), batch_size=4, balance="kind", weights={"cat": 3, "dog": 1})
    assert loader.plan.describe() == "20 samples by kind: cat 15 (75.0%), dog 5 (25.0%)"


class TestQuotas:
    @given(
        st.integers(1, 400), st.lists(st.sampled_from([0, 1, 2, 7, 0.3]), min_size=3, max_size=3), st.integers(1, 40)
    )
    @settings(max_examples=examples(60))
    def test_epochs_and_batches_have_the_shares_and_no_sample_comes_again_early(
        self, plain: StoreDataset, samples: int, shares: list[float], size: int
    ) -> None:
        if not any(shares):
            shares[1] = 1
        weights = dict(zip(["cat", "dog", "emu"], shares, strict=True))
        times: Counter[int] = Counter()
        for per_batch in (False, True):
            sampler = EpochSampler(
                plain, weights=weights, samples_per_epoch=samples, per_batch=per_batch, batch_size=size
            )
            quotas = exact_quotas(samples, shares)
            times.clear()
            for _ in range(4):
                places = list(sampler)
                batches = places if per_batch else [places]
                indices = [index for batch in batches for index in batch]
                assert np.bincount(LABELS[indices], minlength=3).tolist() == quotas
                times.update(indices)
                for batch in batches:
                    expected = np.array(quotas) * len(batch) / samples
                    assert (abs(np.bincount(LABELS[batch], minlength=3) - expected) < 1).all()
                if per_batch:
                    assert {len(batch) for batch in batches[:-1]} <= {size} | {samples % size}
            for label in range(3):
                uses = [times[int(index)] for index in np.flatnonzero(label == LABELS)]
                assert max(uses) - min(uses) <= 1

    def test_a_batch_has_different_samples_as_long_as_a_class_has_enough(self, plain: StoreDataset) -> None:
        """Only where a class begins its next pass may a sample come twice."""
        sampler = EpochSampler(plain, balance="label", samples_per_epoch=COUNT, per_batch=True, batch_size=9)
        for _ in range(5):
            repeats = [len(batch) - len(set(batch)) for batch in sampler]
            assert sum(repeat > 0 for repeat in repeats) <= 30 // min(np.bincount(LABELS)) + 3

    def test_balance_means_equal_shares(self, plain: StoreDataset) -> None:
        sampler = EpochSampler(plain, balance="label")
        assert np.bincount(LABELS[drawn(sampler)]).tolist() == [30, 30, 30]
        assert sampler.plan.describe() == "90 samples by label: cat 30 (33.3%), dog 30 (33.3%), emu 30 (33.3%)"
        assert drawn(sampler) != drawn(sampler)
        assert "cat 30" in repr(sampler)


class TestWeights:
    @given(st.integers(1, 500), st.integers(0, 2**40))
    @settings(max_examples=examples(60))
    def test_each_sample_comes_by_its_share_rounded(self, plain: StoreDataset, samples: int, seed: int) -> None:
        sampler = EpochSampler(plain, weights="weight", samples_per_epoch=samples, seed=seed)
        shares = WEIGHTS / WEIGHTS.sum() * samples
        for _ in range(3):
            times = np.bincount(drawn(sampler), minlength=COUNT)
            assert ((times >= np.floor(shares - 1e-9)) & (times <= np.ceil(shares + 1e-9))).all()

    def test_over_epochs_the_small_shares_come_too(self, plain: StoreDataset) -> None:
        sampler = EpochSampler(plain, weights=WEIGHTS, samples_per_epoch=20)
        times = sum(np.bincount(drawn(sampler), minlength=COUNT) for _ in range(100))
        assert np.abs(times - WEIGHTS / WEIGHTS.sum() * 2000).max() < 4


class TestBatches:
    def test_groups_stay_together(self, plain: StoreDataset) -> None:
        sampler = EpochSampler(plain, group_by="patient", batch_size=12)
        for _ in range(3):
            batches = list(sampler)
            assert sorted(index for batch in batches for index in batch) == list(range(COUNT))
            assert max(map(len, batches)) <= 12
            of = [set(PATIENTS[batch]) for batch in batches]
            assert sum(map(len, of)) == len(set(PATIENTS))

    def test_buckets_hold_like_sizes(self, plain: StoreDataset) -> None:
        batches = list(EpochSampler(plain, bucket_by="length", num_buckets=4, batch_size=8))
        indices = [index for batch in batches for index in batch]
        assert sorted(indices) == list(range(COUNT))
        padded = sum(LENGTHS[batch].max() * len(batch) for batch in batches)
        shuffled = [indices[at : at + 8] for at in range(0, len(indices), 8)]
        unsorted = sum(LENGTHS.max() * len(batch) for batch in shuffled)
        assert padded < 0.75 * unsorted

    def test_a_budget_limits_the_padded_size(self, plain: StoreDataset) -> None:
        sampler = EpochSampler(plain, bucket_by="length", batch_size=64, max_padded=200)
        batches = list(sampler)
        assert sorted(index for batch in batches for index in batch) == list(range(COUNT))
        assert all(LENGTHS[batch].max() * len(batch) <= 200 for batch in batches)
        assert len({len(batch) for batch in batches}) > 2

    def test_two_fields_are_a_ratio(self, plain: StoreDataset) -> None:
        ratios = COLUMNS["width"] / COLUMNS["height"]
        batches = list(EpochSampler(plain, bucket_by=["width", "height"], num_buckets=5, batch_size=6))
        edges = sorted((ratios[batch].min(), ratios[batch].max()) for batch in batches)
        spans = {
            np.searchsorted(np.quantile(ratios, [0.2, 0.4, 0.6, 0.8]), edge, "right") for pair in edges for edge in pair
        }
        assert len(spans) == 5
        assert all(high / low < 1.8 for low, high in edges)


OF_SAMPLES: list[dict[str, Any]] = [
    {},
    {"balance": "label"},
    {"balance": "label", "per_batch": True},
    {"weights": "weight"},
]
OF_BATCHES: list[dict[str, Any]] = [
    {"group_by": "patient"},
    *(
        {"bucket_by": "length", "num_buckets": number, "weights": weights}
        for number, weights in ((3, None), (9, "weight"))
    ),
]
SETTINGS = st.one_of(
    st.builds(
        lambda setting, samples: {**setting, "samples_per_epoch": samples},
        st.sampled_from(OF_SAMPLES),
        st.integers(1, 200),
    ),
    st.sampled_from(OF_BATCHES),
)


@given(
    SETTINGS, st.integers(1, 5), st.integers(1, 5), st.integers(9, 15), st.booleans(), st.integers(0, 10**9), st.data()
)
@settings(max_examples=examples(200))
def test_ranks_divide_one_plan_and_others_take_over_anywhere(
    plain: StoreDataset,
    setting: dict[str, Any],
    ranks: int,
    others: int,
    size: int,
    drop_last: bool,
    seed: int,
    data: st.DataObject,
) -> None:
    arguments = {**setting, "batch_size": size, "seed": seed}
    if drop_last:
        whole = list(EpochSampler(plain, num_replicas=1, rank=0, drop_last=True, **arguments))
        parts = [
            list(EpochSampler(plain, num_replicas=ranks, rank=rank, drop_last=True, **arguments))
            for rank in range(ranks)
        ]
        assert [place for step in zip(*parts, strict=True) for place in step] == whole[: len(whole) // ranks * ranks]
    sampler = EpochSampler(plain, num_replicas=1, rank=0, **arguments)
    whole, is_batched = list(sampler), sampler.plan.is_batched
    parts = [list(EpochSampler(plain, num_replicas=ranks, rank=rank, **arguments)) for rank in range(ranks)]
    assert {len(part) for part in parts} == {-(-len(whole) // ranks)}
    united = [place for step in zip(*parts, strict=True) for place in step]
    assert united == (whole * ranks)[: len(united)]

    loaders = [
        StoreLoader(plain, sampler=EpochSampler(plain, num_replicas=ranks, rank=rank, **arguments), batch_size=size)
        for rank in range(ranks)
    ]
    stop = data.draw(st.integers(0, len(loaders[0])))
    seen: list[int] = []
    passes = [iter(loader) for loader in loaders]
    for _ in range(stop):
        for each in passes:
            seen += next(each)[0].tolist()
    state = loaders[0].state_dict()
    assert all(loader.state_dict()["position"] == state["position"] for loader in loaders)
    rest: list[list[Any]] = []
    for rank in range(others):
        sampler = EpochSampler(plain, num_replicas=others, rank=rank, **arguments)
        loader = StoreLoader(plain, sampler=sampler, batch_size=size)
        loader.load_state_dict(state)
        rest.append([batch[0].tolist() for batch in loader] if sampler.epoch == 0 else [])
    everything = [index for place in whole for index in (place if is_batched else [place])]
    remaining = [index for part in rest for batch in part for index in batch]
    missing = Counter(everything) - Counter(seen)
    assert not missing - Counter(remaining)
    if state["position"] < len(whole):  # the ranks repeat a few to have equal steps
        most = size if is_batched else 1
        assert len(remaining) - missing.total() <= others * most


RANDOM: dict[str, tuple[Any, dict[str, Any]]] = {
    "shuffled": (EpochSampler, {"shuffle": True}),
    "blocks": (threaded, {"shuffle": True, "block_size": 2}),
    "some": (StoreLoader, {"samples_per_epoch": 40}),
    "balanced batches": (EpochSampler, {"balance": "label", "per_batch": True}),
    "weighted": (threaded, {"weights": "weight"}),
    "groups": (StoreLoader, {"group_by": "patient", "shuffle": True}),
    "buckets": (EpochSampler, {"bucket_by": "length", "shuffle": True}),
    "mixture": (StoreLoader, {}),
}
"""How an epoch is drawn at random, and what draws it."""


class TestWithoutASeed:
    """The order comes from torch's default generator, or from the one that is passed."""

    @pytest.fixture
    def seedless(self, plain: StoreDataset) -> StoreDataset:
        return StoreDataset(plain.url, reader="array", fields=["index", "label"])

    def order(self, kind: Any, dataset: Any, arguments: dict[str, Any], **more: Any) -> list[list[int]]:
        """Return the batches of two epochs; checks that ``len()`` is their number, asked before the first of them."""
        arguments = {"shuffle": False, **arguments}
        if kind is EpochSampler:
            sampler = EpochSampler(dataset, batch_size=12, **arguments, **more)
            loader: Any = DataLoader(dataset, collate_fn=storeds.collate, **batches_of(sampler))
        else:
            loader = kind(dataset, batch_size=12, **arguments, **more)
        count = len(loader)
        passes = [[index.tolist() for index, _ in loader] for _ in range(2)]
        assert len(passes[0]) == count
        return passes[0] + passes[1]

    @pytest.mark.parametrize(("kind", "arguments"), RANDOM.values(), ids=RANDOM)
    def test_a_generator_orders(self, seedless: StoreDataset, kind: Any, arguments: dict[str, Any]) -> None:
        dataset: Any = seedless if arguments else storeds.StoreMixture({"all": seedless})

        def of_default(seed: int) -> list[list[int]]:
            torch.manual_seed(seed)
            return self.order(kind, dataset, arguments)

        def of_generator(seed: int, kind: Any = kind) -> list[list[int]]:
            return self.order(kind, dataset, arguments, generator=torch.Generator().manual_seed(seed))

        assert of_default(1) == of_default(1)
        orders = [of_default(1), of_default(2), of_generator(3), of_generator(4)]
        assert len(set(map(str, orders))) == 4
        assert of_generator(3) == of_generator(3, StoreLoader) == orders[2]

    def test_a_generator_orders_a_dataset_that_has_a_seed(self, plain: StoreDataset) -> None:
        def order(**arguments: Any) -> list[int]:
            loader = StoreLoader(plain, batch_size=90, balance="label", **arguments)
            return [int(each) for index, _ in loader for each in index]

        orders = [order(), *(order(generator=torch.Generator().manual_seed(seed)) for seed in (1, 2))]
        assert len(set(map(tuple, orders))) == 3
        # The seed of the order leaves the generator to the workers.
        assert order(seed=5, generator=torch.Generator().manual_seed(1)) == orders[0]


def batches_of(sampler: EpochSampler) -> dict[str, Any]:
    return {"batch_sampler": sampler} if sampler.plan.is_batched else {"sampler": sampler, "batch_size": 12}


def _spoilt() -> set[int]:
    """Return one sample for each patient with several."""
    return {int(own[len(own) // 2]) for each in set(PATIENTS) if len(own := np.flatnonzero(each == PATIENTS)) > 1}


BAD = _spoilt()
MEDIAN = np.quantile(LENGTHS, 0.5)
PART = [*range(1, COUNT, 2)]


def refuse_bad(x: int) -> int:
    if x in BAD:
        raise ValueError("a bad sample")
    return x


class Replaced(NamedTuple):
    """The settings of a loader, whether a sample may replace a bad one, what makes the data, and what selects records."""

    arguments: dict[str, Any]
    may_replace: Callable[[int, int], bool]
    wrap: Callable[[StoreDataset], Any] = lambda dataset: dataset
    selection: dict[str, Any] = {}  # nobody changes it


def same_class(bad: int, good: int) -> bool:
    return bool(LABELS[bad] == LABELS[good])


REPLACED = {
    "balance": Replaced({"balance": "label"}, same_class),
    "per batch": Replaced({"balance": "label", "per_batch": True}, same_class),
    "field": Replaced({"weights": "weight"}, lambda _, good: WEIGHTS[good] > 0),
    "groups": Replaced({"group_by": "patient"}, lambda bad, good: PATIENTS[bad] == PATIENTS[good]),
    "buckets": Replaced(
        {"bucket_by": "length", "num_buckets": 2, "weights": "weight"},
        lambda bad, good: WEIGHTS[good] > 0 and (LENGTHS[bad] >= MEDIAN) == (LENGTHS[good] >= MEDIAN),
    ),
    "part": Replaced({"shuffle": True}, lambda _, good: good in PART, lambda dataset: Subset(dataset, PART)),
    "joined": Replaced(
        {"balance": "label"},
        lambda bad, good: same_class(bad, good) and (bad in PART) == (good in PART),
        lambda dataset: ConcatDataset([Subset(dataset, PART), Subset(copy.deepcopy(dataset), range(0, COUNT, 2))]),
    ),
    "where": Replaced({"balance": "label"}, same_class, selection={"where": {"label": [0, 1]}}),
}


@pytest.fixture(scope="module")
def numbered(tmp_path_factory: pytest.TempPathFactory) -> str:
    url = f"lmdb://{tmp_path_factory.mktemp('plans')}/numbered.lmdb"
    records = [{**record, "x": at} for at, record in enumerate(RECORDS)]
    return make_store({**FIELDS, "x": "int"}, records, url, attrs={"classes": ["cat", "dog", "emu"]})


def replacing(url: str, name: str, **settings: Any) -> Any:
    case, settings = REPLACED[name], {"on_error": "replace", "transform": {"x": refuse_bad}, **settings}
    return case.wrap(StoreDataset(url, reader="array", fields=["x", "label"], seed=5, **settings, **case.selection))


def given_by(data: Any, name: str, workers: dict[str, Any], **ranks: Any) -> list[list[int]]:
    """Return the batches of a loader, as the numbers of their records."""
    arguments = {"shuffle": False, **REPLACED[name].arguments}
    sampler = EpochSampler(data, batch_size=9, **arguments, **ranks)
    return [x.tolist() for x, _ in StoreLoader(data, sampler=sampler, batch_size=9, **workers)]


@pytest.mark.parametrize("name", REPLACED)
def test_replacements_keep_the_plan_in_every_loader_and_rank(numbered: str, name: str) -> None:
    """They have the class, weight, group, bucket and part of what they replace, by (seed, epoch, index) alone."""
    case, numbers = REPLACED[name], {"num_workers": 2}
    drawn = given_by(replacing(numbered, name, transform=None), name, {})
    alone = given_by(replacing(numbered, name), name, {})
    assert [len(batch) for batch in alone] == [len(batch) for batch in drawn]
    pairs = [pair for batches in zip(drawn, alone, strict=True) for pair in zip(*batches, strict=True)]
    assert {bad for bad, _ in pairs} & BAD
    for bad, good in pairs:
        assert good not in BAD
        assert good == bad if bad not in BAD else case.may_replace(bad, good)
    for workers in ({**numbers, "multiprocessing_context": "fork"}, {**numbers, "start_method": "thread"}):
        assert given_by(replacing(numbered, name), name, workers) == alone
    of_ranks: set[tuple[int, int]] = set()
    for rank in range(2):
        ranks = {"num_replicas": 2, "rank": rank}
        own = given_by(replacing(numbered, name, transform=None), name, {}, **ranks)
        for batches in zip(own, given_by(replacing(numbered, name), name, {}, **ranks), strict=True):
            of_ranks |= set(zip(*batches, strict=True))
    assert of_ranks == set(pairs)


def test_a_plan_that_is_sent_to_a_worker_knows_the_same_replacements(numbered: str) -> None:
    plan: Any = EpochSampler(replacing(numbered, "joined"), balance="label").plan
    sent = pickle.loads(pickle.dumps(plan))
    for bad in BAD:
        assert np.array_equal(plan.replacements(bad), sent.replacements(bad))


@pytest.mark.parametrize("workers", [0, 2])
def test_a_stream_replaces_within_its_part(numbered: str, workers: int) -> None:
    stream = storeds.StoreIterable(replacing(numbered, "part"), shuffle=True)
    given = [x for x, _ in DataLoader(stream, batch_size=None, num_workers=workers)]
    assert len(given) == len(PART)
    assert set(given) == set(PART) - BAD


def test_a_class_without_another_good_sample_ends_the_run(numbered: str) -> None:
    bad = next(iter(BAD))
    data = StoreDataset(
        numbered,
        reader="array",
        fields=["x"],
        transform={"x": refuse_bad},
        on_error="replace",
        where={"x": [bad, bad + 1]},
    )
    weights = np.array([1.0, 0.0])
    with pytest.raises(BadSamplesError, match="it is the only one of those that may come in its place"):
        list(StoreLoader(data, weights=weights, batch_size=2))


REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"weights": np.full(COUNT, -1.0)}, "at least 0, and number 0 is -1.0"),
    ({"weights": np.r_[np.ones(COUNT - 1), np.nan]}, "number 89 is nan"),
    ({"weights": np.zeros(COUNT)}, "all 0"),
    ({"weights": np.ones(3)}, r"shape \(3,\), and there are 90 samples"),
    ({"weights": ["a"] * COUNT}, "weights are numbers"),
    ({"weights": {"cow": 1}}, "no sample has the label 'cow'; .*cat"),
    ({"weights": "wieght"}, "no field 'wieght'; did you mean 'weight'"),
    ({"balance": "label", "weights": "weight"}, "balance and weights both say which samples come"),
    ({"balance": "label", "per_batch": True}, "pass batch_size"),
    ({"per_batch": True, "batch_size": 4}, "neither is set"),
    ({"group_by": "patient", "batch_size": 3}, "group_by='patient': the group p.* raise batch_size"),
    ({"group_by": "patient", "bucket_by": "length", "batch_size": 9}, "both make the batches"),
    ({"bucket_by": "patient", "batch_size": 9}, "a field of numbers"),
    ({"bucket_by": "length", "batch_size": 9, "max_padded": 40}, "no room for the largest sample"),
    ({"max_padded": 40}, "for bucket_by"),
    ({"block_size": 4, "balance": "label"}, "block_size is for epochs of each sample once"),
    ({"samples_per_epoch": 0}, "samples_per_epoch"),
    (
        {"samples_per_epoch": 2**40, "batch_size": 2**30, "balance": "label", "per_batch": True},
        "too long to keep exact shares",
    ),
    ({"group_by": "patient", "batch_size": 20, "samples_per_epoch": 9}, "group_by has each sample once"),
    ({"samples_per_epoch": 91, "replacement": False}, "an epoch has 91 samples of part all, and there are 90"),
    ({"balance": "label", "replacement": False}, "30 samples of label dog, and there are 25"),
    ({"weights": "weight", "replacement": False}, "largest weight would come more than once"),
    *(({"weights": {"cat": weight}}, "the weight of 'cat' is a number") for weight in ("x", None, [1], True)),
    ({"seed": 1, "generator": torch.Generator()}, "leave out one"),
    ({"generator": 3}, "torch.Generator"),
]


OF_ONE_VALUE: list[Callable[[str], dict[str, Any]]] = [
    lambda field: {"balance": field},
    lambda field: {"weights": field},
    lambda field: {"group_by": field},
    lambda field: {"bucket_by": field},
    lambda field: {"bucket_by": ["length", field]},
]
NO_VALUES: dict[str, tuple[Field | str, Any, str]] = {
    "grid": (Field("array", dtype="int64", shape=(2, 2)), np.zeros((2, 2), int), r"kind array, of shape \[2, 2\]"),
    "single": (Field("array", dtype="int64", shape=(1,)), np.zeros(1, int), r"kind array, of shape \[1\]"),
    "ragged": (Field("array", dtype="float32", shape=(None,)), np.zeros(3, "f4"), "kind array"),
    "score": ("float", float("nan"), "kind float, and 90 of 90 values are NaN, the first at 0"),
    "note": ("json", {"a": 1}, "kind json"),
    "raw": ("bytes", b"x", "kind bytes"),
}


@pytest.mark.parametrize("field", NO_VALUES)
def test_a_field_without_one_value_a_sample_is_named_with_its_kind(field: str) -> None:
    kind, value, says = NO_VALUES[field]
    url = make_store({"length": "int", field: kind}, ({"length": at, field: value} for at in range(COUNT)))
    data = StoreDataset(url, reader="array", fields=["length"], seed=1)
    for arguments in OF_ONE_VALUE:
        joined: Any = ConcatDataset([data, Subset(data, range(COUNT))])
        for each in (data, joined):
            with pytest.raises(ConfigError, match=f"{field}.*{says}"):
                StoreLoader(each, batch_size=9, **arguments(field))
    for name in ("group_by", "stratify_by"):
        with pytest.raises(ConfigError, match=f"{field}.*{says}"):
            StoreDataset(url, reader="array", fold={"of": 3, "take": 0, name: field})


@pytest.mark.parametrize(("arguments", "says"), REFUSED, ids=[says for _, says in REFUSED])
def test_settings_that_make_no_plan_are_refused(plain: StoreDataset, arguments: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        EpochSampler(plain, **arguments)


def test_a_former_name_is_refused_with_the_present_one(plain: StoreDataset) -> None:
    config: Any = {"dataset": {"url": plain.url, "reader": "array"}}
    uses: list[Callable[[Any], Any]] = [
        lambda given: EpochSampler(plain, **given),
        lambda given: StoreLoader(plain, **given),
        lambda given: storeds.build_loader({**config, "loader": given}),
        lambda given: storeds.build_loader({**config, "splits": {"a": {"loader": given}}}, "a"),
    ]
    for old, new in (("repeat", "replacement"), ("buckets", "num_buckets"), ("budget", "max_padded")):
        for use in uses:
            with pytest.raises(ConfigError, match=f"{old}'; its name is '{new}' now"):
                use({old: 1})


def test_a_state_belongs_to_its_plan(plain: StoreDataset) -> None:
    state = EpochSampler(plain, balance="label").state_dict()
    EpochSampler(plain, balance="label").load_state_dict(state)
    for other in ({}, {"weights": "weight"}, {"weights": {"cat": 2, "dog": 1}}):
        with pytest.raises(ConfigError, match="another plan of its epochs"):
            EpochSampler(plain, **other).load_state_dict(state)


class TestSamplersOfPyTorch:
    """They work in our loaders, which then have no position."""

    @pytest.mark.parametrize("kind", [StoreLoader, threaded])
    def test_the_loader_draws_what_they_yield(self, plain: StoreDataset, kind: Any) -> None:
        def generator() -> torch.Generator:
            return torch.Generator().manual_seed(3)

        def samplers() -> list[Any]:
            return [
                SequentialSampler(plain),
                SubsetRandomSampler(range(10, 40), generator=generator()),
                WeightedRandomSampler(WEIGHTS.tolist(), 33, generator=generator()),
                DistributedSampler(plain, num_replicas=3, rank=1, seed=4),
            ]

        for ours, theirs in zip(samplers(), samplers(), strict=True):
            for drop_last in (False, True):
                loader = kind(plain, sampler=ours, batch_size=7, drop_last=drop_last, num_workers=2)
                expected = list(BatchSampler(theirs, 7, drop_last))
                assert [index.tolist() for index, _ in loader] == expected
                assert len(loader) == len(expected)
                if hasattr(theirs, "set_epoch"):  # the loader counts its passes
                    theirs.set_epoch(1)
                    assert [index.tolist() for index, _ in loader] == list(BatchSampler(theirs, 7, drop_last))
                    break
        batches = BatchSampler(SequentialSampler(plain), 4, drop_last=True)
        assert [index.tolist() for index, _ in kind(plain, batch_sampler=batches)] == list(batches)

        with pytest.raises(ConfigError, match="no position or plan"):
            loader.state_dict()

    def test_one_around_ours_would_lose_samples(self, plain: StoreDataset) -> None:
        wrapped: DistributedSampler[Any] = DistributedSampler(EpochSampler(plain), num_replicas=2, rank=0)  # type: ignore[arg-type]
        with pytest.raises(ConfigError, match="samples would be lost.*use_distributed_sampler=False"):
            StoreLoader(plain, sampler=wrapped, batch_size=7)
        ours = StoreLoader(plain, sampler=EpochSampler(plain, num_replicas=2, rank=0), batch_size=7)
        with pytest.raises(ConfigError, match="divides the batches of a loader.*do not prepare"):
            list(ours.batch_sampler or ())  # as Accelerate's BatchSamplerShard does
        for arguments in ({"shuffle": True}, {"balance": "label"}):
            with pytest.raises(ConfigError, match="is for the sampler that the loader makes itself"):
                StoreLoader(plain, sampler=SequentialSampler(plain), **arguments)
