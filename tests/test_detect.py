"""How the layout of a store that is not native is found."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import h5py
import pytest

import storeds
from storeds import errors, registry
from storeds.backends.memory import MemoryBackend


class Looks(MemoryBackend):
    """A layout for files named after a word, whatever is in them."""

    word = ""

    def __init__(self, url: str, **options: Any) -> None:
        self.given = options
        super().__init__("memory://detected")

    @classmethod
    def recognise(cls, url: str, **options: Any) -> str | None:
        return f"its name holds {cls.word!r}" if cls.word in url else None


class LooksRed(Looks):
    word = "red"


class LooksBlue(Looks):
    word = "blue"


class Fails(Looks):
    @classmethod
    def recognise(cls, url: str, **options: Any) -> str | None:
        raise errors.FormatError("not one of mine")


@pytest.fixture(autouse=True)
def layouts(monkeypatch: pytest.MonkeyPatch) -> None:
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


def test_two_that_fit_are_an_error_that_names_both_and_layout_decides(tmp_path: Path) -> None:
    url = foreign(tmp_path / "red-blue.h5")
    with pytest.raises(errors.ConfigError, match=r"layout=.*'blue': its name.*'red': its name"):
        storeds.open_backend(url)
    assert type(storeds.open_backend(url, layout="blue")) is LooksBlue


def test_none_that_fits_is_the_native_error_and_what_was_looked_for(tmp_path: Path) -> None:
    with pytest.raises(errors.FormatError, match=r"no native store.*looked for: blue, fails, red"):
        storeds.open_backend(foreign(tmp_path / "green.h5"))


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


def test_asking_for_the_native_layout_looks_for_no_other(tmp_path: Path) -> None:
    with pytest.raises(errors.FormatError) as raised:
        storeds.open_backend(foreign(tmp_path / "red.h5"), layout="storeds/1")
    assert "looked for" not in str(raised.value)
