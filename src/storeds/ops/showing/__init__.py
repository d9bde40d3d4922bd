"""Shows records of a store: on one HTML page that needs nothing else, or on one picture.

`show` is the entry point. `records` chooses and reads records, `panels` makes their small pictures, `page.html` shows them
in a browser, and `sheet` draws them.
"""

from __future__ import annotations

import base64
import copy
import hashlib
import html
import json
import os
import secrets
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from storeds._utils.locations import redact
from storeds._utils.text import counted
from storeds.backends.opening import open_backend
from storeds.datasets.assembly import select
from storeds.errors import ConfigError
from storeds.ops.showing.panels import draw_parts, panel_of_pixels
from storeds.ops.showing.records import Collector, Shown, cut, spread, worst
from storeds.protocols import Array, SampleContext

if TYPE_CHECKING:
    from storeds.datasets.map_dataset import StoreDataset

__all__ = ["Page", "check_target", "show"]

_CONFIGS = (".toml", ".yaml", ".yml", ".json")
_EPOCHS = 4
_BINS = 24
_MOST_COUNTS, _MOST_HISTOGRAMS = 200, 12


@dataclass
class Page:
    """Records to look at, as a page or as a picture. In a notebook, it displays itself.

    Attributes
    ----------
    title : str
        The store, and how many of its records are shown.
    records : list of Shown
    counts : dict
        ``classes`` and ``splits`` → value → number of records.
    histograms : dict
        Name → least value, greatest value and how many values each bin has.
    """

    title: str
    records: list[Shown]
    counts: dict[str, dict[str, int]]
    histograms: dict[str, tuple[float, float, list[int]]]

    @property
    def html(self) -> str:
        """The page: one document without network access, in which every name and value is text."""
        counts = {name: [*found.items()] for name, found in self.counts.items()}
        histograms = [(name, *each) for name, each in self.histograms.items()]
        records = [record.to_json() for record in self.records]
        data = json.dumps({"title": self.title, "counts": counts, "histograms": histograms, "records": records})
        for letter in "<>&":  # no value ends the script; JSON of ASCII has no line separators
            data = data.replace(letter, f"\\u{ord(letter):04x}")
        folder = files(__package__)
        style, script = (folder.joinpath(f"page.{end}").read_text(encoding="utf-8") for end in ("css", "js"))
        digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
        page = folder.joinpath("page.html").read_text(encoding="utf-8")
        for name, text in (("digest", digest), ("style", style), ("script", script), ("data", data)):
            page = page.replace(f"{{{{ {name} }}}}", text)
        return page

    def _repr_html_(self) -> str:
        frame = 'sandbox="allow-scripts" style="width:100%;height:40rem;border:0" title="records"'
        return f'<iframe {frame} srcdoc="{html.escape(self.html)}"></iframe>'

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write a page (.html) or a picture (.png). An existing file is replaced atomically.

        Raises
        ------
        ConfigError
            The file has another ending, or its folder is missing or read-only.
        OSError
            It cannot be written.
        """
        target = check_target(path)
        aside = target.with_name(f".{target.name}.{secrets.token_hex(4)}.partial")
        try:
            if target.suffix.lower() == ".html":
                aside.write_text(self.html, encoding="utf-8")
            else:
                from storeds.ops.showing.sheet import draw_sheet

                draw_sheet(self.title, self.records).save(aside, "PNG")
            os.replace(aside, target)
        finally:
            aside.unlink(missing_ok=True)


def check_target(path: str | os.PathLike[str]) -> Path:
    """Return a path that can be written; raise ConfigError, before work that takes hours."""
    target = Path(path)
    if target.suffix.lower() not in (".html", ".png") or target.is_dir():
        raise ConfigError(f"records are shown in a file that ends in .html or .png, not {os.fspath(path)!r}")
    if not os.access(target.absolute().parent, os.W_OK):
        raise ConfigError(f"{target} cannot be written: its folder is missing or read-only")
    return target


def show(
    source: str | os.PathLike[str] | StoreDataset,
    indices: Sequence[int] | None = None,
    *,
    count: int = 200,
    where: Mapping[str, Any] | None = None,
    keys: str | os.PathLike[str] | None = None,
    worst_first: bool = False,
    config: str | os.PathLike[str] | None = None,
    split: str | None = None,
    layout: str | None = None,
    options: Mapping[str, Any] | None = None,
) -> Page:
    """Collect records to look at: small pictures with masks, boxes and keypoints, texts, damage, and counts.

    Parameters
    ----------
    source : str, path or StoreDataset
        A store, a training config, or a dataset.
    indices : sequence of int, optional
        The records. By default `count` of them, spread over classes and splits.
    count : int
        At most so many records.
    where, keys : mapping, str, optional
        As for `StoreDataset`.
    worst_first : bool
        The damaged records, those of which least is left first, and then those with the most unusual numbers.
    config : str or path, optional
        A training config: each record is followed by what its transforms make of it in four epochs.
    split : str, optional
        A split of the config.
    layout, options
        As for `open_backend`.

    Raises
    ------
    ConfigError
        An argument does not fit; see `StoreDataset`.
    StoredsError
        The store cannot be opened.
    """
    from storeds.datasets.map_dataset import StoreDataset

    if isinstance(source, StoreDataset):
        return _show_dataset(source, indices, count, worst_first, as_trained=False)
    is_config = os.fspath(source).endswith(_CONFIGS)
    if is_config or config is not None:
        from storeds.config import build_dataset, load_config

        given = {"url": None if is_config else os.fspath(source), "where": where, "keys": keys and os.fspath(keys)}
        overrides = [f"dataset.{name}={json.dumps(value)}" for name, value in given.items() if value is not None]
        dataset = build_dataset(load_config(config or source, overrides=overrides), split)
        if not isinstance(dataset, StoreDataset):
            raise ConfigError(f"{config or source} mixes several sources; show one of them by its URL")
        with dataset.backend:
            return _show_dataset(dataset, indices, count, worst_first, as_trained=config is not None)
    if split is not None:
        raise ConfigError("--split names a split of a config; of a store, select with --where split=NAME")
    if indices is not None and not len(indices):  # the store may be one that cannot be opened
        return Page(f"{redact(os.fspath(source))}: no records", [], {}, {})
    with open_backend(source, layout=layout, **(options or {})) as backend:
        return _collected(Collector(select(backend, where, None, keys)), indices, count, worst_first)


def _collected(collector: Collector, indices: Sequence[int] | None, count: int, worst_first: bool) -> Page:
    total, columns = len(collector.view), collector.columns()
    if indices is None and worst_first:
        indices = worst(collector, columns, count)
    elif indices is None:
        by = [columns[name] for name in dict.fromkeys((collector.label, "split")) if name in columns]
        indices = spread(total, count, by)
    records = list(collector.collect(indices))
    _tag_duplicates(records)
    counts = {}
    for what, name, shown in (
        ("classes", collector.label, [each.label for each in records]),
        ("splits", "split", [each.split for each in records]),
    ):
        found = Counter(columns[name].tolist() if name in columns else filter(None, shown)).most_common(_MOST_COUNTS)
        named = collector.class_name if what == "classes" and name in columns else lambda value: cut(str(value))
        counts[what] = {named(value): number for value, number in found}
    sizes = np.array(
        [each.panels[0].size for each in records if each.panels and any(each.panels[0].size)], float
    ).reshape(-1, 2)
    numbers = {"width of the shown": sizes[:, 1], "height of the shown": sizes[:, 0]}
    numbers |= {name: each for name, each in columns.items() if each.dtype.kind in "if" and name != collector.label}
    histograms = {name: bins for name, each in numbers.items() if (bins := _histogram(each)) is not None}
    title = f"{collector.view.url}: {len(records):,} of {counted(total, 'record')}"
    return Page(title, records, counts, dict([*histograms.items()][:_MOST_HISTOGRAMS]))


def _tag_duplicates(records: Sequence[Shown]) -> None:
    seen = Counter(record.checksum for record in records if record.checksum)
    for record in records:
        if seen[record.checksum] > 1:
            record.tags.append("duplicate")
            record.notes.append(f"{seen[record.checksum]} of the shown records have exactly this picture")


def _histogram(values: Array) -> tuple[float, float, list[int]] | None:
    numbers = values[np.isfinite(values)]
    if not len(numbers):
        return None
    low, high = float(numbers.min()), float(numbers.max())
    if low == high:
        return low, high, [len(numbers)]
    return low, high, np.histogram(numbers.astype(np.float64), _BINS, (low, high))[0].tolist()


def _show_dataset(
    dataset: StoreDataset, indices: Sequence[int] | None, count: int, worst_first: bool, *, as_trained: bool
) -> Page:
    """Show records of a dataset; of clips and windows, and as trained, what its samples hold."""
    plain = copy.copy(dataset)
    plain.transforms = plain.transform = plain.target_transform = None
    plain.as_dict = True
    collector = Collector(dataset.view, dataset.reader)
    if indices is not None:
        indices = [range(len(dataset))[index] for index in indices]
    if not as_trained and len(dataset) == len(dataset.view):
        return _collected(collector, indices, count, worst_first)
    if indices is None:
        indices = spread(len(dataset), count, [])
    firsts = [int(dataset.reader.locate(index, SampleContext(index, 0, dataset.seed))[0]) for index in indices]
    page = _collected(collector, firsts, count, worst_first=False)
    varied = copy.copy(dataset)
    varied.as_dict = True
    for record, index in zip(page.records, indices, strict=True):
        record.panels = [] if len(dataset) != len(dataset.view) else record.panels
        for epoch in range(_EPOCHS) if as_trained else (None,):
            if epoch is not None:
                varied.set_epoch(epoch)
            _add_sample(record, varied if as_trained else plain, index, "" if epoch is None else f", epoch {epoch}")
    return page


def _add_sample(record: Shown, dataset: StoreDataset, index: int, when: str) -> None:
    """Add what a sample holds to a record: its pictures and clips, with what lies over them."""
    from storeds.errors import RecordError
    from storeds.readers import SampleReader

    try:
        sample = dataset[index]
    except RecordError as error:
        record.notes.append(cut(f"sample{when}: {error}"))
        return
    reader = dataset.reader
    declared = reader.declared() if isinstance(reader, SampleReader) else {}
    parts = {name: (each, sample[name]) for name, each in declared.items() if name in sample}
    images = [name for name, value in sample.items() if _is_picture(value, declared.get(name))]
    panels = [panel_of_pixels(f"{name}{when}", sample[name]) for name in images]
    if panels and parts:
        over = ("mask", "boxes", "keypoints", "labels")
        draw_parts(panels[0], {n: part for n, part in parts.items() if part[0].role in over}, None)
    record.panels += panels


def _is_picture(value: Any, declared: Any) -> bool:
    if declared is not None and declared.role is not None:
        return bool(declared.role == "image")
    shape = getattr(value, "shape", ())
    return hasattr(value, "convert") or (len(shape) > 2 and min(shape[-2:]) > 1)
