"""Seeds for runs without ``seed=``: drawn from torch's default generator, and the same on all ranks."""

from __future__ import annotations

import torch
import torch.distributed
import xxhash

from storeds.errors import ConfigError

__all__ = ["agreed_seed", "draw_seed", "world_size"]

_KEY = "storeds/seed"


def draw_seed() -> int:
    """Draw a seed of 63 bits from torch's default generator, as `torch.utils.data.RandomSampler` does."""
    return int(torch.empty((), dtype=torch.int64, device="cpu").random_().item())


def world_size() -> int:
    """Return how many processes torch.distributed has; 1 where it is not initialised."""
    running = torch.distributed.is_available() and torch.distributed.is_initialized()
    return torch.distributed.get_world_size() if running else 1


def agreed_seed(what: str) -> int:
    """Draw a seed and return the one that all ranks agree on for `what`, which rank 0's first draw decides.

    Rank 0 puts its draw into the store of torch.distributed's process group once; the others wait for it there. Unlike a
    broadcast, this cannot be mistaken for another collective, whichever ranks draw, how often and in which order.

    Raises
    ------
    ConfigError
        There are no other ranks to agree with, or rank 0 does not draw within the timeout of the process group.
    """
    drawn = draw_seed()
    if world_size() == 1:
        raise ConfigError(
            "without seed= the ranks would shuffle differently: torch.distributed is not initialised, so they cannot agree "
            "on a seed. Pass the same seed= on every rank"
        )
    store = torch.distributed.distributed_c10d._get_default_store()
    try:
        if torch.distributed.get_rank() == 0 and not store.check([_KEY]):
            store.set(_KEY, str(drawn))
        first = store.get(_KEY).decode()
    except (RuntimeError, AttributeError) as error:  # a timeout; a backend without a store
        raise ConfigError(
            f"the ranks cannot agree on a seed: rank 0 shuffled nothing without a seed meanwhile ({error}). Pass the same "
            "seed= on every rank; or num_replicas=1 and rank=0 for a loader that is not shared between ranks"
        ) from error
    return xxhash.xxh3_64_intdigest(f"{first}/{what}".encode()) >> 1
