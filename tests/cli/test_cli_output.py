"""What the command line prints: text from stores, URLs and files as it is, and what to do after Ctrl-C."""

from __future__ import annotations

import json
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from _packing import storeds_command, storeds_json
from make_store import make_store
from photographs import jpeg

SPECIAL = ["[/b]", "[red]x", "[link=y]z[/link]", "\\[b]", ":smile:", "a  b", "0x1f 'quoted' /a/path"]
"""What rich reads as markup or as emoji codes, or colours."""

STOREDS = str(Path(sys.executable).with_name("storeds"))


def row(shown: str, first: str) -> str:
    """Return the rest of the one line that begins with a word."""
    (found,) = re.findall(rf"^ *{re.escape(first)} +(.*)$", shown, re.MULTILINE)
    return str(found)


@pytest.fixture(params=["lmdb", "hdf5"])
def special_store(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """Write a store, with keys, attrs and a path that look like markup; its second image is broken."""
    engine = request.param
    plain, special = tmp_path / "plain", tmp_path / "b[1]" / f"x[red]y::smile:.{engine}"
    records = [{"key": "good", "image": jpeg(0)}, {"key": "[/b]:smile:", "image": b"<html>"}]
    make_store({"key": "str", "image": "image"}, records, f"{engine}://{plain}", attrs={"classes": SPECIAL})
    special.parent.mkdir()
    plain.rename(special)
    return f"{engine}://{special}"


def test_text_is_printed_as_it_is(special_store: str, tmp_path: Path) -> None:
    shown = storeds_command("info", special_store)
    assert row(shown, "url") == special_store
    assert json.loads(row(shown, "attrs")) == {"classes": SPECIAL}
    shown = storeds_command("verify", special_store, "--workers", 1, code=1)
    assert row(shown, "1").startswith("[/b]:smile: ")
    assert f"\n{special_store}: 2 records" in shown
    missing = f"{tmp_path}/[red]::smile:.lmdb"
    assert all(
        missing in storeds_command(command, f"lmdb://{missing}", code=3) for command in ("info", "verify", "bench")
    )


@pytest.mark.parametrize("as_json", [True, False])
def test_no_control_character_reaches_the_terminal(tmp_path: Path, as_json: bool) -> None:
    """U+009B begins an escape sequence as ESC [ does, and JSON allows it in a text."""
    name = "".join(map(chr, [0x1B, 0x7F, 0x80, 0x9B, 0x9D, 0x2028, 0x202E]))
    url = f"lmdb://{tmp_path}/a.lmdb"
    make_store({"label": "int"}, [{"label": 0}], url, attrs={"classes": [f"cat{name}31m"], "note": name})
    flags = ["--json"] if as_json else []
    for arguments, code in ((["info", url], 0), (["info", f"{url}{name}"], 3), (["verify", url], 0)):
        shown = storeds_command(*arguments, *flags, code=code)
        assert all(character.isprintable() or character == "\n" for character in shown)
    if as_json:
        assert storeds_json("info", url)["attrs"]["note"] == name


@pytest.fixture
def silent_server() -> Iterator[socket.socket]:
    """Listen for a MongoDB client, that waits for the answer in vain."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(60)
        yield server


# A shell that runs the tests in the background makes them ignore Ctrl-C.
_HEEDING = """
import signal
signal.signal(signal.SIGINT, signal.default_int_handler)
from storeds.cli import main
main()
"""


def interrupt(server: socket.socket, command: str, *more: str) -> str:
    """Run a command on a store of a server that is silent; press Ctrl-C when it waits; return what it says."""
    url = f"mongodb://127.0.0.1:{server.getsockname()[1]}/db/c"
    pipe = subprocess.PIPE
    process = subprocess.Popen(
        [sys.executable, "-c", _HEEDING, command, url, *more], stdout=pipe, stderr=pipe, text=True
    )
    try:
        connection, _ = server.accept()
        with connection:
            process.send_signal(signal.SIGINT)
            out, err = process.communicate(timeout=60)
    finally:
        process.kill()
        process.wait()
    assert (process.returncode, out) == (130, ""), err
    return err


@pytest.mark.parametrize("command", ["verify", "pack", "convert", "repair"])
def test_interrupted_writers_name_resume(command: str, silent_server: socket.socket, tmp_path: Path) -> None:
    shown = interrupt(silent_server, command, *([] if command == "verify" else [f"lmdb://{tmp_path}/a.lmdb"]))
    resume = "" if command == "verify" else "; finished work is kept, continue with --resume"
    assert shown.strip() == f"interrupted{resume}"
