"""`Position`: which epoch a training loop is in, how far it is there, and which pass comes next."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence, Sized
from itertools import islice
from typing import Any, NamedTuple

import torch
import xxhash

from storeds._utils.arguments import check_int, size_and_rank
from storeds._utils.permutation import MAX_COUNT, Order
from storeds.datasets.epoch import MAX_EPOCH, SharedEpoch
from storeds.datasets.tree import inside
from storeds.errors import ConfigError
from storeds.loaders.agreement import Agreement
from storeds.loaders.planning import PlanSettings, make_plan
from storeds.loaders.seeds import agreed_seed, draw_seed

__all__ = ["BatchRequest", "DatasetEpochs", "Pass", "Position"]


class BatchRequest(NamedTuple):
    """One batch that a loader asks for.

    Attributes
    ----------
    progress : int
        The `Pass` that it belongs to, by number.
    number : int
        Its place among the batches of the pass, from 0.
    epoch : int
        The epoch of its samples.
    indices : list of int, or int
        The samples; an int for a single sample that is not batched.
    seed : int, optional
        For samples whose dataset has no seed.
    """

    progress: int
    number: int
    epoch: int
    indices: list[int] | int
    seed: int | None = None


class Pass:
    """One pass through an epoch, from a place on: what was drawn and, if a loader of ours draws, what the loop received.

    Counts this rank's places: samples or, where the plan makes the batches, batches.

    Attributes
    ----------
    batches : int or None
        How many batches a loader of ours makes; None where another one draws the indices.
    overridden : int or None
        The epoch that was set when the place was loaded, for torchdata; see `Position.resume`.
    is_answer : bool
        Whether the epoch that was set is that of this pass, once it ends.
    """

    def __init__(self, number: int, epoch: int, start: int) -> None:
        self.number, self.epoch, self.start = number, epoch, start
        self.has_begun, self.steps, self.num_replicas = False, 0, 1
        self.drawn = 0
        self.batches: int | None = None
        self.overridden: int | None = None
        self.is_answer = False
        self._next, self._received = 0, 0  # the first batch that is missing, and the places before it
        self._early: dict[int, int] = {}  # batches behind a missing one, and their sizes

    def draw(self, indices: Iterator[Any]) -> Any:
        """Return the next index, and count it."""
        index = next(indices)
        self.drawn += 1
        return index

    def receive(self, number: int, size: int) -> None:
        """Count a batch that the training loop receives; batches that overtook another count once that one came."""
        self._early[number] = size
        while self._next in self._early:
            self._received += self._early.pop(self._next)
            self._next += 1

    @property
    def consumed(self) -> int:
        """How many places the training loop received; without a loader of ours, how many were drawn."""
        return self.drawn if self.batches is None else self._received

    @property
    def is_over(self) -> bool:
        """Whether it has ended, even if a loader left out a short batch."""
        ended = self.consumed == self.steps or (self.batches is not None and self._next >= self.batches)
        return self.has_begun and ended


class Position:
    """Where a training loop is: an epoch, and a place in its order, which counts over all ranks.

    1. The first pass is epoch 0.
    2. A pass begins when its first index is drawn; ``iter()`` alone changes nothing.
    3. Each later pass is the epoch after the pass that began last, even if that one was broken off.
    4. `set_epoch` sets the epoch of the next pass, and counting continues from there. The last call counts.
    5. A user's call of ``set_epoch`` on a dataset below is such a call. Its number tells (`SharedEpoch.request`).
    6. From place p on, rank r of w takes the places p + r, p + r + w, …. All ranks take equally many: what is left over is
       left out (`drop_last`), or ranks take places from the beginning of the order.
    7. With a loader of ours, the place counts what the training loop received; batches that were only prefetched, or that
       overtook a missing one, do not count. With another loader, it counts the indices that were drawn.
    8. A pass that ends is at the end of its epoch, also if its last samples were left out.
    9. A state is an epoch and a place. After `load_state_dict`, the next pass is the rest of that epoch, on any number of ranks; if
       there is none, it is the next epoch.
    10. A call of `set_epoch` with the epoch of a loaded place, or of a pass that was broken off, keeps the place where that
        pass begins or began. The rest of an epoch that was over is then an empty pass.
    11. A copy begins where the next pass of its original would.

    Parameters
    ----------
    data : Sized or int
        The dataset, or its number of samples.
    settings : PlanSettings
        What an epoch has.
    seed, generator, num_replicas, rank
        As for `EpochSampler`.
    """

    def __init__(
        self,
        data: Sized | int,
        settings: PlanSettings,
        *,
        seed: int | None = None,
        generator: torch.Generator | None = None,
        num_replicas: int | None = None,
        rank: int | None = None,
    ) -> None:
        self.count, self.settings = _count(data), settings
        self._datasets = DatasetEpochs(data)
        if generator is not None and seed is not None:
            raise ConfigError("seed and generator both set the order: leave out one of them")
        if generator is not None and not isinstance(generator, torch.Generator):
            raise ConfigError(f"generator must be a torch.Generator, got {generator!r}")
        self._generator = generator
        self.seed = check_int("seed", seed) if seed is not None else self._datasets.seed if generator is None else None
        self._draws_seed = self.seed is None
        self._is_own_seed = False  # drawn while there were no other ranks
        self.plan = make_plan(data, self.count, settings)
        self._agreement = Agreement(data, self.count, settings, self.plan)
        self._given_ranks = num_replicas, rank
        self._ranks = size_and_rank(num_replicas, rank)
        self._order: tuple[tuple[int, int], Order] | None = None  # the last one, by seed and epoch
        self._pass = Pass(0, 0, 0)  # the one that began last or, since an epoch was set or loaded, the next one
        self._is_set = False  # whether the next pass has that epoch because it was set
        self._turn = 0  # of the last call of `set_epoch` on a dataset that counted
        self._follow_datasets()

    def ranks(self) -> tuple[int, int]:
        """Return the number of processes and the rank, which torch.distributed knows only once it is initialised.

        Afterwards, and in workers, those that were known last count.
        """
        self._ranks = size_and_rank(*self._given_ranks, self._ranks)
        return self._ranks

    # --- The order of an epoch ---

    def fix_seed(self) -> None:
        """Draw the seed of the order now, if it needs one and has none, or one that other ranks do not share."""
        if not self.plan.is_random:
            return
        is_alone = self.ranks()[0] == 1
        if self.seed is not None and (is_alone or not self._is_own_seed):
            return
        if is_alone or self._generator is not None:
            self.seed, self._is_own_seed = draw_seed(self._generator), self._generator is None
        else:
            self.seed, self._is_own_seed = agreed_seed("/".join(map(str, self._agreement.data.values()))), False

    def order(self, epoch: int) -> Order:
        """Return the order of an epoch, which all ranks share."""
        key = self.seed or 0, epoch
        if self._order is None or self._order[0] != key:
            self._order = key, self.plan.order(*key)
        return self._order[1]

    def places(self, epoch: int) -> int:
        """Return how many places an epoch has, over all ranks: samples, or batches of a plan that makes them."""
        if self.plan.is_batched:  # how many there are may depend on the order
            self.fix_seed()
        return self.order(epoch).count

    def steps(self, epoch: int, start: int = 0) -> int:
        """Return how many places of an epoch each rank takes from a place on."""
        rest, (replicas, _) = self.places(epoch) - start, self.ranks()
        return rest // replicas if self.settings.drop_last else -(-rest // replicas)

    # --- Passes ---

    @property
    def epoch(self) -> int:
        """The epoch of the pass that is under way or was broken off, otherwise of the next one."""
        self._follow_datasets()
        last = self._pass
        is_under_way = last.has_begun and not last.is_over and not self._is_set
        return last.epoch if is_under_way else self.next()[0]

    def next(self) -> tuple[int, int]:
        """Return the epoch and the first place of the next pass."""
        self._follow_datasets()
        last = self._pass
        if not last.has_begun:
            is_over = last.start > 0 and not self._is_set and not self.steps(last.epoch, last.start)
            return (last.epoch + 1, 0) if is_over else (last.epoch, last.start)
        if self._is_set and not (last.is_answer and last.is_over):
            return last.epoch, 0 if last.is_over else last.start
        return last.epoch + 1, 0

    def begin(self) -> tuple[Pass, Iterator[Any]]:
        """Begin the next pass; return its progress and this rank's indices, or batches."""
        epoch, start = self.next()
        self.fix_seed()
        order, steps, (replicas, rank) = self.order(epoch), self.steps(epoch, start), self.ranks()
        self.plan.begin(order)
        self._move(epoch, start)
        self._pass.has_begun, self._pass.steps, self._pass.num_replicas = True, steps, replicas
        return self._pass, order.walk(start + rank, replicas, steps)

    def resume(self, state: Mapping[str, Any]) -> tuple[Pass, Iterator[Any]]:
        """Begin the pass that torchdata's StatefulDataLoader goes on with; an epoch that was set before applies.

        That loader loads a state when the loop begins, which is after the loop called `set_epoch`: first in the sampler,
        then in its iterator. It draws ahead, and discards the pass if the state was at the end of one.
        """
        self.load_state_dict(state)
        epoch, start, asked = self._pass.epoch, self._pass.start, self._pass.overridden
        self._request(epoch if asked is None else asked)
        begun = self.begin()
        self._is_set, self._pass.is_answer = asked is not None, start < self.places(epoch)
        return begun

    def set_epoch(self, epoch: int) -> None:
        """Set the epoch of the next pass; see the rules."""
        epoch = check_int("epoch", epoch, 0, MAX_EPOCH)
        self._follow_datasets()
        self._request(epoch)
        self._enter(epoch)

    def _request(self, epoch: int) -> None:
        if epoch != self._pass.epoch:
            self._pass = Pass(self._pass.number + 1, epoch, 0)
        self._is_set = True

    def _follow_datasets(self) -> None:
        """Set the epoch that a user set on a dataset since the last time."""
        turn, epoch = self._datasets.request
        if turn != self._turn:
            self._turn = turn
            self._request(epoch)

    def _move(self, epoch: int, place: int) -> None:
        self._pass, self._is_set = Pass(self._pass.number + 1, epoch, place), False
        self._enter(epoch)

    def _enter(self, epoch: int) -> None:
        self._datasets.enter(epoch)
        self._turn, _ = self._datasets.request  # of the dataset's own `set_epoch` too, which a wrapper may call

    # --- Batches of a loader of ours ---

    def requests(self, batch_size: int | None, drop_last: bool, seed: int | None = None) -> Iterator[BatchRequest]:
        """Yield the batches of the next pass, which begins with the first one; `receive` counts them.

        With ``batch_size=None``, a request is for a single sample.
        """
        progress, indices = self.begin()
        steps, size = progress.steps, 1 if self.plan.is_batched else batch_size or 1
        batches = progress.batches = steps // size if drop_last else -(-steps // size)
        for number in range(batches):
            replicas, _ = self.ranks()
            if replicas != progress.num_replicas:
                raise ConfigError(
                    f"this pass began with {progress.num_replicas} processes of torch.distributed, and there are "
                    f"{replicas}: begin another pass"
                )
            drawn = list(islice(indices, min(size, steps - number * size)))
            progress.drawn += len(drawn)
            if batch_size is None or self.plan.is_batched:
                (drawn,) = drawn
            yield BatchRequest(progress.number, number, progress.epoch, drawn, seed)

    def receive(self, progress: int, number: int, size: int) -> None:
        """Count a batch that the training loop receives, unless another pass has begun since."""
        if self._pass.number == progress:
            self._pass.receive(number, 1 if self.plan.is_batched else size)

    # --- States ---

    @property
    def place(self) -> int:
        """How many places of the epoch all ranks consumed."""
        self._follow_datasets()
        return self.place_in_pass(self._pass)

    def place_in_pass(self, progress: Pass) -> int:
        """Return the place that a pass has reached; at its end, what the ranks repeat or leave out is past too."""
        reached = progress.start + progress.consumed * progress.num_replicas
        return self.places(progress.epoch) if progress.is_over else reached

    def state_dict(self) -> dict[str, Any]:
        """Return the epoch and the place, as a small dict that JSON can hold."""
        place = self.place
        return self.state_at(self._pass.epoch, place)

    def state_at(self, epoch: int, place: int) -> dict[str, Any]:
        """Return the state of a position at a place of an epoch."""
        return self._agreement.state(self.seed, epoch, place)

    def load_state_dict(self, state: Mapping[str, Any], *, least: int = 0) -> None:
        """Resume where `state_dict` was called.

        Parameters
        ----------
        state : mapping
        least : int
            An epoch of which each rank has fewer places left is over.
        """
        epoch, place = self.place_in(state)
        self._follow_datasets()
        overridden = self._pass.epoch if self._is_set else self._pass.overridden
        self.load_seed(state)
        if least > 0 and self.steps(epoch, place) < least:
            place = self.places(epoch)
        self._move(epoch, place)
        self._pass.overridden = overridden

    def load_seed(self, state: Mapping[str, Any]) -> None:
        """Use the seed of a state, if none was given here."""
        if self._draws_seed:
            self.seed, self._is_own_seed = state["seed"], False

    def place_in(self, state: Mapping[str, Any]) -> tuple[int, int]:
        """Return the epoch and the place in a state; raises ConfigError if it is malformed or belongs to another run."""
        self._agreement.check(state, self.seed, any_seed=self._draws_seed)
        epoch = check_int("epoch", state["epoch"], 0, MAX_EPOCH)
        # The seed of a state is not in use yet, and the number of batches may depend on it.
        most = MAX_COUNT if self.plan.is_batched else self.places(epoch)
        return epoch, check_int("position", state["position"], 0, most)

    def __getstate__(self) -> dict[str, Any]:
        self.ranks()
        (epoch, start), is_set = self.next(), self._is_set
        return {**self.__dict__, "_pass": Pass(0, epoch, start), "_is_set": is_set, "_order": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._turn, _ = self._datasets.request


class DatasetEpochs:
    """The epochs of the datasets that a loader reads, as users set them and passes enter them.

    Parameters
    ----------
    data : Any
        A dataset, which may hold others.
    """

    def __init__(self, data: Any) -> None:
        takers = inside(data)
        cells = [getattr(each, "_epoch", None) for each in takers]
        self._cells = [cell for cell in cells if isinstance(cell, SharedEpoch)]  # of datasets of storeds
        self._others = [each for each, cell in zip(takers, cells, strict=True) if not isinstance(cell, SharedEpoch)]
        self.seed = _seed_of(takers)

    def enter(self, epoch: int) -> None:
        """Set the epoch of the datasets, for a pass that begins."""
        for cell in self._cells:
            cell.enter(epoch)
        for dataset in self._others:
            dataset.set_epoch(epoch)

    @property
    def request(self) -> tuple[int, int]:
        """The number of the last call of a user's ``set_epoch``, 0 for none, and its epoch."""
        return max((cell.request for cell in self._cells), default=(0, 0))


def _count(data: Any) -> int:
    if hasattr(data, "__index__"):
        return check_int("data", data, 0, MAX_COUNT)
    try:
        return check_int("the length of data", len(data), 0, MAX_COUNT)
    except TypeError:
        raise ConfigError(f"data must have a length or be a number, and this has none: {data!r}") from None


def _seed_of(datasets: Sequence[Any]) -> int | None:
    """Return the seed that the datasets' samples have in common, or one that derives from all of their seeds."""
    seeds = [getattr(each, "seed", None) for each in datasets]
    if not seeds or not all(isinstance(seed, int) for seed in seeds):
        return None
    return seeds[0] if len(set(seeds)) == 1 else xxhash.xxh3_64_intdigest(repr(seeds).encode()) >> 1
