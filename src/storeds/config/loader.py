"""`Loader`: the ``[loader]`` table of a config, and the functions that it names."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Annotated, Any, ClassVar, Literal, TypeAlias, cast

import msgspec

from storeds._utils.arguments import RENAMED
from storeds._utils.settings import Settings
from storeds.errors import ConfigError, suggest
from storeds.registry import import_object

__all__ = ["Loader"]

Ragged: TypeAlias = Literal["mask", "pad", "list"]
_MADE_BY = {"storeds": "storeds.collate", "detection": "storeds.collate_detection"}


class Loader(Settings, frozen=True):
    """The ``[loader]`` table: arguments of `torch.utils.data.DataLoader`; `build_loader` picks and logs missing ones."""

    renamed: ClassVar[Mapping[str, str]] = RENAMED

    batch_size: Annotated[
        Annotated[int, msgspec.Meta(ge=1)] | None,
        msgspec.Meta(description="Samples per batch; null for single samples."),
    ] = 32
    shuffle: Annotated[
        bool, msgspec.Meta(description="A new order each epoch; runs with the same dataset seed repeat it.")
    ] = False
    block_size: Annotated[
        Annotated[int, msgspec.Meta(ge=1)] | None,
        msgspec.Meta(description="Shuffle blocks of this many neighbours, for cold disks."),
    ] = None
    window: Annotated[
        Annotated[int, msgspec.Meta(ge=1)] | None,
        msgspec.Meta(description="Blocks whose samples are mixed; 8 by default."),
    ] = None
    balance: Annotated[
        str | None, msgspec.Meta(description="A field, such as label: all of its values come equally often.")
    ] = None
    weights: Annotated[
        str | dict[str, float] | None,
        msgspec.Meta(description="A field of numbers: how often each sample comes; or a table of class → share."),
    ] = None
    samples_per_epoch: Annotated[
        Annotated[int, msgspec.Meta(ge=1)] | None, msgspec.Meta(description="By default as many as there are.")
    ] = None
    replacement: Annotated[
        bool, msgspec.Meta(description="Whether a sample may come more than once in an epoch; an error otherwise.")
    ] = True
    per_batch: Annotated[
        bool, msgspec.Meta(description="Each batch has the shares of balance, weights or sources too.")
    ] = False
    group_by: Annotated[
        str | None, msgspec.Meta(description="A field; the samples of one value come in one batch.")
    ] = None
    bucket_by: Annotated[
        str | list[str] | None,
        msgspec.Meta(description="A field, or two such as width and height: batches have samples of like size."),
    ] = None
    num_buckets: Annotated[
        Annotated[int, msgspec.Meta(ge=1)] | None, msgspec.Meta(description="How many sizes; 8 by default.")
    ] = None
    max_padded: Annotated[
        Annotated[int, msgspec.Meta(ge=1)] | None,
        msgspec.Meta(description="Limits samples × largest size of a bucket in a batch of bucket_by."),
    ] = None
    drop_last: Annotated[
        bool, msgspec.Meta(description="Drop a short last batch, and samples that would leave ranks unequal.")
    ] = False
    collate: Annotated[
        str, msgspec.Meta(description="storeds, detection, default, or the dotted path of a function.")
    ] = "storeds"
    pad: Annotated[
        list[str | int],
        msgspec.Meta(
            description="Elements that storeds.collate pads in every batch, with a mask: names, roles, or tuple indices."
        ),
    ] = msgspec.field(default_factory=list)
    ragged: Annotated[
        dict[str, Ragged],
        msgspec.Meta(
            description="Element or role that varies in length: mask (padded, with a mask), pad (padded alone) or list."
        ),
    ] = msgspec.field(default_factory=dict)
    pad_images: Annotated[
        bool | list[str | int] | dict[str, float],
        msgspec.Meta(
            description="Pad images of different sizes, with a mask: true, elements or roles, or what fills each of them."
        ),
    ] = False
    label_offset: Annotated[
        int, msgspec.Meta(description="Added to the labels of collate = 'detection'; 1 for torchvision's models.")
    ] = 0
    num_workers: Annotated[
        Annotated[int, msgspec.Meta(ge=0)] | None,
        msgspec.Meta(description="Workers; by default one per CPU that this process may use."),
    ] = None
    start_method: Annotated[
        Literal["fork", "spawn", "forkserver", "thread"] | None,
        msgspec.Meta(description="How workers start; thread makes them threads of this process."),
    ] = None
    persistent_workers: Annotated[
        bool | None, msgspec.Meta(description="Keep workers between epochs; the default when there are workers.")
    ] = None
    prefetch_factor: Annotated[
        Annotated[int, msgspec.Meta(ge=1)] | None, msgspec.Meta(description="Batches loaded ahead by each worker.")
    ] = None
    pin_memory: Annotated[
        bool | None, msgspec.Meta(description="Copy batches to pinned memory; by default with CUDA.")
    ] = None
    timeout: Annotated[
        float, msgspec.Meta(ge=0, description="Seconds to wait for a batch from a worker; 0 for no limit.")
    ] = 0
    in_order: Annotated[
        bool, msgspec.Meta(description="Return batches in the sampler's order; false returns ready ones first.")
    ] = True
    worker_init_fn: Annotated[
        str | None, msgspec.Meta(description="The dotted path of a function called in each worker.")
    ] = None

    def collate_fn(self) -> Callable[..., Any] | None:
        """Return the function that makes batches; None for PyTorch's own, and for samples that are not batched.

        Raises
        ------
        ConfigError
            The function cannot be imported, or a setting is for batches that are made in another way.
        """
        way = self.collate if self.batch_size is not None else None
        self._check_for("storeds", way, {"pad": self.pad, "ragged": self.ragged, "pad_images": self.pad_images})
        self._check_for("detection", way, {"label_offset": self.label_offset})
        if self.collate == "detection" and way is None:
            raise ConfigError("[loader]: collate = 'detection' makes batches, and the config says batch_size = null")
        if way == "storeds":
            from storeds.batching.collate import collate

            named: dict[str, Any] = {"pad": tuple(self.pad), "ragged": self.ragged, "pad_images": self.pad_images}
            named = {name: value for name, value in named.items() if value}
            return functools.partial(collate, **named) if named else collate
        if way == "detection":
            from storeds.batching.detection import collate_detection

            return functools.partial(collate_detection, label_offset=self.label_offset)
        return None if self.collate in ("default", "storeds", "detection") else self.function("collate")

    def _check_for(self, wanted: str, way: str | None, settings: dict[str, Any]) -> None:
        for name in (name for name, value in settings.items() if value and way != wanted):
            given = "batch_size = null" if way is None else f"collate = {way!r}"
            raise ConfigError(
                f"[loader]: {name} is for batches that {_MADE_BY[wanted]} makes, and the config says {given}"
            )

    def function(self, key: str) -> Callable[..., Any] | None:
        """Return the function that a setting names; raise ConfigError if it cannot be imported."""
        path: str | None = getattr(self, key)
        if path is None:
            return None
        if key == "collate" and "." not in path and ":" not in path:
            known = ("storeds", "detection", "default")
            raise ConfigError(
                f"[loader]: unknown collate {path!r}; {suggest(path, known, 'values')}, and dotted paths of functions"
            )
        try:
            found = import_object(path if ":" in path else ":".join(path.rsplit(".", 1)))
        except (ImportError, ValueError) as error:
            raise ConfigError(f"[loader]: {key} {path!r} cannot be imported: {error}") from error
        if not callable(found):
            raise ConfigError(f"[loader]: {key} {path!r} is not a function but a {type(found).__name__}")
        return cast("Callable[..., Any]", found)
