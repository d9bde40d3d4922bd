"""Conditions as text, such as ``label in ("cat", "dog") and width >= 512``: what they mean for columns."""

from __future__ import annotations

import ast
import io
import keyword
import operator
import tokenize
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from storeds.errors import ConfigError, suggest
from storeds.protocols import Array, Field
from storeds.records.columns import TEXT

__all__ = ["Condition"]

_KINDS: Mapping[str, tuple[type, ...]] = {
    "int": (int, float),
    "float": (int, float),
    "bool": (bool,),
    "str": (str,),
}
_COMPARE: Mapping[type, Callable[[Any, Any], Any]] = {
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
}
_EXAMPLES = 'write for example: label == 3, label in ("cat", "dog") and width >= 512, not key startswith "cam1/"'


@dataclass(frozen=True)
class Condition:
    """A condition on the fields of a record. Picklable.

    Fields of kind int, float, bool and str compare with numbers, ``True``, ``False`` and texts, by ``==``, ``!=``, ``<``, ``<=``,
    ``>``, ``>=``, ``in (…)``, ``not in (…)`` and ``startswith``; ``and``, ``or``, ``not`` and brackets combine comparisons.
    A class number compares with the names of classes too. As in Python, a comparison with NaN is false, except ``!=``.

    Parameters
    ----------
    text : str
    """

    text: str

    def __post_init__(self) -> None:
        for node in ast.walk(self._tree):
            if not isinstance(node, _ALLOWED):
                raise self._error("only comparisons with values, and, or, not and brackets make a condition")

    @property
    def _tree(self) -> ast.expr:
        try:
            tokens = map(_token, tokenize.generate_tokens(io.StringIO(self.text.strip()).readline))
            return ast.parse(tokenize.untokenize(tokens).strip(), mode="eval").body
        except (SyntaxError, ValueError, tokenize.TokenError, RecursionError, MemoryError):
            raise self._error("it does not parse") from None

    def _error(self, reason: str) -> ConfigError:
        return ConfigError(f"where: {self.text!r}: {reason}; {_EXAMPLES}")

    @property
    def fields(self) -> list[str]:
        """The fields that it names."""
        names = (node.id.lstrip("_") for node in ast.walk(self._tree) if isinstance(node, ast.Name))
        return list(dict.fromkeys(names))

    def check(self, fields: Mapping[str, Field]) -> None:
        """Raise ConfigError if a field does not exist, or does not compare."""
        for name in self.fields:
            self._known(name, fields)

    def mask(
        self,
        columns: Callable[[str], Array],
        fields: Mapping[str, Field],
        classes: Callable[[str], Sequence[str] | None],
    ) -> Array:
        """Return which records meet the condition, bool.

        Parameters
        ----------
        columns : callable
            Returns the column of a field.
        fields : mapping of str to Field
        classes : callable
            Returns the names of the classes of a field, or None.

        Raises
        ------
        ConfigError
            A field does not exist, or its values do not compare with what stands beside it.
        """
        found: Array = self._of(self._tree, _Store(columns, fields, classes))
        return found

    def _of(self, node: ast.expr, store: _Store) -> Any:
        if isinstance(node, ast.BoolOp):
            combine = np.logical_and if isinstance(node.op, ast.And) else np.logical_or
            return combine.reduce([self._of(each, store) for each in node.values])
        if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
            return ~self._of(node.operand, store)
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.MatMult):
            name, prefix = self._field(node.left, store), self._value(node.right)
            if store.fields[name].kind != "str" or not isinstance(prefix, str):
                raise self._error(
                    f"startswith is for a field of kind str and a text; {name!r} is {store.fields[name].kind}"
                )
            return np.strings.startswith(store.columns(name), np.array(prefix, TEXT))
        if isinstance(node, ast.Compare):
            sides = [node.left, *node.comparators]
            pairs = zip(sides, node.ops, sides[1:], strict=False)
            return np.logical_and.reduce([self._compared(left, op, right, store) for left, op, right in pairs])
        if isinstance(node, ast.Name) and store.fields[self._field(node, store)].kind == "bool":
            return store.columns(self._field(node, store)).copy()
        raise self._error(f"{ast.unparse(node)!r} is no comparison")

    def _compared(self, left: ast.expr, op: ast.cmpop, right: ast.expr, store: _Store) -> Array:
        if isinstance(op, (ast.In, ast.NotIn)):
            if not isinstance(right, (ast.Tuple, ast.List)):
                raise self._error(f"in takes a list in brackets, not {ast.unparse(right)!r}")
            name = self._field(left, store)
            column, found = store.columns(name), np.zeros(store.count(name), bool)
            for each in right.elts:
                found |= column == self._comparable(name, self._value(each), store)
            return ~found if isinstance(op, ast.NotIn) else found
        compare = _COMPARE[type(op)]
        if isinstance(left, ast.Name) and isinstance(right, ast.Name):
            one, other = self._field(left, store), self._field(right, store)
            if (store.fields[one].kind == "str") != (store.fields[other].kind == "str"):
                raise self._error(f"{one!r} is {store.fields[one].kind}, and {other!r} {store.fields[other].kind}")
            return np.asarray(compare(store.columns(one), store.columns(other)))
        if isinstance(left, ast.Name):
            name = self._field(left, store)
            return np.asarray(compare(store.columns(name), self._comparable(name, self._value(right), store)))
        name = self._field(right, store)
        return np.asarray(compare(self._comparable(name, self._value(left), store), store.columns(name)))

    def _field(self, node: ast.expr, store: _Store) -> str:
        if not isinstance(node, ast.Name):
            raise self._error(f"{ast.unparse(node)!r} is no field")
        return self._known(node.id.lstrip("_"), store.fields)

    def _known(self, name: str, fields: Mapping[str, Field]) -> str:
        if name not in fields:
            raise self._error(f"there is no field {name!r}; {suggest(name, fields, 'fields')}")
        if fields[name].kind not in _KINDS:
            raise self._error(f"{name!r} is of kind {fields[name].kind}; only int, float, bool and str compare")
        return name

    def _value(self, node: ast.expr) -> Any:
        try:
            return ast.literal_eval(node)
        except ValueError:
            raise self._error(f"{ast.unparse(node)!r} is no value; texts stand in quotes") from None

    def _comparable(self, name: str, value: Any, store: _Store) -> Any:
        """Return a value as the column of a field has it."""
        classes = store.classes(name) if isinstance(value, str) and store.fields[name].kind == "int" else None
        if classes is not None:
            if value not in classes:
                raise self._error(f"{name!r} has no class {value!r}; {suggest(value, classes, 'classes')}")
            return classes.index(value)
        if not isinstance(value, _KINDS[store.fields[name].kind]) or (
            isinstance(value, bool) and store.fields[name].kind != "bool"
        ):
            raise self._error(f"{name!r} is {store.fields[name].kind}, and {value!r} is not")
        return np.array(value, TEXT) if isinstance(value, str) else value


def _token(token: tokenize.TokenInfo) -> tuple[int, str]:
    """Return a token as Python parses it: ``startswith`` as an operator, and a field with the name of a keyword as a name."""
    if token.type == tokenize.NAME and token.string == "startswith":
        return tokenize.OP, "@"
    if token.type == tokenize.NAME and keyword.iskeyword(token.string) and token.string not in _WORDS:
        return tokenize.NAME, f"_{token.string}"  # no field begins so
    return token[:2]


_WORDS = ("and", "or", "not", "in", "True", "False", "None")
_ALLOWED = (
    *(ast.BoolOp, ast.And, ast.Or, ast.UnaryOp, ast.Not, ast.USub, ast.Compare, *_COMPARE, ast.In, ast.NotIn),
    *(ast.BinOp, ast.MatMult, ast.Name, ast.Load, ast.Constant, ast.Tuple, ast.List),
)


@dataclass(frozen=True)
class _Store:
    """What a condition is compared with."""

    columns: Callable[[str], Array]
    fields: Mapping[str, Field]
    classes: Callable[[str], Sequence[str] | None]

    def count(self, name: str) -> int:
        return len(self.columns(name))
