"""The commands about training: bench, config check, config schema."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from storeds import ops
from storeds.cli.app import (
    TRAIN,
    AsJson,
    Layout,
    Options,
    command,
    config_app,
    named_values,
    print_json,
    print_result,
    print_table,
    progress,
)
from storeds.errors import ConfigError

__all__ = ["bench", "check", "schema"]


@command(TRAIN, "storeds bench train.lmdb", "storeds bench --config train.toml --split train --workers 0,2,4")
def bench(
    url: Annotated[
        str | None,
        typer.Argument(metavar="[STORE]", help="A store: a URL, a file or a folder; by default that of --config."),
    ] = None,
    config: Annotated[Path | None, typer.Option(help="A training config, whose dataset and loader apply.")] = None,
    split: Annotated[str | None, typer.Option(help="A split of the config.")] = None,
    reader: Annotated[str | None, typer.Option(help="image, sample, array, video or a registered reader.")] = None,
    decode: Annotated[str | None, typer.Option(help="pil, tensor, fast, bytes or a registered decoder.")] = None,
    workers: Annotated[
        str | None, typer.Option(help="Numbers of workers, as in 0,2,8; by default 0, 1, 2, 4, … up to the CPUs.")
    ] = None,
    batch_size: Annotated[int | None, typer.Option(help="64 by default, or that of the config.")] = None,
    seconds: Annotated[float, typer.Option(help="Duration of each measurement.")] = 3.0,
    layout: Layout = None,
    option: Options = None,
    as_json: AsJson = False,
) -> None:
    """Measure how fast a store gives batches, and which stage takes most of the time."""
    with progress("bench", quiet=as_json) as hook:
        report = ops.bench(
            url,
            config=config,
            split=split,
            reader=reader,
            decode=decode,
            workers=None if workers is None else [_number(part) for part in workers.split(",")],
            batch_size=batch_size,
            seconds=seconds,
            layout=layout,
            options=named_values(option),
            progress=hook,
        )
    print_result(report, as_json=as_json)


def _number(text: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise ConfigError(f"--workers takes numbers separated by commas, as in 0,2,8, got {text!r}") from None


@command(TRAIN, "storeds config check train.toml", of=config_app)
def check(
    path: Annotated[Path, typer.Argument(metavar="CONFIG", help="A .toml, .json or .yaml file.")],
    split: Annotated[
        list[str] | None, typer.Option(help="A split; may be repeated. By default all in [splits].")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Open the stores of a config, and make the first sample and the first batch of each split as training would."""
    from storeds.config import load_config

    config = load_config(path)
    names: Sequence[str | None] = split or [*config.splits] or [None]
    rows = [_checked(config, name) for name in names]
    if as_json:
        print_json({"splits": rows})
    else:
        print_table(
            {"split": "left", "samples": "right", "batches": "right", "sample": "left", "store": "left"},
            (
                (row["split"] or "", f"{row['samples']:,}", f"{row['batches']:,}", row["sample"], row["url"])
                for row in rows
            ),
        )


def _checked(config: Any, split: str | None) -> dict[str, Any]:
    from storeds.config import build_loader
    from storeds.loaders import StoreLoader

    loader = build_loader(config, split)
    dataset: Any = loader.dataset
    sample = _described(dataset[0]) if len(dataset) else "the split is empty"
    if len(loader):
        next(iter(StoreLoader(dataset, **(config.loader_for(split).changed() | {"num_workers": 0}))))
    return {"split": split, "samples": len(dataset), "batches": len(loader), "sample": sample, "url": _urls(dataset)}


def _urls(dataset: Any) -> str:
    from storeds.datasets.tree import leaves

    return ", ".join(str(leaf.url) for leaf in leaves(dataset))


def _described(sample: Any) -> str:
    """Return the types and shapes of a sample's elements, in a line."""
    if isinstance(sample, dict):
        return ", ".join(f"{name} {_described(value)}" for name, value in sample.items())
    if isinstance(sample, tuple):
        return ", ".join(map(_described, sample))
    shape = getattr(sample, "shape", None)
    if shape is not None:
        return f"{str(sample.dtype).removeprefix('torch.')} {list(shape)}"
    size = getattr(sample, "size", None)
    return f"{sample.mode} {size[0]} × {size[1]}" if isinstance(size, tuple) else type(sample).__name__


@command(TRAIN, "storeds config schema > storeds.schema.json", of=config_app)
def schema(as_json: AsJson = False) -> None:
    """Print the JSON Schema of a config."""
    from storeds.config import config_schema

    sys.stdout.write(json.dumps(config_schema(), indent=None if as_json else 2) + "\n")
