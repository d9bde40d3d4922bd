"""Draws the seeds of runs that were given none, the same one for all ranks."""

from __future__ import annotations

import torch
import torch.distributed
import xxhash
from torch.utils.data import get_worker_info

from storeds.errors import ConfigError

__all__ = ["agreed_seed", "draw_seed", "world_size"]

_SEED_KEY = "storeds/seed"


def draw_seed(generator: torch.Generator | None = None) -> int:
    """Draw a seed of 63 bits from a generator, by default torch's, as `torch.utils.data.RandomSampler` does."""
    return int(torch.empty((), dtype=torch.int64, device="cpu").random_(generator=generator).item())


def world_size() -> int:
    """Return the number of torch.distributed's processes; 1 where it is not initialised."""
    running = torch.distributed.is_available() and torch.distributed.is_initialized()
    return torch.distributed.get_world_size() if running else 1


def agreed_seed(what: str) -> int:
    """Draw a seed and return the one that all ranks share for `what`: it derives from rank 0's first draw.

    Rank 0 puts its draw into the store of torch.distributed's process group once, and the others wait for it there.
    Unlike a broadcast, this cannot be matched with another collective, whichever ranks draw, how often and when.

    Raises
    ------
    ConfigError
        torch.distributed is not initialised, this is a worker, or rank 0 draws nothing within the timeout of the process
        group.
    """
    drawn = draw_seed()
    if get_worker_info() is not None:
        raise ConfigError(
            "without seed= the ranks would shuffle differently: this stream drew its seed before torch.distributed was "
            "initialised, and a worker cannot agree with other ranks. Call set_epoch on the stream before each pass, or pass "
            "the same seed= on every rank"
        )
    if world_size() == 1:
        raise ConfigError(
            "without seed= the ranks would shuffle differently: torch.distributed is not initialised, so they cannot agree "
            "on a seed. Pass the same seed= on every rank"
        )
    store = torch.distributed.distributed_c10d._get_default_store()
    try:
        if torch.distributed.get_rank() == 0 and not store.check([_SEED_KEY]):
            store.set(_SEED_KEY, str(drawn))
        first = store.get(_SEED_KEY).decode()
    except (RuntimeError, AttributeError) as error:  # a timeout; a process group without a store
        raise ConfigError(
            f"the ranks cannot agree on a seed: rank 0 did not shuffle anything without a seed in time ({error}). Pass the "
            "same seed= on every rank; or num_replicas=1 and rank=0 for a loader that the ranks do not share"
        ) from error
    return xxhash.xxh3_64_intdigest(f"{first}/{what}".encode()) >> 1
