"""Random programs of passes, breaks, `set_epoch`, states and copies, against a small model of the rules in docs/loading.md.

A failure names the seed of its program and lists the steps.
"""

from __future__ import annotations

import copy
import functools
import json
import pickle
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest
from torch.utils.data import DataLoader

import storeds
from _jittered import jittered
from make_store import make_store
from shares import FULL
from storeds import EpochSampler, StoreDataset, StoreLoader

PROGRAMS = 8000 if FULL else 300
COUNTS = (1, 2, 7, 12, 20, 33)


@pytest.fixture(scope="module", autouse=True)
def _stores() -> Iterator[None]:
    for count in COUNTS:
        make_store(
            {"x": "int"}, ({"x": number} for number in range(count)), f"memory://programs-{count}", overwrite=True
        )
    yield
    whole.cache_clear()
    samples.cache_clear()


@dataclass(frozen=True)
class Setup:
    """How a loader is made."""

    kind: str
    count: int
    seed: int
    batch: int
    world: int
    rank: int
    drop_last: bool  # of the loader
    trims: bool  # whether the sampler leaves out what does not go round

    def dataset(self) -> StoreDataset:
        return StoreDataset(f"memory://programs-{self.count}", reader="array", transform=jittered, seed=self.seed)

    def loader(self, dataset: StoreDataset) -> Any:
        sampler = EpochSampler(dataset, num_replicas=self.world, rank=self.rank, drop_last=self.trims)
        arguments: dict[str, Any] = {"sampler": sampler, "batch_size": self.batch, "drop_last": self.drop_last}
        if self.kind == "threads":
            return StoreLoader(dataset, start_method="thread", num_workers=2, **arguments)
        if self.has_workers:
            arguments |= {"num_workers": 2, "multiprocessing_context": "fork"}
            arguments |= {"persistent_workers": True, "prefetch_factor": 4} if "persistent" in self.kind else {}
        if self.is_plain:
            return DataLoader(dataset, collate_fn=storeds.collate, **arguments)
        return StoreLoader(dataset, **arguments)

    @property
    def is_plain(self) -> bool:
        return self.kind.startswith("plain")

    @property
    def has_workers(self) -> bool:
        return self.kind.endswith("workers")


@functools.cache
def whole(count: int, seed: int, epoch: int) -> list[int]:
    sampler = EpochSampler(count, seed=seed)
    sampler.set_epoch(epoch)
    return list(sampler)


@functools.cache
def samples(count: int, seed: int, epoch: int) -> list[float]:
    dataset = StoreDataset(f"memory://programs-{count}", reader="array", transform=jittered, seed=seed)
    dataset.set_epoch(epoch)
    return [float(dataset[index][0]) for index in range(count)]


@dataclass
class ModelPass:
    epoch: int
    start: int
    indices: list[int]  # of this rank
    given: int = 0
    exhausted: bool = False

    @property
    def finished(self) -> bool:
        return self.exhausted or self.given == len(self.indices)


@dataclass
class Model:
    """The rules: which pass is next, and what the state is."""

    setup: Setup
    epoch: int = 0  # of the next pass, as long as none has begun since it was set or loaded
    start: int = 0
    current: ModelPass | None = None
    asked: bool = False
    asked_in: ModelPass | None = None  # a pass of the asked epoch that had given nothing: it is the one that is meant

    def rest(self, epoch: int, start: int) -> list[int]:
        how = self.setup
        order = whole(how.count, how.seed, epoch)
        left = order[start:]
        if how.trims:
            left = left[: len(left) // how.world * how.world]
        left += [order[at % how.count] for at in range(-len(left) % how.world)]
        return left[how.rank :: how.world]

    def next(self) -> tuple[int, int]:
        asked = self.asked and not (self.asked_in and self.asked_in.given)
        if self.current is None:
            over = self.start > 0 and not self.rest(self.epoch, self.start)
            return (self.epoch + 1, 0) if over and not asked else (self.epoch, self.start)
        if asked:
            return self.current.epoch, 0 if self.current.finished else self.current.start
        return self.current.epoch + 1, 0

    def begin(self) -> ModelPass:
        epoch, start = self.next()
        self.current, self.asked = ModelPass(epoch, start, self.rest(epoch, start)), False
        return self.current

    def set(self, epoch: int) -> None:
        now, self.asked, self.asked_in = self.current, True, None
        if epoch != (self.epoch if now is None else now.epoch):
            self.epoch, self.start, self.current = epoch, 0, None
        elif now is not None and not now.given:
            self.asked_in = now

    @property
    def state(self) -> tuple[int, int]:
        now = self.current
        if now is None:
            return self.epoch, self.start
        return now.epoch, self.setup.count if now.finished else now.start + now.given * self.setup.world

    def load(self, setup: Setup) -> None:
        """Go on from this model's own state, in a loader made with `setup`."""
        (self.epoch, self.start), self.setup, self.current, self.asked = self.state, setup, None, False
        if setup.drop_last and not setup.is_plain and len(self.rest(self.epoch, self.start)) < setup.batch:
            self.start = setup.count


@dataclass
class Iteration:
    batches: Iterator[Any]
    made: ModelPass | None = None
    ended: bool = False


@dataclass
class Program:
    """A loader and its model, which take each step together."""

    setup: Setup
    steps: list[str] = field(default_factory=list)
    iterations: list[Iteration] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.model = Model(self.setup)
        self.make()

    def make(self) -> None:
        self.dataset = self.setup.dataset()
        self.loader = self.setup.loader(self.dataset)
        self.sampler: EpochSampler = self.loader.sampler
        self.validation, self.validated = StoreLoader(self.dataset, batch_size=5), 0
        self.iterations.clear()

    def step(self, chance: random.Random, kinds: list[str]) -> None:
        names = ["iterate", "take", "exhaust", "leave", "set", "load", "resume", "copy", "validate"]
        name = chance.choices(names, [5, 8, 4, 2, 3, 1, 2, 1, 1])[0]
        self.steps.append(name)
        if name == "iterate":
            self.iterations.append(Iteration(iter(self.loader)))
        elif name in ("take", "exhaust", "leave"):
            self.go_on({"take": chance.randint(1, 4), "exhaust": 99, "leave": 0}[name], chance.randrange(4))
        elif name == "set":
            here = self.model.state[0]
            self.set(chance.choice([here, here, here + 1, 0]), chance.choice(["loader", "sampler", "dataset"]))
        elif name == "load":
            self.load(self.state(), self.setup)
        elif name == "resume":
            self.resume(chance, kinds)
        elif name == "copy":
            self.copy(chance.choice([copy.copy, copy.deepcopy, lambda it: pickle.loads(pickle.dumps(it))]))
        elif name == "validate":
            self.validate()
        self.state()

    def go_on(self, number: int, at: int) -> None:
        """Take some batches of an iteration; for none, let it go."""
        self.steps[-1] += f" {number} of iteration {at}"
        for iteration in self.iterations[at : at + 1]:
            for _ in range(number):
                self.take(iteration)
            if not number:
                self.iterations.remove(iteration)

    def copy(self, copied: Callable[[EpochSampler], EpochSampler]) -> None:
        other = copied(self.sampler)
        assert (other.epoch, other.position) == self.model.next()

    def validate(self) -> None:
        found = [float(value) for (values,) in self.validation for value in values]
        assert found == samples(self.setup.count, self.setup.seed, self.validated)
        self.validated += 1

    def take(self, iteration: Iteration) -> None:
        if iteration.ended:
            return
        made = iteration.made = iteration.made or self.model.begin()
        wanted = made.indices[made.given : made.given + self.setup.batch]
        batch = next(iteration.batches, None)
        if not wanted or (self.setup.drop_last and len(wanted) < self.setup.batch):
            assert batch is None
            iteration.ended = made.exhausted = True
            return
        # A plain loader reads for the dataset's epoch: that of the pass that began last, or the one set since.
        epoch = self.dataset.epoch if self.setup.is_plain else made.epoch
        known = samples(self.setup.count, self.setup.seed, epoch)
        assert batch is not None, f"{wanted} of epoch {made.epoch} are lost"
        assert [float(value) for value in batch[0]] == [known[index] for index in wanted]
        made.given += len(wanted)

    def set(self, epoch: int, how: str) -> None:
        self.steps[-1] += f" epoch {epoch} on the {how}"
        on: dict[str, Any] = {"loader": self.loader, "sampler": self.sampler, "dataset": self.dataset}
        on["sampler" if how == "loader" and self.setup.is_plain else how].set_epoch(epoch)
        self.model.set(epoch)
        if how == "dataset":
            self.validated = epoch

    def state(self) -> dict[str, Any]:
        state = self.sampler.state_dict() if self.setup.is_plain else self.loader.state_dict()
        now = self.model.current
        # With workers, a pass is over as soon as there is nothing left but what the loader drops.
        if now is not None and self.setup.drop_last and state["position"] == self.setup.count:
            now.exhausted = now.exhausted or len(now.indices) - now.given < self.setup.batch
        assert (state["epoch"], state["position"]) == self.model.state
        return {**json.loads(json.dumps(state)), "batch_size": self.setup.batch}

    def load(self, state: dict[str, Any], setup: Setup) -> None:
        if setup.is_plain:
            self.sampler.load_state_dict({name: value for name, value in state.items() if name != "batch_size"})
        else:
            self.loader.load_state_dict({**state, "batch_size": setup.batch})
        self.model.load(setup)

    def resume(self, chance: random.Random, kinds: list[str]) -> None:
        """Go on in another process, so to speak: a dataset and a loader of another kind, for another rank."""
        state, other = self.state(), random_setup(chance, kinds)
        same = {"count": self.setup.count, "seed": self.setup.seed, "trims": self.setup.trims}
        self.setup = Setup(**{**vars(other), **same})
        self.steps[-1] += f" with {self.setup}"
        self.make()
        self.load(state, self.setup)


def random_setup(chance: random.Random, kinds: list[str]) -> Setup:
    world = chance.choice([1, 1, 2, 3])
    return Setup(
        kind=chance.choice(kinds),
        count=chance.choice(COUNTS),
        seed=chance.randrange(3),
        batch=chance.choice([1, 3, 4, 5]),
        world=world,
        rank=chance.randrange(world),
        drop_last=chance.random() < 0.3,
        trims=chance.random() < 0.3,
    )


@pytest.mark.parametrize(
    ("kinds", "programs"),
    [
        (["store", "threads", "plain"], PROGRAMS),
        (["store with workers", "store with persistent workers"], PROGRAMS // 15),
    ],
    ids=["one-process", "workers"],
)
def test_any_program_gives_the_epochs_that_the_rules_say(kinds: list[str], programs: int) -> None:
    for seed in range(programs):
        chance = random.Random(seed)
        program = Program(random_setup(chance, kinds))
        try:
            for _ in range(chance.randint(3, 25)):
                program.step(chance, kinds)
        except Exception as error:
            error.add_note(f"program {seed}: {random_setup(random.Random(seed), kinds)}, {'; '.join(program.steps)}")
            raise
