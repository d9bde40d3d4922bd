"""How the layout of a store that is not native is found."""

from __future__ import annotations

import logging
import pickle
import re
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import h5py
import pytest

import storeds
from make_store import make_store
from storeds import errors, registry
from storeds.backends.engine import Engine
from storeds.backends.raw import RawStore, Rows
from storeds.plugins import Opener
from storeds.protocols import Field, Meta, SupportsDescription

UNREAD: list[str] = []


class Looks(RawStore):
    """A store of one record, whatever the file."""

    def __init__(self, opener: LooksOpener) -> None:
        self.meta = Meta(opener.word, opener.word, 1, opener.word, {"x": Field("int")})

    def read(self, positions: list[int], fields: tuple[str, ...] | None) -> Rows:
        return Rows([{"x": 1} for _ in positions])

    def unread(self) -> list[str]:
        return UNREAD


@dataclass(frozen=True)
class LooksOpener(Opener[str]):
    """Takes any option."""

    word: str
    path: str

    @property
    def url(self) -> str:
        return self.path

    def key(self) -> str:
        return self.word

    def open(self) -> str:
        return self.word

    def close(self, handle: str, /) -> None:
        pass

    def attach(self, handle: str, /) -> Looks:
        return Looks(self)


def layout_for(word: str) -> Engine:
    """Return a layout for files named after a word."""

    def guess(url: str, **options: Any) -> str | None:
        return f"its name holds {word!r}" if word in url else None

    def opener(url: Any, **options: Any) -> LooksOpener:
        return LooksOpener(word, str(url))

    return Engine(opener, guess_can_open=guess)


def refuse(url: str, **options: Any) -> str | None:
    raise errors.FormatError("not one of mine")


@pytest.fixture(autouse=True)
def layouts(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("STOREDS_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(registry.LAYOUTS, "_known", dict(registry.LAYOUTS._known))
    for name in ("red", "blue"):
        storeds.register_layout("hdf5", name, layout_for(name))
    storeds.register_layout("hdf5", "fails", replace(layout_for("fails"), guess_can_open=refuse))


def foreign(path: Path) -> str:
    with h5py.File(path, "w") as file:
        file["x"] = [1, 2, 3]
    return f"hdf5://{path}"


def test_the_one_layout_that_recognises_a_store_opens_it(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    url = foreign(tmp_path / "red.h5")
    with caplog.at_level(logging.INFO, "storeds"):
        assert storeds.open_backend(url).meta.layout == "red"
    assert "layout 'red': its name holds 'red'" in caplog.text
    assert storeds.info(url).recognised == "its name holds 'red'"


def test_two_plug_ins_that_claim_a_store_are_an_error_and_layout_decides(tmp_path: Path) -> None:
    url = foreign(tmp_path / "red-blue.h5")
    why = "layout='blue' (its name holds 'blue') or layout='red' (its name holds 'red')"
    with pytest.raises(errors.ConfigError, match=re.escape(f"several layouts claim this store; pass {why}")):
        storeds.open_backend(url)
    assert storeds.open_backend(url, layout="blue").meta.layout == "blue"


def test_what_a_layout_leaves_unread_is_logged_listed_and_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(f"{__name__}.UNREAD", [f"part {at} (a reason)" for at in range(300)])
    url = foreign(tmp_path / "red.h5")
    storeds.open_backend(url)
    (warning,) = [line.getMessage() for line in caplog.records if line.levelno == logging.WARNING]
    assert "not read: part 0 (a reason); part 1 (a reason); " in warning
    assert "and 294 more" in warning
    found = storeds.info(url).unread
    assert (len(found), found[0], found[-1]) == (201, "part 0 (a reason)", "and 100 more")
    caplog.clear()
    many = storeds.open_backend([url, foreign(tmp_path / "red too.h5")])
    assert isinstance(many, SupportsDescription)
    assert many.describe().unread == pickle.loads(pickle.dumps(many)).describe().unread == found
    assert len([line for line in caplog.records if line.levelno == logging.WARNING]) == 1


def test_an_option_that_the_native_layout_lacks_may_be_the_foreign_ones(tmp_path: Path) -> None:
    assert storeds.open_backend(foreign(tmp_path / "red.h5"), colour="dark").meta.layout == "red"
    with pytest.raises(errors.ConfigError, match="colour"):
        storeds.open_backend(foreign(tmp_path / "green.h5"), colour="dark")
    with pytest.raises(errors.FormatError, match="not a native store"):
        storeds.open_backend(foreign(tmp_path / "red.h5"), layout="storeds/1")


FILE_URLS = {
    "lmdb": ("x.lmdb", "file://{folder}/x.lmdb"),
    "localhost": ("x.h5", "file://localhost{folder}/x.h5"),
    "one slash, capitals": ("x.h5", "FILE:{folder}/x.h5"),
    "percent": ("\u00e4 b*[1].h5", "file://{folder}/%C3%A4%20b%2A%5B1%5D.h5"),
    "a pattern": ("x-0.h5", "file://{folder}/x-*.h5"),
    "options": ("x.h5", "file://{folder}/x.h5?locking=false"),
}


@pytest.mark.parametrize("name", FILE_URLS)
def test_a_file_url_opens_what_its_path_names(tmp_path: Path, name: str) -> None:
    file, url = FILE_URLS[name]
    make_store({"label": "int"}, [{"label": n} for n in range(4)], tmp_path / f"new{Path(file).suffix}")
    (tmp_path / f"new{Path(file).suffix}").rename(tmp_path / file)
    with storeds.open_backend(url.format(folder=tmp_path)) as backend:
        assert backend.get_many([3]) == [{"label": 3}]
    assert storeds.info(url.format(folder=tmp_path)).count == 4


def test_a_file_url_opens_stores_of_other_tools_and_writes(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "x.h5", "w") as file:
        file["image"], file["label"] = [[1, 2], [3, 4]], [0, 1]
    assert len(storeds.open_backend(f"file://{tmp_path}/x.h5", columns={"x": "image[]", "y": "label[]"})) == 2
    with storeds.open_writer(f"file://{tmp_path}/new.lmdb", {"x": "int"}) as writer:
        writer.append([{"x": 1}])
    assert len(storeds.open_backend(tmp_path / "new.lmdb")) == 1


@pytest.mark.parametrize(
    ("url", "says"),
    [
        ("file://server/share/x.h5", "another one, mount them, then pass the path"),
        ("file://x.h5", "names an absolute path of this computer, as in file:///data/train.h5"),
        ("file:///no%00.h5", "no path holds a NUL"),
        ("ftp://key:hunter2@bucket/x.h5?token=hunter3", "mount it or copy its files"),
        ("hdf://x.h5", "did you mean 'hdf5'"),
    ],
)
def test_a_url_that_storeds_cannot_read_says_what_to_do(url: str, says: str) -> None:
    for use in (storeds.open_backend, storeds.info, lambda url: storeds.open_writer(url, {"x": "int"})):
        with pytest.raises(errors.ConfigError) as raised:
            use(url)
        assert says in str(raised.value)
        assert "hunter" not in str(raised.value)
    with pytest.raises(errors.ConfigError, match=re.escape(says)):
        storeds.open_backend([url])
    with pytest.raises(errors.ConfigError, match=re.escape(says)):
        storeds.open_backend(url, layout="pickled")
