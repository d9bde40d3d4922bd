"""Record patterns: where each field of a record lies in a store that another tool wrote.

A pattern maps each field to a *place*, such as ``{"image": "{label}/images[]"}``. `docs/patterns.md` specifies the grammar,
which is the same for HDF5, LMDB and MongoDB. The engines look for the places; this module only parses and fills them.
"""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn

from storeds.errors import ConfigError
from storeds.protocols import Field
from storeds.records.fields import parse_fields
from storeds.values.classes import distinct_classes
from storeds.values.names import field_name

__all__ = [
    "ATTRIBUTES",
    "EVERYTHING",
    "KEY",
    "NO_FILE",
    "NameFields",
    "Pattern",
    "Place",
    "Template",
    "check_names",
    "escaped",
    "natural_order",
    "parse_pattern",
    "shared_names",
]

KEY = "key"
"""The name that ``{}`` stands for."""
EVERYTHING = "*"
"""The field whose place holds any number of fields, under their own names."""
ATTRIBUTES = "@"
"""The field whose place is an object, all attributes of which are fields."""

_ESCAPES = {"::::": "::", "[[]]": "[]", "@@": "@"}
"""A mark written twice → the mark as a part of a name."""
_TOKENS = re.compile(r"\{\{|\}\}|\{[^{}]*\}|[^{}]+|[{}]")
_BOUNDS = ("starts", "ends", "lengths", "offsets")
_RANGE_FORMS = {*map(frozenset, (["ends"], ["lengths"], ["offsets"], ["starts", "ends"], ["starts", "lengths"]))}
_RANGES = re.compile(r"\[(\s*[a-z]+\s*:(?!:)[^\[\]]*)\]$")
_NAME = re.compile(r"[a-z][a-z0-9_]*")
_DIGITS = re.compile(r"(\d+)")


@dataclass(frozen=True)
class Template:
    """Text with names in braces, as ``img_{}``.

    Attributes
    ----------
    texts : tuple of str
        The literal text before, between and after the names; one more than there are names.
    names : tuple of str
        ``{}`` is called ``key``.
    """

    texts: tuple[str, ...]
    names: tuple[str, ...]

    def fill(self, values: Mapping[str, str]) -> str:
        """Return the text with a value for each name."""
        if not self.names:
            return self.texts[0]
        filled = (
            value for pair in zip(self.texts, map(values.__getitem__, self.names), strict=False) for value in pair
        )
        return "".join(filled) + self.texts[-1]

    def regex(self, *, across: bool = False) -> re.Pattern[str]:
        """Return an expression that matches the whole text, with a group for each name.

        With `across`, the last name matches text with slashes too, as in the keys of LMDB.
        """
        pattern = re.escape(self.texts[0])
        for number, (name, text) in enumerate(zip(self.names, self.texts[1:], strict=True)):
            values = ".+" if across and number == len(self.names) - 1 else "[^/]+"
            pattern += f"(?P<{name}>{values}){re.escape(text)}"
        return re.compile(pattern, re.DOTALL)

    def split(self) -> list[Template]:
        """Return the templates between slashes."""
        parts, texts, names = [], [""], list[str]()
        for number, text in enumerate(self.texts):
            first, *others = text.split("/")
            texts[-1] += first
            for other in others:
                parts.append(Template(tuple(texts), tuple(names)))
                texts, names = [other], []
            if number < len(self.names):
                names.append(self.names[number])
                texts.append("")
        return [*parts, Template(tuple(texts), tuple(names))]

    def __bool__(self) -> bool:
        return self != NO_FILE

    def __str__(self) -> str:
        escaped = Template(tuple(text.replace("{", "{{").replace("}", "}}") for text in self.texts), self.names)
        return escaped.fill({name: "{}" if name == KEY else f"{{{name}}}" for name in self.names})


NO_FILE = Template(("",), ())


@dataclass(frozen=True)
class Place:
    """Where the values of one field lie.

    Attributes
    ----------
    text : str
        As written.
    path : Template
        Of an HDF5 object, a key of LMDB, or a field of MongoDB, without what follows it here.
    file : Template
        The file that holds it, of ``labels.h5::y`` or ``{episode}.h5::actions[]``, from the folder of the store; empty for the store
        itself.
    deep : bool
        The path ends in ``**``: everything below it.
    rows : bool
        ``[]``: each row of a dataset, or each element of a list, is a record. So is each range of `ranges`.
    ranges : tuple of (str, Template)
        Where the bounds of the rows of each record lie, of ``times[ends: times_index]``: one of ``ends``, ``lengths`` or ``offsets``, or
        ``starts`` with ``ends`` or ``lengths``.
    inner : str
        The path inside each element: ``image`` of ``crops[].image``.
    attribute : str
        The name after ``@``.
    """

    text: str
    path: Template
    file: Template = NO_FILE
    deep: bool = False
    rows: bool = False
    ranges: tuple[tuple[str, Template], ...] = ()
    inner: str = ""
    attribute: str = ""

    @property
    def names(self) -> tuple[str, ...]:
        """The names in braces."""
        return (*self.file.names, *self.path.names)


@dataclass(frozen=True)
class Pattern:
    """The places of the fields of a store; immutable, hashable and picklable.

    Attributes
    ----------
    places : tuple of (str, Place)
        In the order of the fields.
    names : tuple of str
        The names in braces, in the order in which they identify a record. Each becomes a field.
    kinds : tuple of (str, Field)
        Declared by the user, for fields whose kind is not to be inferred.
    """

    places: tuple[tuple[str, Place], ...]
    names: tuple[str, ...] = ()
    kinds: tuple[tuple[str, Field], ...] = ()

    @property
    def leading(self) -> Place:
        """The first place with all names: what matches it are the records, or the groups of records with ``[]``.

        A place in another file is the last choice.
        """
        complete = [place for _, place in self.places if len(place.names) == len(self.names)]
        return min(complete, key=lambda place: bool(place.file))

    @property
    def names_files(self) -> bool:
        """Whether a name in braces is a part of the name of a file: then the store is a folder of files."""
        return any(place.file.names for _, place in self.places)

    @property
    def has_rows(self) -> bool:
        """Whether each row or element is a record."""
        return any(place.rows for _, place in self.places)

    def to_json(self) -> dict[str, str]:
        """Return field → place, as `parse_pattern` takes it."""
        return {name: place.text for name, place in self.places}

    def __str__(self) -> str:
        return json.dumps(self.to_json(), ensure_ascii=False)


def parse_pattern(given: Any, *, attributes: bool = True) -> Pattern:
    """Parse ``columns``: a mapping of fields to places, its JSON, or ``field:place,field:place``.

    Parameters
    ----------
    given : mapping, str or Pattern
        A place may be a table ``{"path": place, "kind": kind}``, which declares the field.
    attributes : bool
        Whether ``@`` begins the name of an attribute. Keys of LMDB and fields of MongoDB may contain it.

    Raises
    ------
    ConfigError
        It is malformed; the message marks the place.
    """
    if isinstance(given, Pattern):
        return given
    places: dict[str, Place] = {}
    kinds: dict[str, Field] = {}
    for name, place in _pairs(given):
        if name not in (EVERYTHING, ATTRIBUTES):
            parse_fields({name: "int"})
        if isinstance(place, Mapping):
            if not {"path"} <= place.keys() <= {"path", "kind", "dtype", "shape"}:
                raise ConfigError(f"columns[{name!r}]: a table has path and kind, not {', '.join(map(str, place))}")
            declared = {key: value for key, value in place.items() if key != "path"}
            if declared:
                kinds |= parse_fields({name: declared})
            place = place["path"]
        if name in places:
            raise ConfigError(f"columns: {name!r} is there twice; a field has one place")
        places[name] = _Parser(name, place, attributes).parse()
    found = tuple(places.items())
    return Pattern(found, _names(found), tuple(kinds.items()))


def _pairs(given: Any) -> Iterable[tuple[str, Any]]:
    if isinstance(given, str) and given.lstrip().startswith("{"):
        with contextlib.suppress(ValueError):  # {label}/{} without a field
            given = json.loads(given)
    if isinstance(given, str):
        parts = [part.partition(":") for part in given.split(",")]
        if any(not colon for _, colon, _ in parts):
            raise ConfigError(f"columns: expected field:place,field:place, got {given!r}")
        return [(name.strip(), place.strip()) for name, _, place in parts]
    if not isinstance(given, Mapping) or not given:
        raise ConfigError(f"columns: expected a mapping of fields to places, got {given!r}")
    return [(str(name), place) for name, place in given.items()]


def _names(places: Sequence[tuple[str, Place]]) -> tuple[str, ...]:
    """Return the names that identify a record; raises ConfigError if no single place has all of them."""
    longest = max((place for _, place in places), key=lambda place: len(place.names))
    fields = [field for field, _ in places]
    for field, place in places:
        for name in place.names:
            if name not in longest.names:
                raise ConfigError(
                    f"columns[{field!r}]: {place.text!r} has the name {name!r}, which {longest.text!r} lacks; one place must have "
                    "all names, because it tells which records there are"
                )
            if name in fields:
                raise ConfigError(
                    f"columns: {name!r} is a field, and a name in the braces of {place.text!r}; rename one"
                )
    return longest.names


class _Parser:
    """Parses one place."""

    def __init__(self, field: str, text: Any, attributes: bool) -> None:
        if not isinstance(text, str) or not text:
            raise ConfigError(f"columns[{field!r}]: expected a place such as 'images[]', got {text!r}")
        self.field, self.text, self.attributes = field, text, attributes

    def parse(self) -> Place:
        file, separator, path = self._hidden().rpartition("::")
        start = len(file) + len(separator)
        attribute = ""
        if self.attributes:
            path, sign, attribute = path.partition("@")
            if sign and not attribute:
                self.fail(start + len(path), "@ is followed by the name of an attribute")
            if "[]" in attribute:
                self.fail(start + len(path), "an attribute has no rows; write @@ for an @ that belongs to the name")
        path, ranges = self._ranges(path, start)
        path, rows, inner = path.partition("[]")
        if ranges and (rows or inner or attribute):
            self.fail(start + len(path), "the rows of a record are [] or a range")
        if "[]" in inner:
            self.fail(start + len(path) + 2 + inner.index("[]"), "a place has one [] at most")
        if rows and attribute:
            self.fail(start + len(path), "an attribute has no rows")
        deep = path == "**" or path.endswith("/**")
        if deep:
            path = path[:-2].rstrip("/")
            if self.field not in (EVERYTHING, ATTRIBUTES):
                self.fail(start + len(path), f'** is for the field "{EVERYTHING}", since it may be several fields')
        if "**" in path:
            self.fail(start + path.index("**"), "** is the last part of a path")
        inner, attribute = map(_revealed, (inner.lstrip("./"), attribute))
        in_file = self._template(file, 0)
        in_path = self._template(path, start, in_file.names)
        return Place(self.text, in_path, in_file, deep, bool(rows or ranges), ranges, inner, attribute)

    def _ranges(self, path: str, start: int) -> tuple[str, tuple[tuple[str, Template], ...]]:
        """Return what comes before ``[ends: …]``, and the paths in it."""
        found = _RANGES.search(path)
        if found is None:
            return path, ()
        at, parts = found.start(1), dict[str, Template]()
        for part in found[1].split(","):
            name, _, where = part.partition(":")
            where = where.strip()
            if name.strip() not in _BOUNDS or not where:
                self.fail(
                    start + at, f"a range has {', '.join(_BOUNDS)}, each with a path, as in [starts: a, lengths: b]"
                )
            parts[name.strip()] = self._template(where, start + at + part.index(where))
            at += len(part) + 1
        if frozenset(parts) not in _RANGE_FORMS or len(parts) != found[1].count(",") + 1:
            self.fail(start + found.start(1), "a range has ends, lengths or offsets; or starts, with ends or lengths")
        return path[: found.start()], tuple(parts.items())

    def _hidden(self) -> str:
        """Return the text with escaped marks replaced by as many characters that no text has, so that errors find their places."""
        text = self.text
        for number, escape in enumerate(_ESCAPES):
            if escape != "@@" or self.attributes:
                text = text.replace(escape, chr(_NO_CHARACTER + number) * len(escape))
        return text

    def _template(self, path: str, start: int, before: Collection[str] = ()) -> Template:
        """Parse what begins at `start`, behind the names `before`."""
        texts, names = [""], list[str]()
        for token in _TOKENS.finditer(path):
            piece, at = token[0], start + token.start()
            if piece in ("{{", "}}"):
                texts[-1] += piece[0]
            elif piece in ("{", "}"):
                self.fail(at, "a brace has no partner; write {{ or }} for one that belongs to the name")
            elif piece[0] == "{":
                name = piece[1:-1] or KEY
                if not _NAME.fullmatch(name):
                    self.fail(at, "a name in braces is a field, so it begins with a-z, then a-z, 0-9 and _")
                if name in names or name in before:
                    self.fail(at, f"{piece} is there twice; give the second one another name, as in {{folder}}")
                if names and not texts[-1]:
                    self.fail(at, f"text must separate {piece} from the name before it")
                names.append(name)
                texts.append("")
            else:
                texts[-1] += piece
        return Template(tuple(map(_revealed, texts)), tuple(names))

    def fail(self, at: int, why: str) -> NoReturn:
        raise ConfigError(f"columns[{self.field!r}]: {why}\n  {self.text}\n  {' ' * at}^")


_NO_CHARACTER = 0xFDD0  # the first of the code points that Unicode gives no character


def _revealed(text: str) -> str:
    """Return the names that `_Parser` hid."""
    for number, (escape, mark) in enumerate(_ESCAPES.items()):
        text = text.replace(chr(_NO_CHARACTER + number) * len(escape), mark)
    return text


def escaped(name: str, *, attributes: bool = True) -> str:
    """Return a name as a pattern has it: braces and marks are doubled; ``@`` only with `attributes`, see `parse_pattern`."""
    name = name.replace("{", "{{").replace("}", "}}")
    for escape, mark in _ESCAPES.items():
        name = name.replace(mark, escape) if mark != "@" or attributes else name
    return name


def check_names(names: Collection[str], labels: Iterable[str], where: str = "") -> None:
    """Raise ConfigError, which begins with `where`, if a name in braces would hide or rename a stored field of `labels`."""
    for label in labels:
        name = field_name(label)
        if name in names:
            raise ConfigError(
                f"{where}columns: {'{}' if name == KEY else f'{{{name}}}'} would take the name of the stored {label!r}; give the "
                f"name in braces another one, such as {{{name}_name}}"
            )


def natural_order(names: Iterable[str]) -> list[str]:
    """Return names in natural order: ``img_2`` before ``img_10``."""

    def key(name: str) -> tuple[tuple[int | str, ...], str]:
        parts = _DIGITS.split(name)
        return tuple(int(part) if at % 2 else part for at, part in enumerate(parts)), name

    return sorted(names, key=key)


@dataclass(frozen=True)
class NameFields:
    """The fields of the names in a pattern, but for ``key``, and how a matched text becomes a value.

    Attributes
    ----------
    fields : dict of str to Field
    classes : list of str
        The texts of the name ``label``, which is their number.
    """

    fields: dict[str, Field]
    classes: list[str]

    @classmethod
    def infer(cls, names: Sequence[str], texts: Sequence[Sequence[str]]) -> NameFields:
        """Return the fields of `names`, from the texts that they match for each record."""
        found = {name: {each[at] for each in texts} for at, name in enumerate(names) if name != KEY}
        is_number = {name: name == "label" or all(map(_number_in(name).search, each)) for name, each in found.items()}
        fields = {name: Field("int" if is_number[name] else "str") for name in found}
        return cls(fields, distinct_classes(found.get("label", ())))

    def reader(self, name: str) -> Callable[[str], int | str]:
        """Return the function that turns a matched text into the value of a field."""
        if name == "label":
            return {text: number for number, text in enumerate(self.classes)}.__getitem__
        if self.fields[name].kind == "str":
            return str
        number = _number_in(name)
        return lambda text: int(number.findall(text)[0])


def _number_in(name: str) -> re.Pattern[str]:
    """Return what finds the number in a text: an episode ends in one. It fits in int64."""
    return re.compile(r"(?<!\d)\d{1,18}$" if name == "episode" else r"^\d{1,18}$")


_SPLITS = (
    (True, "", re.compile(r"(?P<text>[^/_.-]*[/_.-])(?P<name>.+)", re.DOTALL)),
    (False, "", re.compile(r"(?P<name>.+)(?P<text>[/_.-][^/_.-]*)", re.DOTALL)),
    (True, "", re.compile(r"(?P<text>.*[/_.-])(?P<name>[^/_.-]+)", re.DOTALL)),  # image_hr-1
    (False, "", re.compile(r"(?P<name>[^/_.-]+)(?P<text>[/_.-].*)", re.DOTALL)),
    (True, "", re.compile(r"(?P<text>.*\D)(?P<name>\d+)", re.DOTALL)),  # image1
    (False, "", re.compile(r"(?P<name>\d+)(?P<text>\D.*)", re.DOTALL)),
    (True, "size", re.compile(r"(?P<text>[1-9][0-9]{0,4}-)(?P<name>[0-9]{5,})")),  # StyleGAN2's
)
"""Whether the text comes before the name of a record, how the name of its field begins, and an expression for both."""
_MOST_SHARED = 8  # fields of one record


def shared_names(
    names: Collection[str], has: Callable[[str], bool] | None = None, *, attributes: bool = True
) -> dict[str, str]:
    """Return a pattern for names that are a few texts, each with the same names of records before or after it.

    Parameters
    ----------
    names : collection of str
        As ``image_0``, ``label_0``, ``image_1`` …
    has : callable, optional
        Whether a name exists, if `names` are a sample; by default, they are all.
    attributes : bool
        As for `parse_pattern`.

    Returns
    -------
    dict of str to str
        As ``{"image": "image_{}", "label": "label_{}"}``; empty if the names are of another form.
    """
    has = set(names).__contains__ if has is None else has
    for is_before, start, split in _SPLITS:
        found = [match for name in names if (match := split.fullmatch(name))]
        texts, records = ({match[part] for match in found} for part in ("text", "name"))
        fields = {start + re.sub(r"[^a-z0-9_]+", "", text.lower()).strip("_"): text for text in texts}
        if len(found) < len(names) or not 1 < len(fields) == len(texts) <= _MOST_SHARED or len(records) < 2:
            continue
        joined = (text + name if is_before else name + text for text in texts for name in records)
        if all(field[:1].isalpha() for field in fields) and all(map(has, joined)):
            shown = {field: escaped(text, attributes=attributes) for field, text in sorted(fields.items())}
            return {field: f"{text}{{}}" if is_before else f"{{}}{text}" for field, text in shown.items()}
    return {}
