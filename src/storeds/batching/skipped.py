"""`Skipped`: takes the place of a bad sample that was left out."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn

from torch.utils.data._utils.collate import default_collate_fn_map

from storeds.errors import ConfigError

__all__ = ["Skipped"]


@dataclass(frozen=True)
class Skipped:
    """Takes the place of a bad sample. `storeds.collate` drops it; using it as a sample raises ConfigError.

    Parameters
    ----------
    index : int
        The sample's index.
    url : str
        The store, with secrets removed.
    position : int
        The record's position in the store.
    fault : str
        The kind of fault, as in ``StoreDataset.report()``.
    reason : str
        What is wrong with the sample.
    """

    index: int
    url: str
    position: int
    fault: str
    reason: str

    def _refuse(self, *_: Any) -> NoReturn:
        raise ConfigError(
            f"sample {self.index} of {self.url} was skipped ({self.reason}), and this collate_fn cannot drop it: "
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


# If the first sample of a batch was skipped, torch's default_collate calls this function; else it calls len() of it.
default_collate_fn_map[Skipped] = _refuse_batch
