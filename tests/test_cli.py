"""The command line, run as a user runs it."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

import storeds
from photographs import jpeg
from storeds.cli import app

RUNNER = CliRunner()


def run(*arguments: object, code: int = 0) -> str:
    result = RUNNER.invoke(app, [str(argument) for argument in arguments])
    assert result.exit_code == code, result.output
    return result.output


def run_json(*arguments: object, code: int = 0) -> Any:
    return json.loads(run(*arguments, "--json", code=code))


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    for number in range(6):
        file = tmp_path / "tree" / f"class{number % 2}" / f"{number}.jpg"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(jpeg(number))
    return tmp_path / "tree"


def test_pack_convert_verify_info(tree: Path, tmp_path: Path) -> None:
    lmdb, hdf5 = f"lmdb://{tmp_path}/a.lmdb", f"hdf5://{tmp_path}/a.h5"
    packed = run_json("pack", tree, lmdb)
    assert packed["count"] == 6
    converted = run_json("convert", lmdb, hdf5)
    assert converted["id"] == packed["id"]
    assert run_json("verify", hdf5) == {
        "ok": True,
        "url": hdf5,
        "id": packed["id"],
        "count": 6,
        "images": 6,
        "findings": [],
    }
    assert run_json("info", hdf5)["attrs"] == {"classes": ["class0", "class1"]}


def test_the_same_for_people(tree: Path, tmp_path: Path) -> None:
    url = f"lmdb://{tmp_path}/a.lmdb"
    assert "6 records, id " in run("pack", tree, url)
    assert "image: image, label: int, key: str" in run("info", url)
    assert "6 records, 6 images decoded: all is well" in run("verify", url)


def test_verify_exits_with_1_and_says_where(tmp_path: Path) -> None:
    url = f"lmdb://{tmp_path}/a.lmdb"
    with storeds.open_writer(url, {"key": "str", "image": "image"}) as writer:
        writer.append([{"key": "good", "image": jpeg(0)}, {"key": "bad", "image": b"<html>"}])
    assert "record 1 (bad): image: image does not decode" in run("verify", url, code=1)
    assert [finding["position"] for finding in run_json("verify", url, code=1)["findings"]] == [1]


@pytest.mark.parametrize(
    ("arguments", "code", "kind"),
    [
        (("info", "lmbd://x"), 2, "ConfigError"),
        (("info", "lmdb://x?readahed=1"), 2, "ConfigError"),
        (("info", "/nowhere/x.lmdb"), 3, "StoreNotFoundError"),
        (("pack", "/nowhere", "lmdb://x"), 3, "StoreNotFoundError"),
        (("info", "mongodb://127.0.0.1:9/db/c?serverSelectionTimeoutMS=200"), 4, "UnavailableError"),
    ],
)
def test_an_error_is_one_message_and_an_exit_code(arguments: tuple[str, ...], code: int, kind: str) -> None:
    assert kind in run(*arguments, code=code)
    assert run_json(*arguments, code=code)["error"]["type"] == kind


def test_a_target_that_exists_is_replaced_only_when_told(tree: Path, tmp_path: Path) -> None:
    url = f"hdf5://{tmp_path}/a.h5"
    run("pack", tree, url)
    assert "--overwrite" in run("pack", tree, url, code=3)
    run("pack", tree, url, "--overwrite")


def test_no_message_shows_a_password() -> None:
    url = "mongodb://user:hunter2secret@127.0.0.1:9/db/c?serverSelectionTimeoutMS=200"
    for arguments in (
        ("info", url),
        ("verify", url),
        ("convert", url, "memory://x"),
        ("info", url.replace("/c?", "?")),
    ):
        shown = run(*arguments, code=2 if "?" in arguments[-1] and "/c?" not in arguments[-1] else 4)
        assert "hunter2secret" not in shown
        assert "127.0.0.1:9" in shown


def test_backends_lists_every_plug_in_and_what_it_needs() -> None:
    rows = run_json("backends")["plugins"]
    names = {(row["sort"], row["name"]) for row in rows}
    assert {
        ("backend", "lmdb"),
        ("backend", "hdf5"),
        ("backend", "mongodb"),
        ("reader", "image"),
        ("decoder", "tensor"),
    } <= names
    assert all(row["state"] == "ok" for row in rows)
    assert "mongodb" in run("backends")


def test_config_schema_is_json_schema() -> None:
    assert run_json("config", "schema") == json.loads(run("config", "schema"))
    assert "dataset" in run_json("config", "schema")["properties"]


def test_version_and_help() -> None:
    assert storeds.__version__ in run("--version")
    assert "verify" in run("--help")


def test_the_installed_command_says_errors_on_stderr() -> None:
    command = [str(Path(sys.executable).with_name("storeds")), "info", "/nowhere/x.lmdb"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 3
    assert "no store at" in done.stderr
    assert done.stdout == ""


def test_looking_at_a_store_does_not_load_torch(tree: Path, tmp_path: Path) -> None:
    url = f"lmdb://{tmp_path}/a.lmdb"
    run("pack", tree, url)
    code = f"import sys, storeds; storeds.verify({url!r}); sys.exit('torch' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)
