"""How the layout of a store that is not native is found."""

from __future__ import annotations

import logging
import os
import pickle
from pathlib import Path
from typing import Any

import h5py
import pytest

import storeds
from _foreign_lmdb import encoded, put
from storeds import errors, registry
from storeds.backends import MemoryBackend, Reading, StoreBackend, ambiguous, bounded, check_most_is_read


class Looks(MemoryBackend):
    """A layout for files named after a word, whatever is in them."""

    word = ""

    def __init__(self, url: str, **options: Any) -> None:
        self.given = options
        super().__init__("memory://detected")

    @classmethod
    def guess_can_open(cls, url: str, **options: Any) -> str | None:
        return f"its name holds {cls.word!r}" if cls.word in url else None


class LooksRed(Looks):
    word = "red"


class LooksBlue(Looks):
    word = "blue"


class Fails(Looks):
    @classmethod
    def guess_can_open(cls, url: str, **options: Any) -> str | None:
        raise errors.FormatError("not one of mine")


@pytest.fixture(autouse=True)
def layouts(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("STOREDS_CACHE", str(tmp_path / "cache"))
    known = {name: entry for name, entry in registry.LAYOUTS._known.items() if not name.startswith("hdf5/")}
    monkeypatch.setattr(registry.LAYOUTS, "_known", known)
    for name, layout in (("red", LooksRed), ("blue", LooksBlue), ("fails", Fails)):
        storeds.register_layout("hdf5", name, layout)
    with storeds.open_writer("memory://detected", {"x": "int"}, overwrite=True) as writer:
        writer.append([{"x": 1}])


def foreign(path: Path) -> str:
    with h5py.File(path, "w") as file:
        file["x"] = [1, 2, 3]
    return f"hdf5://{path}"


def test_the_one_layout_that_recognises_a_store_opens_it_and_says_why(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    url = foreign(tmp_path / "red.h5")
    with caplog.at_level(logging.INFO, "storeds"):
        assert type(storeds.open_backend(url)) is LooksRed
    assert "layout 'red': its name holds 'red'" in caplog.text
    assert type(storeds.open_backend(tmp_path / "red.h5")) is LooksRed
    assert storeds.info(url).recognised == "its name holds 'red'"


def test_two_that_fit_are_an_error_that_shows_what_both_give_and_layout_decides(tmp_path: Path) -> None:
    url = foreign(tmp_path / "red-blue.h5")
    with pytest.raises(errors.ConfigError) as raised:
        storeds.open_backend(url)
    assert str(raised.value).splitlines() == [
        f"{url} can be read in 2 ways; pass the argument of one of them:",
        "  layout='blue': 1 record of x (int); the first: x=1 (its name holds 'blue')",
        "  layout='red': 1 record of x (int); the first: x=1 (its name holds 'red')",
    ]
    assert type(storeds.open_backend(url, layout="blue")) is LooksBlue


def test_the_readings_of_one_layout_are_shown_beside_those_of_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def guess_can_open(url: str, **options: Any) -> str | None:
        ways = (Reading(f"by={by!r}", f"its {by}", lambda: LooksRed(url)) for by in ("rows", "files"))
        raise ambiguous(url, [*ways])

    monkeypatch.setattr(LooksRed, "guess_can_open", guess_can_open)
    with pytest.raises(errors.ConfigError, match=r"2 ways.*\n  by='rows': 1 record .*\n  by='files': 1 record "):
        storeds.open_backend(foreign(tmp_path / "red.h5"))
    with pytest.raises(errors.ConfigError, match=r"3 ways.*\n  layout='blue': .*\n  layout='red', by='rows': "):
        storeds.open_backend(foreign(tmp_path / "red-blue.h5"))


def test_a_store_that_no_layout_fits_shows_how_to_convert_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(LooksRed, "conversion_script", lambda url, **_: "for x in y: ...", raising=False)
    with pytest.raises(errors.FormatError, match=r"\nTo convert it by hand:\nfor x in y: \.\.\.$"):
        storeds.open_backend(foreign(tmp_path / "green.h5"))


def test_what_a_layout_leaves_unread_is_logged_listed_and_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(LooksRed, "unread", lambda _: bounded(f"part {at} (a reason)" for at in range(300)))
    url = foreign(tmp_path / "red.h5")
    storeds.open_backend(url)
    (warning,) = [line.getMessage() for line in caplog.records if line.levelno == logging.WARNING]
    assert "not read: part 0 (a reason); part 1 (a reason); " in warning
    assert "and 294 more" in warning
    found = storeds.info(url).unread
    assert (len(found), found[0], found[-1]) == (201, "part 0 (a reason)", "and 100 more")
    caplog.clear()
    many = storeds.open_backend([url, foreign(tmp_path / "red too.h5")])
    assert isinstance(many, StoreBackend)
    assert many.unread() == pickle.loads(pickle.dumps(many)).unread() == found
    assert len([line for line in caplog.records if line.levelno == logging.WARNING]) == 1


def test_leaving_most_of_a_store_unread_is_an_error_with_what_and_how_much() -> None:
    check_most_is_read("x.h5", ["b (3 rows)"], 50, 100, "bytes", "columns= names what is read")
    with pytest.raises(errors.ConfigError, match=r"51 of 100 bytes: b \(3 rows\); columns= names"):
        check_most_is_read("x.h5", ["b (3 rows)"], 51, 100, "bytes", "columns= names what is read")


def test_none_that_fits_is_the_native_error_and_what_was_looked_for(tmp_path: Path) -> None:
    with pytest.raises(errors.FormatError, match=r"not a native store.*tried: blue, fails, red"):
        storeds.open_backend(foreign(tmp_path / "green.h5"))


def test_an_error_states_once_what_a_layout_says_against_a_store(tmp_path: Path) -> None:
    storeds.register_layout("hdf5", "fails_too", Fails)
    with pytest.raises(
        errors.FormatError,
        match="; fails, fails_too: not one of mine\nA layout that is named reads it as:\n  layout='blue': 1 record of x",
    ):
        storeds.open_backend(foreign(tmp_path / "green.h5"))


def test_a_fault_of_a_layouts_own_names_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def stumble(url: str, **options: Any) -> str | None:
        raise RuntimeError("a bug")

    monkeypatch.setattr(LooksRed, "guess_can_open", stumble)
    with pytest.raises(RuntimeError, match="a bug") as raised:
        storeds.open_backend(foreign(tmp_path / "x.h5"))
    (note,) = raised.value.__notes__
    assert "layout 'red'" in note
    assert "LooksRed" in note


def test_an_option_that_the_native_layout_lacks_may_be_the_foreign_ones(tmp_path: Path) -> None:
    backend: Any = storeds.open_backend(foreign(tmp_path / "red.h5"), colour="dark")
    assert backend.given == {"colour": "dark"}
    with pytest.raises(errors.ConfigError, match="colour"):
        storeds.open_backend(foreign(tmp_path / "green.h5"), colour="dark")


def test_a_native_store_is_never_taken_for_another(tmp_path: Path) -> None:
    url = f"hdf5://{tmp_path}/red.h5"
    with storeds.open_writer(url, {"x": "int"}) as writer:
        writer.append([{"x": 1}])
    assert storeds.open_backend(url).meta.layout == "storeds/1"


def test_asking_for_the_native_layout_tries_no_other(tmp_path: Path) -> None:
    with pytest.raises(errors.FormatError) as raised:
        storeds.open_backend(foreign(tmp_path / "red.h5"), layout="storeds/1")
    assert "looked for" not in str(raised.value)


def keyed(path: Path, **how: Any) -> str:
    return f"lmdb://{put(path, [(b'a', encoded(1)), (b'b', encoded(2))], **how)}"


def test_an_error_suggests_the_nearest_option_for_one_that_no_layout_has(tmp_path: Path) -> None:
    url = keyed(tmp_path / "s", database=b"train")
    for given, options in ((url, {"databse": "train"}), (f"{url}?databse=train", {})):
        with pytest.raises(errors.ConfigError, match=r"unknown option 'databse'; did you mean 'database'\?.*any_shape"):
            storeds.open_backend(given, **options)
    assert len(storeds.open_backend(f"{url}?database=train")) == 2


def test_an_error_names_the_layout_of_an_option_and_the_layout_that_fits(tmp_path: Path) -> None:
    url = keyed(tmp_path / "s")
    why = (
        "option 'fields' is one of caffe, json, msgpack, npz, pickled, tensorpack, not of native stores; no foreign layout fits .*"
        "keyed: it fits .images under keys.*., but has no option 'fields'; the options are database, exclude, keys, partial"
    )
    for given, options in ((url, {"fields": "picture"}), (f"{url}?fields=picture", {})):
        with pytest.raises(errors.ConfigError, match=why):
            storeds.open_backend(given, **options)
    assert storeds.open_backend(f"{url}?partial=true").meta.layout == "keyed"


def test_layouts_report_a_wrong_value_of_an_option_that_they_have(tmp_path: Path) -> None:
    with pytest.raises(errors.ConfigError, match="option 'partial' is one of caffe, .*partial: .*boolean"):
        storeds.open_backend(keyed(tmp_path / "s"), partial="perhaps")


def test_an_environment_of_named_databases_says_which_there_are(tmp_path: Path) -> None:
    url = keyed(tmp_path / "s", database=b"val")
    keyed(tmp_path / "s", database=b"train")
    for options in ({}, {"partial": True}, {"layout": "keyed"}):
        with pytest.raises(errors.StoredsError, match=r"named databases; .*: database='train' \(2 entries\), "):
            storeds.open_backend(url, **options)
    with pytest.raises(errors.ConfigError, match="no database 'test'; its main database holds the keys 'train', 'val'"):
        storeds.open_backend(url, database="test")
    assert len(storeds.open_backend(url, database="val")) == 2


def test_a_count_that_would_run_a_command_is_reported(tmp_path: Path) -> None:
    entries = [(b"0", pickle.dumps(1)), (b"__len__", pickle.dumps(RunsACommand()))]
    with pytest.raises(errors.FormatError, match=r"pickled: .*__len__ cannot be read as a pickle: refused: .*\.system"):
        storeds.open_backend(f"lmdb://{put(tmp_path / 's', entries)}")


class RunsACommand:
    def __reduce__(self) -> Any:
        return os.system, ("touch harmed",)


def test_a_native_store_says_so_when_a_foreign_option_is_given(tmp_path: Path) -> None:
    url = f"lmdb://{tmp_path}/n.lmdb"
    with storeds.open_writer(url, {"x": "int"}) as writer:
        writer.append([{"x": 1}])
    with pytest.raises(errors.ConfigError, match="option 'database' is one of .*, not of native stores"):
        storeds.open_backend(url, database="train")
