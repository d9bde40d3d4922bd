"""Parses YAML by PyYAML's safe loader, without repeated keys, multiplied aliases, or values in messages."""

from __future__ import annotations

import re
from typing import Any

import yaml

__all__ = ["parse_yaml"]

_MOST_VALUES = 100_000  # of a document, aliases written out
_QUOTED = re.compile(r"(alias|anchor|tag|handle) (['\"]).*\2")


def parse_yaml(text: str) -> Any:
    """Return the single document in `text`.

    Raises
    ------
    ValueError
        The text is no YAML, repeats a key, or has aliases that multiply to more than 100,000 values. The message names
        the line and shows no value.
    """
    try:
        loader = _YamlLoader(text)
        node = loader.get_single_node()
        if node is None:
            return None
        _check(node)
        return loader.construct_document(node)
    except yaml.MarkedYAMLError as error:
        wrong = _explain(error)
    except yaml.YAMLError as error:
        wrong = str(error)
    raise ValueError(wrong)  # outside the handler: the error as context would quote the file


class _YamlLoader(yaml.SafeLoader):
    """PyYAML's safe loader; replaces exceptions for invalid values, since they quote the value."""

    def construct_object(self, node: yaml.Node, deep: bool = False) -> Any:
        try:
            return super().construct_object(node, deep)
        except (ValueError, LookupError, TypeError, AttributeError, ArithmeticError):
            pass
        raise _wrong(f"this is not a valid {node.tag.rpartition(':')[2]}", node)


def _check(root: yaml.Node) -> None:
    """Raise an error for a repeated key, where PyYAML would silently keep the last one, and for too many values."""
    nodes, count = [root], 0
    while nodes:
        node = nodes.pop()
        count += 1
        if count > _MOST_VALUES:
            raise _wrong(f"more than {_MOST_VALUES:,} values, aliases written out", node)
        if isinstance(node, yaml.SequenceNode):
            nodes += node.value
        elif isinstance(node, yaml.MappingNode):
            seen = set()
            for key, value in node.value:
                if isinstance(key, yaml.ScalarNode) and key.value != "<<":
                    if (key.tag, key.value) in seen:
                        raise _wrong("this key appears twice", key)
                    seen.add((key.tag, key.value))
                nodes += key, value


def _wrong(text: str, node: yaml.Node) -> yaml.MarkedYAMLError:
    return yaml.constructor.ConstructorError(None, None, text, node.start_mark)


def _explain(error: yaml.MarkedYAMLError) -> str:
    """Return the problem and its line, without PyYAML's excerpt of the file, which may contain a secret."""
    parts = [(error.context, error.context_mark), (error.problem, error.problem_mark)]
    lines = [f"line {mark.line + 1}, column {mark.column + 1}: {text}" for text, mark in parts if text and mark]
    return "; ".join(_QUOTED.sub(r"\1 ***", line) for line in lines)
