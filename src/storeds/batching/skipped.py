"""What stands in a batch where a bad sample was left out."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn

from torch.utils.data._utils.collate import default_collate_fn_map

from storeds.errors import ConfigError

__all__ = ["Skipped"]


@dataclass(frozen=True)
class Skipped:
    """Stands where a bad sample would: `storeds.collate` drops it, and anything that takes it for a sample says so.

    Parameters
    ----------
    index : int
        The sample's index.
    url : str
        The store, secrets removed.
    position : int
        The record's position in the store.
    fault : str
        What sort of fault it is, as in ``StoreDataset.report()``.
    reason : str
        What is wrong.
    """

    index: int
    url: str
    position: int
    fault: str
    reason: str

    def _refuse(self, *_: Any) -> NoReturn:
        raise ConfigError(
            f"sample {self.index} of {self.url} was skipped ({self.reason}), and this collate_fn cannot leave it out: "
            "pass collate_fn=storeds.collate, or use on_error='replace'"
        )

    def __len__(self) -> int:
        self._refuse()

    def __iter__(self) -> Iterator[Any]:
        self._refuse()

    def __getitem__(self, index: Any) -> Any:
        self._refuse()


def _refuse_batch(batch: Sequence[Skipped], **_: Any) -> NoReturn:
    batch[0]._refuse()


# Where the first sample of a batch was skipped, torch's default_collate asks here; else it asks the sentinel's length.
default_collate_fn_map[Skipped] = _refuse_batch
