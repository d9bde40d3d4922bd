"""Shows records of a store: on one HTML page that needs nothing else, or on one picture.

`show` is the entry point. `records` chooses and reads records, `panels` makes their small pictures, `page.html` shows them
in a browser, and `sheet` draws them.
"""

from __future__ import annotations

import base64
import copy
import hashlib
import html
import io
import json
import math
import os
from collections import Counter
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Any

from jinja2 import Environment
from PIL import Image

from storeds._utils.text import counted
from storeds.backends.opening import open_backend
from storeds.backends.selecting import select
from storeds.backends.staging import replace_file, reporting
from storeds.errors import ConfigError, RecordError
from storeds.ops.showing.counts import counts_of, histograms_of
from storeds.ops.showing.panels import mark_parts, panel_of
from storeds.ops.showing.records import Collector, Shown, cut, is_picture, noted, spread
from storeds.ops.showing.sheet import draw_sheet
from storeds.protocols import SampleContext
from storeds.readers.reader import built_in
from storeds.redaction import redact

if TYPE_CHECKING:
    from storeds.datasets.map_dataset import StoreDataset

__all__ = ["Page", "check_target", "configured_datasets", "show"]

_CONFIGS = (".toml", ".yaml", ".yml", ".json")
_EPOCHS = 4
_PAGE_BYTES = 3_400_000  # of all pictures; base64 adds a third
_BYTES_A_PIXEL = 0.16  # of photographs, at quality 75
_TINY = 128**2  # pixels of a picture that is shown without loss


@dataclass
class Page:
    """Records to look at, as a page or as a picture. In a notebook, it displays itself.

    Attributes
    ----------
    title : str
        The store, and how many of its records are shown.
    records : list
    counts : dict
        ``classes``, ``splits``, and each field of few different integers → value → number of records.
    histograms : dict
        The name of each other number → range of values → number of records.
    """

    title: str
    records: list[Shown]
    counts: dict[str, dict[str, int]] = field(default_factory=dict)
    histograms: dict[str, dict[str, int]] = field(default_factory=dict)

    @property
    def across(self) -> int:
        """How many pictures each tile has."""
        return max((len(record.in_tile) for record in self.records), default=1) or 1

    @property
    def layers(self) -> list[str]:
        """What lies over pictures: ``boxes``, ``keypoints``, ``masks``."""
        return sorted({layer for record in self.records for panel in record.panels for layer in panel.layers})

    @property
    def html(self) -> str:
        """One document that loads nothing, in which every name and value is text."""
        folder = files(__package__)
        page, style, script = (folder.joinpath(f"page.{end}").read_text("utf-8") for end in ("html", "css", "js"))
        digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
        template = Environment(autoescape=True, trim_blocks=True, lstrip_blocks=True).from_string(page)
        images = [each.image for record in self.records for each in record.panels if each.image is not None]
        room = _PAGE_BYTES // max(len(images), 1)
        with ThreadPoolExecutor(len(os.sched_getaffinity(0)), "storeds-show") as pool:  # encoders release Python's lock
            encoded = pool.map(lambda image: _data_uri(_fitting(image, room)), images)
            uris = {id(image): uri for image, uri in zip(images, encoded, strict=True)}
        colours = {each.label: each.colour for each in self.records}
        tools = {"uri": lambda image: uris[id(image)], "mask_uri": lambda mask: _data_uri(_encoded(mask, "PNG"))}
        return template.render(page=self, style=style, script=script, digest=digest, colours=colours, **tools)

    def _repr_html_(self) -> str:
        frame = 'sandbox="allow-scripts" style="width:100%;height:40rem;border:0" title="records"'
        return f'<iframe {frame} srcdoc="{html.escape(self.html)}"></iframe>'

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write a page (.html) or a picture (.png). An existing file is replaced atomically, behind symbolic links.

        Raises
        ------
        ConfigError
            The file has another ending, or its folder is missing or not writable.
        StoredsError
            It cannot be written.
        """
        target, is_page = check_target(path), os.fspath(path).lower().endswith(".html")
        data = self.html.encode() if is_page else _encoded(draw_sheet(self.title, self.records, self.across), "PNG")
        with reporting(str(target), target.parent):
            replace_file(target, data)


def _encoded(image: Image.Image, form: str, **options: Any) -> bytes:
    file = io.BytesIO()
    image.save(file, form, **options)
    return file.getvalue()


def _fitting(image: Image.Image, room: int) -> bytes:
    """Return a picture as a file of about at most `room` bytes: as it is if that fits, or else with less detail."""
    if image.width * image.height <= _TINY:
        return _encoded(image, "PNG")
    for quality, sampling in ((90, 0), (75, 2)):
        data = _encoded(image, "JPEG", quality=quality, subsampling=sampling)
        if len(data) <= room:
            return data
    scale = max(math.sqrt(room / len(data)), 0.25)
    smaller = image.resize((max(int(scale * image.width), 1), max(int(scale * image.height), 1)), reducing_gap=2.0)
    return _encoded(smaller, "JPEG", quality=75)


def _data_uri(data: bytes) -> str:
    """Return a PNG or a JPEG as a ``data:`` URI."""
    form = "png" if data.startswith(b"\x89PNG") else "jpeg"
    return f"data:image/{form};base64,{base64.b64encode(data).decode()}"


def check_target(path: str | os.PathLike[str]) -> Path:
    """Return the file behind a path, which can be written; raise ConfigError, before work that takes hours."""
    target = Path(os.path.realpath(path))
    if Path(path).suffix.lower() not in (".html", ".png") or os.path.isdir(target):
        raise ConfigError(f"records are shown in a file that ends in .html or .png, not {os.fspath(path)!r}")
    if not os.path.isdir(target.parent):
        raise ConfigError(f"{target} cannot be written: there is no folder {target.parent}; create it first")
    if not os.access(target.parent, os.W_OK | os.X_OK):
        raise ConfigError(
            f"{target} cannot be written: its folder is read-only for this user; allow this user to write there, or choose "
            "another path"
        )
    return target


def show(
    source: str | os.PathLike[str] | StoreDataset,
    indices: Sequence[int] | None = None,
    *,
    count: int = 200,
    where: Mapping[str, Any] | str | None = None,
    keys_file: str | os.PathLike[str] | None = None,
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
    where, keys_file : mapping, str, optional
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
    if not isinstance(source, (str, os.PathLike)):
        return _page_of_dataset(source, indices, count, worst_first, as_trained=False)
    parts = configured_datasets(source, config, split, where=where, keys_file=keys_file and os.fspath(keys_file))
    if parts is not None:
        if layout is not None or options:
            raise ConfigError("--layout and --option are for a store; a config has them in its [dataset]")
        pages, most = [], -(-count // len(parts))
        for dataset in parts:
            with dataset.backend:
                pages.append(_page_of_dataset(dataset, indices, most, worst_first, as_trained=config is not None))
        return pages[0] if len(pages) == 1 else _joined(pages)
    if split is not None:
        raise ConfigError("--split names a split of a config; of a store, select with --where split=NAME")
    if indices is not None and not len(indices):  # the store may be one that cannot be opened
        return Page(f"{redact(os.fspath(source))}: no records", [])
    with open_backend(source, layout=layout, **(options or {})) as backend:
        view = select(backend, where, keys_file=keys_file)
        collector = Collector(view, pixels=_pixels(min(count, len(view)) if indices is None else len(indices)))
        return _page(collector, collector.choose(count, worst_first=worst_first) if indices is None else indices)


def configured_datasets(
    source: str | os.PathLike[str],
    config: str | os.PathLike[str] | None,
    split: str | None,
    **settings: Any,
) -> Sequence[Any] | None:
    """Return the datasets of a config, with a store in place of its own and other settings; None without a config."""
    is_config = os.fspath(source).endswith(_CONFIGS)
    if not is_config and config is None:
        return None
    from storeds.config import build_dataset, load_config
    from storeds.datasets.map_dataset import StoreDataset

    given = {"url": None if is_config else os.fspath(source), **settings}
    overrides = [f"dataset.{name}={json.dumps(value)}" for name, value in given.items() if value is not None]
    if not is_config:  # every split has this store now, and nothing is trained
        overrides.append("allow_overlap=true")
    built = build_dataset(load_config(config or source, overrides=overrides), split)
    return [built] if isinstance(built, StoreDataset) else built.datasets


def _pixels(pictures: int) -> int:
    """Return how many pixels each of so many pictures may have on a page."""
    return int(_PAGE_BYTES / max(pictures, 1) / _BYTES_A_PIXEL)


def _joined(pages: Sequence[Page]) -> Page:
    """Return the records of all sources of a mixture, with the counts of each."""
    counts, histograms = (
        {f"{name} of {page.title}": each for page in pages for name, each in getattr(page, what).items()}
        for what in ("counts", "histograms")
    )
    title = "; ".join(page.title for page in pages)
    return Page(title, [each for page in pages for each in page.records], counts, histograms)


def _page(collector: Collector, positions: Sequence[int]) -> Page:
    records = list(collector.collect(positions))
    seen = Counter(record.checksum for record in records if record.checksum)
    for record in records:
        if seen[record.checksum] > 1:
            record.tags.append("duplicate")
            record.notes.append(f"{seen[record.checksum]} of the shown records have exactly this picture")
    title = f"{collector.view.url}: {len(records):,} of {counted(len(collector.view), 'record')}"
    return Page(title, records, counts_of(collector, records), histograms_of(collector, records))


def _page_of_dataset(
    dataset: StoreDataset, indices: Sequence[int] | None, count: int, worst_first: bool, *, as_trained: bool
) -> Page:
    """Show records of a dataset; as trained, and where a sample has many records, with what its samples hold."""
    from storeds.datasets.tree import resolve_indices

    pictures = (min(count, len(dataset)) if indices is None else len(indices)) * (1 + _EPOCHS * as_trained)
    pixels = _pixels(pictures)
    collector = Collector(dataset.records, dataset.reader, pixels)
    is_record = len(dataset) == len(dataset.records)
    if indices is not None:
        indices = resolve_indices(indices, len(dataset), dataset.url)
    elif is_record:
        indices = collector.choose(count, worst_first=worst_first)
    else:
        indices = spread(len(dataset), count, [])
    contexts = (SampleContext(index, 0, dataset.seed) for index in indices)
    page = _page(collector, [int(dataset.reader.locate(context.index, context)[0]) for context in contexts])
    if is_record and not as_trained:
        return page
    trained = copy.copy(dataset)
    trained.as_dict = True
    if not as_trained:
        trained.transforms = trained.transform = trained.target_transform = None
    for record, index in zip(page.records, indices, strict=True):
        record.panels = record.panels if is_record else []
        for epoch in range(_EPOCHS if as_trained else 1):
            if as_trained:
                trained.set_epoch(epoch)
            when = f", epoch {epoch}" if as_trained else ""
            _add_sample(record, trained, index, when, collector.classes, pixels)
    return page


def _add_sample(
    record: Shown, dataset: StoreDataset, index: int, when: str, classes: Mapping[str, Sequence[str]], pixels: int
) -> None:
    """Add the pictures and clips of a sample to a record, with what lies over the first of them."""
    try:
        sample, reader = dataset[index], dataset.reader
    except RecordError as error:
        record.notes.append(cut(f"sample{when}: {error}"))
        return
    own = built_in(reader)
    declared = {} if own is None else own.declared()
    panels = [
        panel_of(f"{name}{when}", value, pixels)
        for name, value in sample.items()
        if hasattr(value, "convert")
        or (getattr(value, "ndim", 0) > 2 and (name not in declared or is_picture(name, declared[name])))
    ]
    record.panels += panels
    if panels:
        box_format = None if own is None or own.joint is None else own.joint.box_format
        formats = {name: replace(each, format=box_format or each.format) for name, each in declared.items()}
        parts = {name: (each, sample[name]) for name, each in formats.items() if name in sample}
        with noted(record, panels[0].name):
            mark_parts(panels[0], parts, classes)
