"""Decides what the columns of a CSV or JSONL list hold: images, masks, labels, boxes, captions, other values."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

from storeds.errors import ConfigError, suggest
from storeds.ops.packing.sources.annotations import BoxColumn, FileColumn, LabelLists, OneHot
from storeds.ops.packing.sources.base import IMAGE_SUFFIXES, Root
from storeds.ops.packing.sources.columns import (
    LABEL_COLUMNS,
    LESS_CERTAIN,
    CaptionColumn,
    JsonColumn,
    Labels,
    LabelStyle,
    TextColumn,
    field_names,
    likely_label,
    no_label,
)
from storeds.protocols import Field
from storeds.records.roles import BOX_FORMATS

__all__ = ["PATH_COLUMNS", "AnyLabels", "Collector", "ListOptions", "ListPlan"]

PATH_COLUMNS = (
    "path",
    "image",
    "file",
    "filename",
    "filepath",
    "file_name",
    "img",
    "file_path",
    "image_path",
    "img_path",
    "image_file",
    "image_name",
    "img_name",
)
MASK_COLUMNS = ("mask", "mask_path", "mask_file", "mask_name", "mask_file_name")
CAPTION_COLUMNS = ("caption", "captions", "text", "description")
BOX_COLUMNS = ("boxes", "bbox", "bboxes")

AnyLabels: TypeAlias = Labels | LabelLists | OneHot
Collector: TypeAlias = TextColumn | JsonColumn | CaptionColumn | FileColumn | BoxColumn


@dataclass(frozen=True)
class ListOptions:
    """The options of `ManifestSource` that say what columns hold."""

    path_column: str | None = None
    label_column: str | None = None
    label: bool = True
    image_columns: Sequence[str] | None = None
    mask_columns: Sequence[str] | None = None
    caption_columns: Sequence[str] | None = None
    box_column: str | None = None
    box_format: str | None = None
    box_relative: bool = False
    label_separator: str | None = None
    label_columns: Sequence[str] | None = None

    def wanted(self) -> tuple[str, ...]:
        """Return the column names of which a header has at least one, in lower case."""
        given = self.image_columns or ([] if self.path_column is None else [self.path_column])
        return tuple(name.strip().lower() for name in given) or PATH_COLUMNS


class ListPlan:
    """What each column of a list holds.

    Parameters
    ----------
    where : str
        The name of the list in messages.
    names : sequence of str
        Its columns.
    rows : sequence of mapping
        The first rows, which show what columns hold.
    options : ListOptions
    classes, style
        As for `Labels`.

    Attributes
    ----------
    paths : str
        The column of the paths that become keys.
    image : str
        The field of these images.
    label_names : tuple of str
        The column of labels, or those with 0 or 1; none without labels.
    labels : Labels, LabelLists, OneHot or None
        Collects the labels.
    rest : dict
        Each other column → its field.
    columns : dict
        Every column → its field.
    texts : tuple of str
        The fields of captions.
    has_masks : bool
        Whether a column holds masks.
    if_doubled : str
        What messages about a path that is listed twice advise.
    notes : tuple of str
        Warnings about columns that may hold more than what they are stored as.

    Raises
    ------
    ConfigError
        There is no column of paths, an option names a column that does not exist, or columns are ambiguous.
    """

    def __init__(
        self,
        where: str,
        names: Sequence[str],
        rows: Sequence[Mapping[str, Any]],
        options: ListOptions,
        classes: list[str] | None,
        style: LabelStyle,
    ) -> None:
        self._where, self._names, self._rows, self._options = where, list(names), rows, options
        self._by_name = {name.strip().lower(): name for name in reversed(names)}
        self._images = self._find_images()
        self._masks = self._find_masks()
        self._boxes, self._box_field = self._find_boxes()
        self._captions = self._given("caption_columns", options.caption_columns)
        self.paths = self._images[0]
        self._check_purposes()
        self.label_names = self._find_labels()
        self.labels = self._collect_labels(classes, style)
        fixed = self._fixed()
        free = field_names([name for name in names if name not in fixed], ("key", *fixed.values()), where)
        own = (self.paths, *self.label_names)
        self.columns: dict[str, str | None] = {name: fixed.get(name) or free[name] for name in names}
        self.rest = {name: fixed.get(name) or free[name] for name in names if name not in own}
        self.image = fixed[self.paths]
        self.texts = tuple(self.rest[name] for name in self._captions)
        self.has_masks = bool(self._masks)
        asked = ",".join(self._captions) if options.caption_columns is None else ""
        self.if_doubled = (
            f"; caption_columns= (--caption-columns {asked}) joins the captions of one image" if asked else ""
        )
        self.notes = tuple(self._notes([name for name in names if name not in fixed]))

    def collectors(self, kind: Literal["csv", "jsonl"], root: Root) -> dict[str, Collector]:
        """Return what collects each column of `rest`, by field."""
        found: dict[str, Collector] = {}
        for name, field in self.rest.items():
            if name in self._images or name in self._masks:
                found[field] = FileColumn(name, root, "image" if name in self._images else "mask")
            elif name == self._boxes and self._box_field is not None:
                found[field] = BoxColumn(name, self._box_field)
            else:
                each = TextColumn() if kind == "csv" else JsonColumn()
                found[field] = CaptionColumn(name, each) if name in (self._options.caption_columns or ()) else each
        return found

    def label_of(self, row: Mapping[str, Any]) -> Any:
        """Return the label of a row, or the cells with 0 or 1."""
        if isinstance(self.labels, OneHot):
            return [row.get(name) for name in self.label_names]
        return row.get(self.label_names[0]) if self.label_names else None

    def _given(self, option: str, columns: Sequence[str] | None) -> tuple[str, ...]:
        """Return the columns that an option names; raises ConfigError if one does not exist."""
        if isinstance(columns, str):
            raise ConfigError(f"{self._where}: {option}={columns!r} must be a list of columns")
        for name in columns or ():
            if name not in self._names:
                raise ConfigError(f"{self._where}: {option} names {name!r}; {suggest(name, self._names, 'columns')}")
        return tuple(columns or ())

    def _are_paths(self, name: str) -> bool:
        return _are_paths(row.get(name) for row in self._rows)

    def _find_images(self) -> tuple[str, ...]:
        """Return the columns of images. Several are detected only in a list without a usual column of paths."""
        given_path, where = self._options.path_column, self._where
        given = self._given("image_columns", self._options.image_columns)
        if given:
            if given_path is not None and given_path != given[0]:
                raise ConfigError(
                    f"{where}: path_column={given_path!r} is not the first of image_columns={list(given)}; leave it out"
                )
            return given
        if given_path is None and not any(name in PATH_COLUMNS for name in self._by_name):
            likely = [
                name for name in self._names if name.strip().lower() not in MASK_COLUMNS and self._are_paths(name)
            ]
            if len(likely) > 1:
                return tuple(likely)
        return (_path_column(where, self._names, given_path),)

    def _find_masks(self) -> tuple[str, ...]:
        if self._options.mask_columns is not None:
            return self._given("mask_columns", self._options.mask_columns)
        likely = [self._by_name[name] for name in MASK_COLUMNS if name in self._by_name]
        return tuple(name for name in likely if name not in self._images and self._are_paths(name))

    def _find_boxes(self) -> tuple[str | None, Field | None]:
        where, column, form = self._where, self._options.box_column, self._options.box_format
        if form is None:
            if column is not None or self._options.box_relative:
                raise ConfigError(
                    f"{where}: boxes need box_format= (--box-format): xyxy for left, top, right, bottom, xywh for left, top, "
                    "width, height, or cxcywh for the centre, width and height"
                )
            return None, None
        if form not in BOX_FORMATS:
            raise ConfigError(f"{where}: box_format={form!r}; {suggest(form, BOX_FORMATS, 'formats')}")
        found = column or next((self._by_name[name] for name in BOX_COLUMNS if name in self._by_name), None)
        if found is None:
            raise ConfigError(
                f"{where}: no column is named {', '.join(BOX_COLUMNS)}; name the column of boxes with box_column= (--box-column)"
            )
        self._given("box_column", [found])
        return found, Field("array", "<f8", (None, 4), "boxes", form, self._options.box_relative)

    def _check_purposes(self) -> None:
        boxes = [] if self._boxes is None else [self._boxes]
        used = [*self._images, *self._masks, *self._captions, *boxes, *(self._options.label_columns or ())]
        doubled = next((name for name in used if used.count(name) > 1), None)
        if doubled is not None:
            raise ConfigError(f"{self._where}: column {doubled!r} is given for two purposes")

    def _find_labels(self) -> tuple[str, ...]:
        """Return the columns of labels. In a list of captions without labels, this finds the captions."""
        where, options = self._where, self._options
        if options.label_columns is not None:
            if options.label_column is not None:
                raise ConfigError(f"{where}: label_column and label_columns contradict each other; leave one out")
            if not options.label_columns:
                raise ConfigError(f"{where}: label_columns is empty; name the columns with 0 or 1")
            return self._given("label_columns", options.label_columns)
        used = [*self._images[1:], *self._masks, *self._captions, *([] if self._boxes is None else [self._boxes])]
        free = [name for name in self._names if name not in used]
        if options.label and options.label_column is None and options.caption_columns is None:
            self._captions = self._likely_captions(free)
            free = [name for name in free if name not in self._captions]
        given = options.label_column if options.label else ""
        found = _label_column(where, free, self.paths, given, is_needed=not used and not self._captions)
        return () if found is None else (found,)

    def _likely_captions(self, free: Sequence[str]) -> tuple[str, ...]:
        by_name = {name.strip().lower(): name for name in free if name != self.paths}
        if any(name in by_name for name in (*LABEL_COLUMNS, *LESS_CERTAIN)):
            return ()
        return tuple(name for each, name in by_name.items() if each in CAPTION_COLUMNS)

    def _collect_labels(self, classes: list[str] | None, style: LabelStyle) -> AnyLabels | None:
        where, separator = self._where, self._options.label_separator
        if self._options.label_columns is not None:
            if classes is not None or separator is not None:
                raise ConfigError(
                    f"{where}: the names of label_columns are the classes; leave out classes and label_separator"
                )
            return OneHot(self.label_names)
        if separator is not None and (not self.label_names or not separator):
            what = (
                "needs labels; name them with label_column="
                if separator
                else "is empty; pass the text between two labels"
            )
            raise ConfigError(f"{where}: label_separator={separator!r} {what}")
        if not self.label_names:
            return None
        name = self.label_names[0]
        first = next((row[name] for row in self._rows if row.get(name) is not None), None)
        if separator is None and not isinstance(first, list):
            return Labels(where, classes, style)
        return LabelLists(where, name, classes, style, separator, of_boxes=self._boxes is not None)

    def _notes(self, others: Sequence[str]) -> Iterator[str]:
        for name in others:
            if self._are_paths(name):
                columns = ",".join((*self._images, name))
                yield (
                    f"column {name!r} contains paths of images, which are stored as text; image_columns= (--image-columns "
                    f"{columns}) packs these images too"
                )
            elif name.strip().lower() in BOX_COLUMNS and any(isinstance(row.get(name), list) for row in self._rows):
                yield (
                    f"column {name!r} is stored as JSON; if it contains boxes, box_format= (--box-format) stores them as such"
                )

    def _fixed(self) -> dict[str, str]:
        """Return the fields of columns that have a purpose."""
        label = "label" if isinstance(self.labels, Labels) else "labels"
        fixed = {self.paths: "image", **dict.fromkeys(self.label_names, label)}
        if self._boxes is not None:
            fixed[self._boxes] = "boxes"
        if len(self._masks) == 1:
            fixed[self._masks[0]] = "mask"
        several = [name for group in (self._images, self._masks) if len(group) > 1 for name in group]
        taken = [field for name, field in fixed.items() if name not in several]
        return {**fixed, **field_names(several, ("key", *taken), self._where)}


def _are_paths(values: Iterable[Any]) -> bool:
    """Whether values are paths of images, by their suffixes; empty cells do not count."""
    given = [value for value in values if value not in (None, "")]
    return bool(given) and all(isinstance(value, str) and value.lower().endswith(IMAGE_SUFFIXES) for value in given)


def _path_column(where: str, columns: Sequence[str], given: str | None) -> str:
    """Return the column of paths; raises ConfigError if there is none."""
    by_name = {column.strip().lower(): column for column in reversed(columns)}
    found = next((by_name[name] for name in PATH_COLUMNS if name in by_name), None) if given is None else given
    listed = ", ".join(map(repr, columns[:20]))
    if found is None:
        raise ConfigError(
            f"{where}: none of its columns {listed} is one of {', '.join(PATH_COLUMNS)}; name it with path_column= "
            "(--path-column), or, for CSV without a header, pass columns=['path', …] (--columns path,label)"
        )
    if found not in columns:
        raise ConfigError(f"{where}: path_column={found!r} is not one of its columns {listed}")
    return found


def _label_column(where: str, columns: Sequence[str], paths: str, given: str | None, *, is_needed: bool) -> str | None:
    """Return the column of labels, None to pack without labels; raises ConfigError if that is not clear.

    Labels are needed unless other columns have a meaning, too, such as masks.
    """
    if given == paths:
        raise ConfigError(f"{where}: column {paths!r} cannot contain both paths and labels")
    if given:
        if given not in columns:
            listed = ", ".join(map(repr, columns[:20]))
            raise ConfigError(f"{where}: label_column={given!r} is not one of its columns {listed}")
        return given
    others = [name for name in columns if name != paths]
    if given is not None or not others:  # label=False, or a plain list of paths
        return None
    named = {name.strip().lower(): name for name in reversed(others)}
    found = likely_label(where, named, [name for name in others if name.strip().lower() in LESS_CERTAIN])
    if found is None and is_needed:
        named_one = others[0] if len(others) == 1 else "NAME"
        say = f"name the column of labels with label_column= (--label-column {named_one})"
        raise no_label(where, "column", "paths", others, say)
    return found
