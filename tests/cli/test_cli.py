"""The command line, run as a user runs it."""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from typer.testing import CliRunner

import storeds
from _damaged import PICTURES, write
from _foreign_lmdb import put
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
        "examined": 0,
        "findings": [],
        "notes": [],
        "kinds": {},
    }
    assert run_json("info", hdf5)["attrs"] == {"classes": ["class0", "class1"]}


def test_the_text_of_commands(tree: Path, tmp_path: Path) -> None:
    url, damaged = f"hdf5://{tmp_path}/a.h5", f"lmdb://{tmp_path}/b.lmdb"
    assert "6 records, id " in run("pack", tree, url)
    assert "image: image, label: int, key: str" in run("info", url)
    assert "6 records, 6 images that decode (0 examined): no findings" in run("verify", url)
    assert "--overwrite" in run("pack", tree, url, code=3)
    run("pack", tree, url, "--overwrite")
    with storeds.open_writer(damaged, {"key": "str", "image": "image"}) as writer:
        writer.append([{"key": "good", "image": jpeg(0)}, {"key": "bad", "image": b"<html>"}])
    shown = run("verify", damaged, code=1)
    (row,) = (line for line in shown.splitlines() if line.split()[:1] == ["1"])
    assert row.split()[:3] == ["1", "bad", "not_jpeg"]
    assert "image: it is not a JPEG but HTML" in row
    assert "pymongo" in run("backends")


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
    assert "{role: boxes} is not JSON" in wrong.output
    wrong = CliRunner().invoke(app, ["convert", source, f"{url}2", "--role", "boxes=masks"])
    assert wrong.exit_code == 2
    assert "did you mean 'mask'" in wrong.output


def test_verify_draws_a_store_with_options(tmp_path: Path) -> None:
    foreign, sheet = f"lmdb://{tmp_path}/foreign", tmp_path / "sheet.png"
    entries = [(b"a", jpeg(0)), (b"b", jpeg(1)[:-500])]
    put(tmp_path / "foreign", entries, database=b"pictures")
    how = ["--layout", "keyed", "--option", "database=pictures"]
    shown = run("verify", foreign, *how, "--contact-sheet", sheet, code=1)
    assert f"{sheet}: 1 picture" in shown
    with Image.open(sheet) as image:
        assert image.format == "PNG"


def test_verify_shows_severity_and_counts_and_json_has_everything(tmp_path: Path) -> None:
    url = f"hdf5://{tmp_path}/a.h5"
    write(url)
    shown = run("verify", url, "--workers", 1, code=1)
    lines = [line.split() for line in shown.splitlines()]
    assert ["1", "no", "end", "missing_eoi", "100", "%"] in [line[:6] for line in lines]
    assert ["truncated_scan", "4"] in lines
    assert ["8", "trailing", "trailing_data", "harmless"] in [line[:4] for line in lines]
    assert "14 records, 7 images that decode (11 examined): 11 findings, 1 harmless note" in shown
    found = run_json("verify", url, code=1)
    assert found["kinds"] == dict(Counter(p.reported for p in PICTURES.values() if p.reported))
    (note,) = found["notes"]
    assert note == {
        "kind": "trailing_data",
        "message": f"image: 15 bytes follow the picture, which ends at byte {len(jpeg(1))}",
        "position": 8,
        "key": "trailing",
        "image": "image",
        "recovered": 1.0,
        "format": None,
        "severity": "harmless",
    }
    coarse = next(finding for finding in found["findings"] if finding["key"] == "coarse")
    assert coarse["severity"] == f"{math.floor(1000 * coarse['recovered']) / 10:g} %"


def test_trailing_bytes_are_harmless(tmp_path: Path) -> None:
    url = f"lmdb://{tmp_path}/a.lmdb"
    with storeds.open_writer(url, {"image": "image"}) as writer:
        writer.append({"image": jpeg(n % 4) + bytes(8)} for n in range(30))
    shown = run("verify", url)
    assert "no findings, 30 harmless notes" in shown
    assert "and 10 more harmless notes" in shown
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


def test_info_does_not_load_torch(tree: Path, tmp_path: Path) -> None:
    url = f"lmdb://{tmp_path}/a.lmdb"
    run("pack", tree, url)
    code = f"import sys, storeds; storeds.verify({url!r}); sys.exit('torch' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_labels_of_a_list_and_missing_files_of_class_names(tree: Path, tmp_path: Path) -> None:
    (tree / "list.csv").write_text("image,tags\nclass0/0.jpg,red;blue\n")
    options = ("--option", "label_column=tags", "--option", "label_separator=;")
    said = run("pack", tree / "list.csv", f"lmdb://{tmp_path}/a.lmdb", *options)
    assert "tags → labels" in said
    assert "none is a label" not in said
    said = run("pack", tree / "list.csv", f"lmdb://{tmp_path}/b.lmdb", *options, "--classes", "gone.txt", code=3)
    assert "--classes gone.txt: no such file" in said


def test_help_loads_no_engine_and_no_operation_that_starts_processes() -> None:
    code = "import sys; from typer.testing import CliRunner; from storeds.cli import app; CliRunner().invoke(app, ['--help'])"
    slow = {"torch", "h5py", "lmdb", "pymongo", "multiprocessing", "storeds.ops.verifying", "storeds.ops.benchmarking"}
    shown = subprocess.run(
        [sys.executable, "-c", f"{code}; print(*sys.modules)"], capture_output=True, text=True, check=True
    )
    assert slow.isdisjoint(shown.stdout.split())


def test_the_shell_completes_paths_and_schemes(tmp_path: Path) -> None:
    (tmp_path / "photos.lmdb").touch()
    environment = {**os.environ, "_STOREDS_COMPLETE": "complete_bash", "COMP_CWORD": "2"}
    storeds_command = str(Path(sys.executable).with_name("storeds"))
    for typed, offered in (("lm", "lmdb://"), ("lmdb://pho", "lmdb://photos.lmdb"), ("//pho", "//photos.lmdb")):
        environment["COMP_WORDS"] = f"storeds info {typed}"
        done = subprocess.run([storeds_command], env=environment, cwd=tmp_path, capture_output=True, text=True)
        assert done.stdout.split() == [offered]
