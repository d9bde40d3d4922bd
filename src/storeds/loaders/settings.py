"""`LoaderSettings`: the settings of a loader, which are the table ``[loader]`` of a config and the arguments of `StoreLoader`."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Mapping
from typing import Annotated, Any, ClassVar, Literal, TypeAlias, cast

import msgspec
import numpy as np
from msgspec import structs

from storeds._utils.arguments import RENAMED
from storeds._utils.settings import Settings
from storeds.errors import ConfigError, suggest
from storeds.registry import import_object

__all__ = ["LoaderSettings"]

Ragged: TypeAlias = Literal["mask", "pad", "list"]
_FUNCTIONS = {"storeds": "storeds:collate", "detection": "storeds:collate_detection"}
_OPTIONS = {"pad": "storeds", "ragged": "storeds", "pad_images": "storeds", "label_offset": "detection"}
"""Setting → the way of making batches that has it."""
_OF_PROCESSES = ("persistent_workers", "timeout", "worker_init_fn")


class LoaderSettings(Settings, frozen=True):
    """The settings of a `StoreLoader`; also the ``[loader]`` table of a config.

    Every key is the `StoreLoader` argument of the same name. Those of `torch.utils.data.DataLoader` have its defaults.
    """

    renamed: ClassVar[Mapping[str, str]] = RENAMED

    batch_size: Annotated[
        Annotated[int, msgspec.Meta(ge=1)] | None,
        msgspec.Meta(description="Samples per batch; null for single samples."),
    ] = 1
    shuffle: Annotated[
        bool, msgspec.Meta(description="A new order each epoch; runs with the same dataset seed repeat it.")
    ] = False
    seed: Annotated[int | None, msgspec.Meta(description="The seed of the order; by default that of the dataset.")] = (
        None
    )
    block_size: Annotated[
        Annotated[int, msgspec.Meta(ge=1)] | Literal["member"] | None,
        msgspec.Meta(
            description="Shuffle blocks of this many neighbours, for cold disks; or members, while they are staged."
        ),
    ] = None
    window: Annotated[
        Annotated[int, msgspec.Meta(ge=1)] | None,
        msgspec.Meta(description="Blocks whose samples are mixed; 8 by default, 2 of members."),
    ] = None
    balance: Annotated[
        str | None, msgspec.Meta(description="A field, such as label: all of its values come equally often.")
    ] = None
    weights: Annotated[
        str | list[float] | dict[Any, Any] | None,
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
        dict[str | int, Ragged],
        msgspec.Meta(
            description="Element or role that varies in length: mask (padded, with a mask), pad (padded alone) or list."
        ),
    ] = msgspec.field(default_factory=dict)
    pad_images: Annotated[
        bool | list[str | int] | dict[str | int, float],
        msgspec.Meta(
            description="Pad images of different sizes, with a mask: true, elements or roles, or what fills each of them."
        ),
    ] = False
    label_offset: Annotated[
        int, msgspec.Meta(description="Added to the labels of collate = 'detection'; 1 for torchvision's models.")
    ] = 0
    num_workers: Annotated[
        Annotated[int, msgspec.Meta(ge=0)] | Literal["auto"],
        msgspec.Meta(
            description="Worker processes, or threads; auto: the CPUs of this process, divided among the ranks."
        ),
    ] = 0
    start_method: Annotated[
        Literal["fork", "spawn", "forkserver", "thread"] | None,
        msgspec.Meta(description="How workers start; thread makes them threads of this process."),
    ] = None
    persistent_workers: Annotated[bool, msgspec.Meta(description="Keep workers between epochs.")] = False
    prefetch_factor: Annotated[
        Annotated[int, msgspec.Meta(ge=1)] | None, msgspec.Meta(description="Batches loaded ahead by each worker.")
    ] = None
    pin_memory: Annotated[bool, msgspec.Meta(description="Copy batches to pinned memory, for CUDA.")] = False
    pin_memory_device: Annotated[str, msgspec.Meta(description="The device of pinned memory; CUDA by default.")] = ""
    timeout: Annotated[
        float, msgspec.Meta(ge=0, description="Seconds to wait for a batch from a worker; 0 for no limit.")
    ] = 0
    in_order: Annotated[
        bool, msgspec.Meta(description="Return batches in the sampler's order; false returns ready ones first.")
    ] = True
    worker_init_fn: Annotated[
        str | None, msgspec.Meta(description="The dotted path of a function called in each worker.")
    ] = None
    log_every: Annotated[
        Annotated[float, msgspec.Meta(gt=0)] | None,
        msgspec.Meta(description="Log every so many seconds what limits the training."),
    ] = None

    @classmethod
    def of_arguments(cls, arguments: Mapping[str, Any], where: str) -> LoaderSettings:
        """Validate arguments of a loader, which may be functions, arrays and numbers of NumPy too; raises ConfigError.

        None stands for the default, except that of `batch_size`.
        """
        given = {name: value.item() if isinstance(value, np.generic) else value for name, value in arguments.items()}
        given = {name: value for name, value in given.items() if value is not None or name == "batch_size"}
        objects = {name: value for name, value in given.items() if callable(value) or hasattr(value, "__array__")}
        objects = {name: value for name, value in objects.items() if name in ("collate", "weights", "worker_init_fn")}
        named = {name: value for name, value in given.items() if name not in objects}
        return structs.replace(cls.validated(named, where, "argument"), **objects)

    def for_workers(self, context: Any = None) -> dict[str, Any]:
        """Return the arguments of a DataLoader about workers; without any, their defaults, so ``num_workers = 0`` is enough.

        Parameters
        ----------
        context : optional
            ``multiprocessing_context``, which says how workers start if `start_method` does not.

        Raises
        ------
        ConfigError
            A setting contradicts `start_method`, or the function cannot be imported.
        """
        contradicting = {"multiprocessing_context": context} if self.start_method is not None else {}
        if self.start_method == "thread":
            contradicting |= {name: getattr(self, name) for name in _OF_PROCESSES} | {"in_order": not self.in_order}
        for name in (name for name, value in contradicting.items() if value):
            raise ConfigError(f"start_method is {self.start_method!r}, which takes no {name}: leave out one of them")
        workers = _cpus_of_this_rank() if self.num_workers == "auto" else self.num_workers
        if not workers:
            return {"num_workers": 0}
        return {
            "num_workers": workers,
            "multiprocessing_context": context if self.start_method in (None, "thread") else self.start_method,
            "persistent_workers": self.persistent_workers,
            "prefetch_factor": self.prefetch_factor,
            "timeout": self.timeout,
            "worker_init_fn": self.function("worker_init_fn"),
        }

    def collate_fn(self) -> Callable[..., Any] | None:
        """Return the function that makes batches; None for PyTorch's own, and for samples that are not batched.

        Raises
        ------
        ConfigError
            The function cannot be imported, or a setting is for batches that are made in another way.
        """
        way = self.collate if self.batch_size is not None else None
        options = {name: value for name, value in self.changed().items() if name in _OPTIONS}
        for name in options:
            if way != _OPTIONS[name]:
                given = "batch_size = null" if way is None else f"collate = {way!r}"
                made = _FUNCTIONS[_OPTIONS[name]].replace(":", ".")
                raise ConfigError(f"{name} is for batches that {made} makes, and the loader has {given}")
        if self.collate == "detection" and way is None:
            raise ConfigError("collate = 'detection' makes batches, and batch_size = null makes none")
        if isinstance(way, str) and way in _FUNCTIONS:  # a function may have no hash
            function: Callable[..., Any] = import_object(_FUNCTIONS[way])
            return functools.partial(function, **options) if options else function
        return None if self.collate in (*_FUNCTIONS, "default") else self.function("collate")

    def function(self, name: str) -> Callable[..., Any] | None:
        """Return the function that a setting names; raise ConfigError if it cannot be imported."""
        path = getattr(self, name)
        if path is None or callable(path):
            return cast("Callable[..., Any] | None", path)
        if name == "collate" and "." not in path and ":" not in path:
            known = (*_FUNCTIONS, "default")
            raise ConfigError(
                f"unknown collate {path!r}; {suggest(path, known, 'values')}, and dotted paths of functions"
            )
        try:
            found = import_object(path if ":" in path else ":".join(path.rsplit(".", 1)))
        except (ImportError, ValueError) as error:
            raise ConfigError(f"{name} {path!r} cannot be imported: {error}") from error
        if not callable(found):
            raise ConfigError(f"{name} {path!r} is not a function but a {type(found).__name__}")
        return cast("Callable[..., Any]", found)


def _cpus_of_this_rank() -> int:
    """Return how many CPUs this process may use, divided among the ranks.

    torchrun says how many ranks this machine has. Without it, all processes of torch.distributed count.
    """
    from storeds.loaders.seeds import world_size

    ranks = int(os.environ.get("LOCAL_WORLD_SIZE", "0")) or world_size()
    return max(len(os.sched_getaffinity(0)) // ranks, 1)
