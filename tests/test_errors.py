"""Errors: one tree, built from one string, and whole after pickling or a DataLoader worker."""

from __future__ import annotations

import builtins
import pickle
import re
from typing import Any

import pytest
from torch.utils.data import DataLoader, Dataset

from storeds import errors
from storeds.errors import DecodeError, RecordError, StoredsError, TransformError

EVERY: list[type[StoredsError]] = [getattr(errors, name) for name in errors.__all__]
RECORD_ERRORS: list[type[RecordError]] = [RecordError, DecodeError, TransformError]
# name, built-in it also derives from, as drawn: "├── ConfigError (ValueError)   something …"
DRAWN = dict(re.findall(r"^[│ ]*[├└]── (\w+)(?: \((\w+)\))?", errors.__doc__ or "", re.MULTILINE))


def test_the_tree_is_drawn_in_full() -> None:
    assert set(DRAWN) | {"StoredsError"} == set(errors.__all__)
    defined = {name for name, thing in vars(errors).items() if isinstance(thing, type) and issubclass(thing, Exception)}
    assert defined == set(errors.__all__)


@pytest.mark.parametrize("error", EVERY)
def test_every_error_is_ours_and_the_built_in_it_is_drawn_as(error: type[StoredsError]) -> None:
    assert issubclass(error, StoredsError)
    assert error.__doc__
    drawn = DRAWN.get(error.__name__)
    if drawn:
        assert issubclass(error, getattr(builtins, drawn))
    elif error is not StoredsError:
        assert error.__bases__ == (RecordError,)


@pytest.mark.parametrize("error", EVERY)
def test_every_error_is_one_string(error: type[StoredsError]) -> None:
    message = "lmdb:///x: what went wrong; what to do (ü)"
    original = error(message)
    assert str(original) == message
    assert original.args == (message,)
    for copy in (error(str(original)), pickle.loads(pickle.dumps(original)), type(original)(str(original))):
        assert type(copy) is error
        assert str(copy) == message


@pytest.mark.parametrize("error", RECORD_ERRORS)
def test_a_record_error_says_where(error: type[RecordError]) -> None:
    made = error.at("lmdb:///x", 7, "its checksum does not match its bytes")
    assert type(made) is error
    assert str(made) == "record 7 of lmdb:///x: its checksum does not match its bytes"
    named = error.at("lmdb:///x", 7, "gone", key="n01/a 'b'.jpg")
    assert str(named) == "record 7 (key \"n01/a 'b'.jpg\") of lmdb:///x: gone"
    assert (named.url, named.position, named.key, named.reason) == ("lmdb:///x", 7, "n01/a 'b'.jpg", "gone")
    assert (made.key, made.position) == (None, 7)


@pytest.mark.parametrize("error", RECORD_ERRORS)
def test_a_record_error_pickles_with_its_attributes_and_rebuilds_from_its_message(error: type[RecordError]) -> None:
    made = error.at("lmdb:///x", 7, "gone", key="k")
    copy = pickle.loads(pickle.dumps(made))
    assert (type(copy), str(copy), vars(copy)) == (error, str(made), vars(made))
    rebuilt = error(str(made))
    assert (rebuilt.url, rebuilt.position, rebuilt.key, rebuilt.reason) == (None, None, None, "")


class Failing(Dataset[Any]):
    def __init__(self, names: list[str]) -> None:
        self.names = names

    def __len__(self) -> int:
        return len(self.names)

    def __getitem__(self, index: int) -> Any:
        error = getattr(errors, self.names[index])
        raise (
            error.at("lmdb:///x", index, "bad “bytes”", key="k") if issubclass(error, RecordError) else error("lost: ü")
        )


def test_a_worker_keeps_type_and_message() -> None:
    samples = iter(DataLoader(Failing(list(errors.__all__)), batch_size=None, num_workers=1))
    for index, name in enumerate(errors.__all__):
        with pytest.raises(getattr(errors, name)) as caught:
            next(samples)
        assert type(caught.value) is getattr(errors, name)
        said = f"record {index} (key 'k') of lmdb:///x: bad “bytes”"
        assert (said if isinstance(caught.value, RecordError) else "lost: ü") in str(caught.value)
