"""The command line, run as a user runs it."""

from __future__ import annotations

import json
import math
import re
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

import storeds
from _damaged import PICTURES, write
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
    report = run_json("verify", hdf5)
    assert (report["ok"], report["id"], report["count"], report["images"]) == (True, packed["id"], 6, 6)
    assert run_json("info", hdf5)["attrs"] == {"classes": ["class0", "class1"]}


def test_the_text_of_commands(tree: Path, tmp_path: Path) -> None:
    url, damaged = f"hdf5://{tmp_path}/a.h5", f"lmdb://{tmp_path}/b.lmdb"
    assert "6 records, id " in run("pack", tree, url)
    assert re.search(r"image +image\n +label +int\n +key +str", run("info", url))
    assert "6 records, 6 images that decode (0 examined): no findings" in run("verify", url)
    assert "--overwrite" in run("pack", tree, url, code=3)
    run("pack", tree, url, "--overwrite")
    with storeds.open_writer(damaged, {"key": "str", "image": "image"}) as writer:
        writer.append([{"key": "good", "image": jpeg(0)}, {"key": "bad", "image": b"<html>"}])
    shown = run("verify", damaged, code=1)
    (row,) = (line for line in shown.splitlines() if line.split()[:1] == ["1"])
    assert row.split()[:3] == ["1", "bad", "not_jpeg"]
    assert "image: it is not a JPEG but HTML" in row


def test_info_shows_roles(tmp_path: Path) -> None:
    source, url = f"lmdb://{tmp_path}/a.lmdb", f"lmdb://{tmp_path}/b.lmdb"
    boxes = {"kind": "array", "dtype": "float32", "shape": [None, 4]}
    with storeds.open_writer(source, {"image": "image", "boxes": boxes, "areas": "json"}) as writer:
        writer.append([{"image": b"x", "boxes": np.zeros((1, 4), np.float32), "areas": [1.5]}])
    roles = ("--role", 'boxes={"role": "boxes", "format": "xywh"}', "--role", 'areas={"of": "boxes"}')
    run("convert", source, url, "--no-check", *roles)
    lines = run("info", url).splitlines()
    assert [line.split() for line in lines[-5:-2]] == [
        ["fields", "image", "image"],
        ["boxes", "array", "<f4", "[*,", "4]", "boxes", "xywh"],
        ["areas", "json", "of", "boxes"],
    ]
    declared = {row.pop("name"): row for row in run_json("info", url)["fields"]}
    assert declared["boxes"] == {**boxes, "dtype": "<f4", "role": "boxes", "format": "xywh"}
    assert declared["areas"] == {"kind": "json", "of": "boxes"}
    wrong = CliRunner().invoke(app, ["convert", source, f"{url}2", "--role", "boxes={role: boxes}"])
    assert wrong.exit_code == 2
    assert "unknown role '{role: boxes}'" in wrong.output
    wrong = CliRunner().invoke(app, ["convert", source, f"{url}2", "--role", "boxes=masks"])
    assert wrong.exit_code == 2
    assert "did you mean 'mask'" in wrong.output


def test_verify_shows_severity_and_counts_and_json_has_everything(tmp_path: Path) -> None:
    url = f"hdf5://{tmp_path}/a.h5"
    write(url)
    shown = run("verify", url, "--workers", 1, code=1)
    lines = [line.split() for line in shown.splitlines()]
    assert ["1", "no", "end", "missing_eoi", "100", "%"] in [line[:6] for line in lines]
    assert ["truncated_scan", "4"] in lines
    assert "14 records, 7 images that decode (11 examined): 11 findings, 1 harmless note" in shown
    found = run_json("verify", url, code=1)
    assert found["kinds"] == dict(Counter(p.reported for p in PICTURES.values() if p.reported))
    (note,) = found["notes"]
    assert (note["position"], note["key"], note["severity"]) == (8, "trailing", "harmless")
    coarse = next(finding for finding in found["findings"] if finding["key"] == "coarse")
    assert coarse["severity"] == f"{math.floor(1000 * coarse['recovered']) / 10:g} %"


def test_trailing_bytes_are_harmless(tmp_path: Path) -> None:
    url = f"lmdb://{tmp_path}/a.lmdb"
    with storeds.open_writer(url, {"image": "image"}) as writer:
        writer.append({"image": jpeg(n % 4) + bytes(8)} for n in range(30))
    assert "and 10 more harmless notes" in run("verify", url)
    assert len(run_json("verify", url)["notes"]) == 30


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
    assert names >= {("backend", "lmdb"), ("backend", "mongodb"), ("reader", "image"), ("decoder", "tensor")}
    assert all(row["state"] == "ok" for row in rows)
    assert "pymongo" in run("backends")


def test_version_and_the_schema_of_configs() -> None:
    assert storeds.__version__ in run("--version")
    assert run_json("config", "schema") == json.loads(run("config", "schema"))
    assert "dataset" in run_json("config", "schema")["properties"]


def test_the_installed_command_says_errors_on_stderr() -> None:
    command = [str(Path(sys.executable).with_name("storeds")), "info", "/nowhere/x.lmdb"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 3
    assert "no store at" in done.stderr
    assert done.stdout == ""


def test_missing_files_of_class_names(tree: Path, tmp_path: Path) -> None:
    said = run("pack", tree, f"lmdb://{tmp_path}/b.lmdb", "--classes", "gone.txt", code=3)
    assert "--classes gone.txt: no such file" in said


def test_help_and_verify_load_only_what_they_need(tree: Path, tmp_path: Path) -> None:
    url = f"lmdb://{tmp_path}/a.lmdb"
    run("pack", tree, url)
    slow = {"torch", "h5py", "lmdb", "pymongo", "multiprocessing", "storeds.ops.verifying", "storeds.ops.benchmarking"}
    for arguments, absent in ((["--help"], slow), (["verify", url], {"torch", "h5py", "pymongo"})):
        code = f"from typer.testing import CliRunner; from storeds.cli import app; CliRunner().invoke(app, {arguments})"
        command = [sys.executable, "-c", f"import sys; {code}; print(*sys.modules)"]
        shown = subprocess.run(command, capture_output=True, text=True, check=True)
        assert absent.isdisjoint(shown.stdout.split())
