"""Errors: one tree, built from one string, and whole after pickling or a DataLoader worker."""

from __future__ import annotations

import builtins
import pickle
import re
from typing import Any

import pytest
from torch.utils.data import DataLoader, Dataset

from storeds import errors
from storeds.errors import RecordError, StoredsError

EVERY: list[type[StoredsError]] = [getattr(errors, name) for name in errors.__all__]
# name, built-in it also derives from, as drawn: "├── ConfigError (ValueError)   something …"
DRAWN = dict(re.findall(r"^[│ ]*[├└]── (\w+)(?: \((\w+)\))?", errors.__doc__ or "", re.MULTILINE))


def test_the_tree_is_drawn_in_full() -> None:
    assert set(DRAWN) | {"StoredsError"} == set(errors.__all__)
    defined = {name for name, thing in vars(errors).items() if isinstance(thing, type) and issubclass(thing, Exception)}
    assert defined == set(errors.__all__)


@pytest.mark.parametrize("error", EVERY)
def test_every_error_is_ours_and_the_built_in_it_is_drawn_as_and_one_string(error: type[StoredsError]) -> None:
    assert issubclass(error, StoredsError)
    assert error.__doc__
    drawn = DRAWN.get(error.__name__)
    if drawn:
        assert issubclass(error, getattr(builtins, drawn))
    elif error is not StoredsError:
        assert error.__bases__ == (RecordError,)
    message = "lmdb:///x: what went wrong; what to do (ü)"
    for copy in (error(message), pickle.loads(pickle.dumps(error(message))), error(str(error(message)))):
        assert (type(copy), str(copy), copy.args) == (error, message, (message,))


@pytest.mark.parametrize("error", [each for each in EVERY if issubclass(each, RecordError)])
def test_a_record_error_says_where_and_keeps_it_in_a_pickle(error: type[RecordError]) -> None:
    made = error.at("lmdb:///x", 7, "its checksum does not match its bytes")
    assert str(made) == "record 7 of lmdb:///x: its checksum does not match its bytes"
    assert (type(made), made.key) == (error, None)
    named = error.at("lmdb:///x", 7, "gone", key="n01/a 'b'.jpg")
    assert str(named) == "record 7 (key \"n01/a 'b'.jpg\") of lmdb:///x: gone"
    assert (named.url, named.position, named.key, named.reason) == ("lmdb:///x", 7, "n01/a 'b'.jpg", "gone")
    copy = pickle.loads(pickle.dumps(named))
    assert (type(copy), str(copy), vars(copy)) == (error, str(named), vars(named))
    rebuilt = error(str(named))
    assert (rebuilt.url, rebuilt.position, rebuilt.key, rebuilt.reason) == (None, None, None, "")


class Failing(Dataset[Any]):
    def __getitem__(self, index: int) -> Any:
        error = EVERY[index]
        raise (
            error.at("lmdb:///x", index, "bad “bytes”", key="k") if issubclass(error, RecordError) else error("lost: ü")
        )

    def __len__(self) -> int:
        return len(EVERY)


def test_a_worker_keeps_type_and_message() -> None:
    samples = iter(DataLoader(Failing(), batch_size=None, num_workers=1))
    for index, error in enumerate(EVERY):
        said = f"record {index} (key 'k') of lmdb:///x: bad “bytes”" if issubclass(error, RecordError) else "lost: ü"
        with pytest.raises(error, match=re.escape(said)) as caught:
            next(samples)
        assert type(caught.value) is error
