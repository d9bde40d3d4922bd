"""The command line, run as a user runs it: what commands do and print, and what to do after Ctrl-C."""

from __future__ import annotations

import ast
import errno
import functools
import inspect
import json
import math
import os
import re
import signal
import socket
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import typer

import storeds
import storeds.cli.make
from _damaged import PICTURES
from _damaged import write as write_damaged
from _packing import stored_records, storeds_command, storeds_json
from make_store import make_store
from mask_files import write
from photographs import jpeg
from storeds import registry
from storeds.cli import app


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    return write(tmp_path / "tree", {f"class{n % 2}/{n}.jpg": n for n in range(6)})


def test_pack_convert_verify_and_info_as_text_and_as_json(tree: Path, tmp_path: Path) -> None:
    url, copy = f"hdf5://{tmp_path}/a.h5", f"lmdb://{tmp_path}/b.lmdb"
    assert "6 records, id " in storeds_command("pack", tree, url)
    assert "--overwrite" in storeds_command("pack", tree, url, code=3)
    packed = storeds_json("pack", tree, url, "--overwrite")
    assert packed["count"] == 6
    assert storeds_json("convert", url, copy)["id"] == packed["id"]
    report = storeds_json("verify", copy)
    assert (report["ok"], report["id"], report["count"], report["images"]) == (True, packed["id"], 6, 6)
    assert "6 records, 6 images that decode (0 examined): no findings" in storeds_command("verify", url)
    assert storeds_json("info", url)["attrs"] == {"classes": ["class0", "class1"]}
    assert re.search(r"image +image\n +label +int\n +key +str", storeds_command("info", url))


def test_convert_joins_several_stores(tmp_path: Path) -> None:
    urls = [make_store({"x": "int"}, [{"x": n}], str(tmp_path / f"{n}.lmdb")) for n in range(3)]
    assert "3 records, id " in storeds_command("convert", *urls, "-o", tmp_path / "all.lmdb")
    assert [row["x"] for row in stored_records(tmp_path / "all.lmdb")] == [0, 1, 2]
    assert storeds_json("convert", urls[0], "--output", tmp_path / "one.h5")["id"] == storeds.info(urls[0]).id
    for given in (urls, urls[:1]):
        assert "name the new store with -o" in storeds_command("convert", *given, code=2)


def test_info_shows_roles(tmp_path: Path) -> None:
    url, boxes = f"lmdb://{tmp_path}/b.lmdb", {"kind": "array", "dtype": "float32", "shape": [None, 4]}
    record = {"image": b"x", "boxes": np.zeros((1, 4), np.float32), "areas": [1.5]}
    source = make_store({"image": "image", "boxes": boxes, "areas": "json"}, [record], f"lmdb://{tmp_path}/a.lmdb")
    roles = ("--role", 'boxes={"role": "boxes", "format": "xywh"}', "--role", 'areas={"of": "boxes"}')
    storeds_command("convert", source, url, "--no-check", *roles)
    lines = [line.split() for line in storeds_command("info", url).splitlines()[-5:-2]]
    assert lines[0] == ["fields", "image", "image"]
    assert lines[1:] == [["boxes", "array", "<f4", "[*,", "4]", "boxes", "xywh"], ["areas", "json", "of", "boxes"]]
    declared = {row.pop("name"): row for row in storeds_json("info", url)["fields"]}
    assert declared["boxes"] == {**boxes, "dtype": "<f4", "role": "boxes", "format": "xywh"}
    assert declared["areas"] == {"kind": "json", "of": "boxes"}
    for role, says in (("{role: boxes}", "unknown role '{role: boxes}'"), ("masks", "did you mean 'mask'")):
        assert says in storeds_command("convert", source, f"{url}2", "--role", f"boxes={role}", code=2)


def test_verify_shows_severity_and_counts_and_json_has_everything(tmp_path: Path) -> None:
    url = f"hdf5://{tmp_path}/a.h5"
    write_damaged(url)
    shown = storeds_command("verify", url, "--workers", 1, code=1)
    lines = [line.split() for line in shown.splitlines()]
    assert ["1", "no", "end", "missing_eoi", "100", "%"] in [line[:6] for line in lines]
    (row,) = (line for line in shown.splitlines() if line.split()[1:2] == ["page"])
    assert "image: it is not a JPEG but HTML" in row
    assert ["truncated_scan", "4"] in lines
    assert "14 records, 7 images that decode (11 examined): 11 findings, 1 harmless note" in shown
    found = storeds_json("verify", url, code=1)
    assert found["kinds"] == dict(Counter(p.reported for p in PICTURES.values() if p.reported))
    (note,) = found["notes"]
    assert (note["position"], note["key"], note["severity"]) == (8, "trailing", "harmless")
    coarse = next(finding for finding in found["findings"] if finding["key"] == "coarse")
    assert coarse["severity"] == f"{math.floor(1000 * coarse['recovered']) / 10:g} %"
    trailing = make_store({"image": "image"}, [{"image": jpeg(n % 4) + bytes(8)} for n in range(30)])
    assert "and 10 more harmless notes" in storeds_command("verify", trailing)
    assert len(storeds_json("verify", trailing)["notes"]) == 30


@pytest.mark.parametrize(
    ("arguments", "code", "kind"),
    [
        (("info", "lmbd://x"), 2, "ConfigError"),
        (("info", "lmdb://x?readahed=1"), 2, "ConfigError"),
        (("info", "/nowhere/x.lmdb"), 3, "StoreNotFoundError"),
        (("pack", "/nowhere", "lmdb://x"), 3, "StoreNotFoundError"),
        (("pack", ".", "lmdb://x", "--classes", "gone.txt"), 3, "StoreNotFoundError"),
        (("info", "mongodb://127.0.0.1:9/db/c?serverSelectionTimeoutMS=200"), 4, "UnavailableError"),
    ],
)
def test_an_error_is_one_message_and_an_exit_code(arguments: tuple[str, ...], code: int, kind: str) -> None:
    assert kind in storeds_command(*arguments, code=code)
    assert storeds_json(*arguments, code=code)["error"]["type"] == kind


def test_no_message_shows_a_password() -> None:
    url = "mongodb://user:hunter2secret@127.0.0.1:9/db/c?serverSelectionTimeoutMS=200"
    commands = (("info", url), ("verify", url), ("convert", url, "memory://x"))
    for arguments, code in (*((each, 4) for each in commands), (("info", url.replace("/c?", "?")), 2)):
        shown = storeds_command(*arguments, code=code)
        assert "hunter2secret" not in shown
        assert "127.0.0.1:9" in shown


def test_version_and_the_schema_of_configs() -> None:
    assert storeds.__version__ in storeds_command("--version")
    schema = storeds_json("config", "schema")
    assert schema == json.loads(storeds_command("config", "schema"))
    assert "dataset" in schema["properties"]


def test_help_and_verify_load_only_what_they_need(tree: Path, tmp_path: Path) -> None:
    url = f"lmdb://{tmp_path}/a.lmdb"
    storeds_command("pack", tree, url)
    slow = {"torch", "h5py", "lmdb", "pymongo", "multiprocessing", "storeds.ops.verifying", "storeds.ops.benchmarking"}
    for arguments, absent in ((["--help"], slow), (["verify", url], {"torch", "h5py", "pymongo"})):
        code = f"from typer.testing import CliRunner; from storeds.cli import app; CliRunner().invoke(app, {arguments})"
        command = [sys.executable, "-c", f"import sys; {code}; print(*sys.modules)"]
        shown = subprocess.run(command, capture_output=True, text=True, check=True)
        assert absent.isdisjoint(shown.stdout.split())


# What is printed

SPECIAL = ["[/b]", "[red]x", "[link=y]z[/link]", "\\[b]", ":smile:", "a  b", "0x1f 'quoted' /a/path"]
"""What rich reads as markup or as emoji codes, or colours."""


def row(shown: str, first: str) -> str:
    """Return the rest of the one line that begins with a word."""
    (found,) = re.findall(rf"^ *{re.escape(first)} +(.*)$", shown, re.MULTILINE)
    return str(found)


def test_text_is_printed_as_it_is(tmp_path: Path) -> None:
    plain, special = tmp_path / "plain", tmp_path / "b[1]/x[red]y::smile:.h5"
    records = [{"key": "good", "image": jpeg(0)}, {"key": "[/b]:smile:", "image": b"<html>"}]
    make_store({"key": "str", "image": "image"}, records, f"hdf5://{plain}", attrs={"classes": SPECIAL})
    special.parent.mkdir()
    plain.rename(special)
    shown = storeds_command("info", f"hdf5://{special}")
    assert row(shown, "url") == f"hdf5://{special}"
    assert json.loads(row(shown, "attrs")) == {"classes": SPECIAL}
    shown = storeds_command("verify", f"hdf5://{special}", "--workers", 1, code=1)
    assert row(shown, "1").startswith("[/b]:smile: ")
    assert f"\nhdf5://{special}: 2 records" in shown
    missing = f"lmdb://{tmp_path}/[red]::smile:.lmdb"
    for command in ("info", "verify", "bench"):
        assert missing.removeprefix("lmdb://") in storeds_command(command, missing, code=3)


@pytest.mark.parametrize("as_json", [True, False])
def test_no_control_character_reaches_the_terminal(tmp_path: Path, as_json: bool) -> None:
    """U+009B begins an escape sequence as ESC [ does, and JSON allows it in a text."""
    name = "".join(map(chr, [0x1B, 0x7F, 0x80, 0x9B, 0x9D, 0x2028, 0x202E]))
    attrs, flags = {"classes": [f"cat{name}31m"], "note": name}, ["--json"] if as_json else []
    url = make_store({"label": "int"}, [{"label": 0}], f"lmdb://{tmp_path}/a.lmdb", attrs=attrs)
    for arguments, code in ((["info", url], 0), (["info", f"{url}{name}"], 3), (["verify", url], 0)):
        shown = storeds_command(*arguments, *flags, code=code)
        assert all(character.isprintable() or character == "\n" for character in shown)
    if as_json:
        assert storeds_json("info", url)["attrs"]["note"] == name


@pytest.fixture
def silent_server() -> Iterator[socket.socket]:
    """Listen for a MongoDB client, that waits for the answer in vain."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(500)
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
            out, err = process.communicate(timeout=500)
    finally:
        process.kill()
        process.wait()
    assert (process.returncode, out) == (130, ""), err
    return err


@pytest.mark.parametrize("command", ["verify", "pack"])
def test_an_interrupted_command_says_so(command: str, silent_server: socket.socket, tmp_path: Path) -> None:
    shown = interrupt(silent_server, command, *([] if command == "verify" else [f"lmdb://{tmp_path}/a.lmdb"]))
    assert shown.strip() == "interrupted"  # nothing was durable


def test_an_interrupt_says_what_is_kept(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def stop(*_: object, **__: object) -> None:
        with storeds.open_writer("memory://kept", {"x": "int"}, commit_every=1) as writer:
            writer.append([{"x": 1}])
            raise KeyboardInterrupt

    monkeypatch.setattr("storeds.ops.convert", stop)
    with pytest.raises(typer.Exit) as ended:
        storeds.cli.make.convert(["a.lmdb", "b.h5"])
    assert ended.value.exit_code == 130
    assert capsys.readouterr().err == (
        "interrupted\n1 record of memory://kept is kept, and resume=True (--resume) continues there\n"
    )


# What runs, and what its output is: a full disk, a pipe that nobody reads, or closed.
COMMANDS = {
    "info": ("info {url}", "full"),
    "verify": ("verify {url} --json", "pipe"),
    "get": ("get {url} class0/0.jpg -o -", "closed"),
    "show": ("show {url} -o {out}/page.html", "full"),
    "convert": ("convert {url} {out}/b.h5", "pipe"),
    "an error": ("info {out}/nothing.lmdb --json", "closed"),
    "version": ("--version", "full"),
    "help": ("--help", "pipe"),
    "no arguments": ("", "closed"),
}
SCRIPT = Path(sys.executable).with_name("storeds")


def in_shell(line: str, **outputs: Any) -> subprocess.CompletedProcess[str]:
    """Run a line of bash; return its exit code and what it wrote to stderr, and to stdout unless that is given."""
    outputs = {"stdout": subprocess.PIPE, **outputs}
    return subprocess.run(["bash", "-c", line], stderr=subprocess.PIPE, text=True, check=False, **outputs)


@pytest.mark.parametrize("command", COMMANDS)
def test_an_output_that_cannot_be_written_is_one_line_and_exit_code_3(tree: Path, tmp_path: Path, command: str) -> None:
    arguments, output = COMMANDS[command]
    url, out = f"{tmp_path}/a.lmdb", tmp_path / "out"
    storeds.pack(tree, url)
    out.mkdir()
    reader, pipe = os.pipe()
    os.close(reader)
    end = {"full": " >/dev/full", "closed": " >&-", "pipe": ""}[output]
    done = in_shell(f"{SCRIPT} {arguments.format(url=url, out=out)}{end}", stdout=pipe)
    os.close(pipe)
    assert (done.returncode, done.stderr.count("\n")) == (3, 1), done.stderr
    assert done.stderr.startswith("error: the output cannot be written: [Errno ")
    assert not [*out.rglob("*.fresh")]


BROKEN = "Broken pipe"
# What pack raises, and what is shown.
RAISED = {
    "a file": (OSError(errno.EIO, "Lost", "/a.csv"), "OSError: [Errno 5] Lost: '/a.csv'"),
    "bytes": (PermissionError(errno.EACCES, "Denied", b"/a"), "PermissionError: [Errno 13] Denied: b'/a'"),
    "a pipe": (BrokenPipeError(errno.EPIPE, BROKEN), f"BrokenPipeError: [Errno 32] {BROKEN}, about a.csv or a.lmdb"),
}


@pytest.mark.parametrize("case", RAISED)
def test_an_error_of_the_system_is_not_one_of_the_output(case: str, monkeypatch: pytest.MonkeyPatch) -> None:
    raised, shown = RAISED[case]

    def fail(*_: Any, **__: Any) -> None:
        raise raised

    monkeypatch.setattr(storeds.ops, "pack", fail)
    assert storeds_command("pack", "a.csv", "a.lmdb", code=3) == f"error: {shown}\n"
    kind, _, message = shown.partition(": ")
    assert storeds_json("pack", "a.csv", "a.lmdb", code=3) == {"error": {"type": kind, "message": message}}


def test_errors_are_on_stderr_which_may_be_closed_or_full(tmp_path: Path) -> None:
    missing = f"{SCRIPT} info {tmp_path}/no.lmdb"
    done = in_shell(missing)
    assert (done.returncode, "no store at" in done.stderr, done.stdout) == (3, True, "")
    for end in (">/dev/full 2>/dev/full", ">&- 2>&- <&-"):
        assert in_shell(f"{missing} {end}").returncode == 3, end
    done = in_shell(f"{SCRIPT} plugins 2>&-")
    assert (done.returncode, "lmdb" in done.stdout) == (0, True)


@pytest.mark.parametrize("output", ["page.html", "sheet.png"])
def test_show_writes_no_file_but_its_own_and_leaves_none_when_it_fails(tree: Path, tmp_path: Path, output: str) -> None:
    url, out, link = f"{tmp_path}/a.lmdb", tmp_path / "out", tmp_path / output
    storeds.pack(tree, url)
    names = (f"{output}.fresh", f".{output}.fresh", output, f"{output}.partial", "x.fresh")
    write(out, {name: f"my {name}" for name in names})
    link.symlink_to(out / output)
    done = in_shell(f"ulimit -f 1; {SCRIPT} show {url} -o {link}")  # no file of more than 1 KiB
    assert (done.returncode, done.stderr.count("\n")) == (3, 1), done.stderr
    assert f"{out / output} cannot be written: [Errno 27] File too large; choose a file system" in done.stderr
    assert {path.name: path.read_text() for path in out.iterdir()} == {name: f"my {name}" for name in names}
    storeds_command("show", url, "-o", link)
    assert (link.is_symlink(), (out / output).stat().st_size > 1 << 10) == (True, True)
    others = {path.name: path.read_text() for path in out.iterdir() if path.name != output}
    assert others == {name: f"my {name}" for name in names if name != output}


# What the help says


@pytest.mark.parametrize("command", ["pack", "convert", "verify", "config check", "demo"])
def test_help_has_examples_and_exit_codes(command: str) -> None:
    shown = " ".join(storeds_command(*command.split(), "--help").split())
    assert f"storeds {command}" in shown
    assert ("1 a problem was found" in shown) == (command in ("convert", "repair", "verify", "demo"))
    assert "2 wrong arguments or config" in shown


def test_formats_list_what_option_takes() -> None:
    known = storeds_json("formats")["formats"]
    names = {(each["use"], each["name"]) for each in known}
    assert names >= {("pack", "coco"), ("export", "coco"), ("open", "hdf5/per_video"), ("open", "mongodb/gridfs")}
    assert all(each["about"] for each in known)
    assert [(each["name"], row["name"]) for each in known for row in each["options"] if not row["about"]] == []
    (csv,) = storeds_json("formats", "csv")["formats"]
    (delimiter,) = (row for row in csv["options"] if row["name"] == "delimiter")
    assert (delimiter["default"], "by default a tab in a file named .tsv" in delimiter["about"]) == (None, True)
    assert "per_video" in storeds_command("formats", "per_video")
    assert "there is no format 'cvs'; did you mean 'csv'?" in storeds_command("formats", "cvs", code=2)


CONFIG = """
[dataset]
url = "{url}"
decode = "tensor"
transform = [{{ name = "Resize", size = [8, 8] }}]
[loader]
batch_size = 4
[splits.train.dataset]
where = {{ label = 0 }}
[splits.val.dataset]
where = {{ label = 1 }}
"""


def test_config_check_makes_the_first_sample_of_each_split(tree: Path, tmp_path: Path) -> None:
    url, file = f"lmdb://{tmp_path}/a.lmdb", tmp_path / "train.toml"
    storeds_command("pack", tree, url)
    file.write_text(CONFIG.format(url=url))
    rows = storeds_json("config", "check", file)["splits"]
    assert [(row["split"], row["sample"], row["url"]) for row in rows] == [
        ("train", "uint8 [3, 8, 8], int", url),
        ("val", "uint8 [3, 8, 8], int", url),
    ]
    assert [row["samples"] for row in rows] == [len(storeds.build_dataset(file, row["split"])) for row in rows]
    assert storeds_json("config", "check", file, "--split", "val")["splits"] == rows[1:]
    assert "train" in storeds_command("config", "check", file)
    file.write_text(CONFIG.format(url=url).replace("Resize", "Resise"))
    assert "did you mean 'Resize'?" in storeds_command("config", "check", file, code=2)


# Every flag and option that a message of storeds names exists

ROOT = Path(storeds.__file__).parent
NO_MESSAGES = {"mongod.py"}  # calls another program


@functools.cache
def texts() -> list[tuple[str, str]]:
    """Return the file and the text of each string in the source that is no docstring."""
    found: list[tuple[str, str]] = []
    for path in sorted(ROOT.rglob("*.py")):
        if path.name in NO_MESSAGES:
            continue
        tree = ast.parse(path.read_text())
        docstrings = {
            id(node.body[0].value)
            for node in ast.walk(tree)
            if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef)) and node.body and isinstance(node.body[0], ast.Expr)
        }  # fmt: skip
        for node in ast.walk(tree):
            if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in docstrings:
                found.append((path.name, node.value))
    return found


def test_flags_in_messages_exist() -> None:
    command = typer.main.get_command(app)
    known = {"--help", "--shm-size", "--status"}  # the others of Docker and of h5clear
    pending = [command]
    while pending:
        each = pending.pop()
        pending += list(getattr(each, "commands", {}).values())
        known |= {flag for parameter in each.params for flag in (*parameter.opts, *parameter.secondary_opts)}
    wrong = {
        (name, flag) for name, text in texts() for flag in re.findall(r"(?<![\w-])--[a-z][a-z-]+", text) if flag not in known
    }  # fmt: skip
    assert sorted(wrong) == []


def test_options_of_sources_in_messages_exist() -> None:
    formats = [registry.FORMATS.get(name) for name in registry.FORMATS.names() if registry.FORMATS.is_built_in(name)]
    reads = [each.read for each in formats if each.read is not None]
    known = {parameter for read in reads for parameter in inspect.signature(read).parameters}
    folder = ROOT / "formats"
    files = {path.name for path in folder.rglob("*.py")}
    wrong = {
        (name, option)
        for name, text in texts()
        if name in files
        for option in re.findall(r"--option '?([a-z_]+)=", text)
        if option not in known
    }
    assert not wrong


def test_a_config_is_checked_up_to_a_batch_with_functions_of_the_folder(tmp_path: Path) -> None:
    sizes = (8, 9)
    records = [{"x": np.zeros((3, size), "u1")} for size in sizes for _ in range(2)]
    make_store({"x": {"kind": "array", "dtype": "uint8", "shape": [3, None]}}, records, tmp_path / "a.lmdb")
    (tmp_path / "mine.py").write_text("def change(x):\n    return x[:, :8]\n")
    config: dict[str, Any] = {"dataset": {"url": "a.lmdb", "as_dict": True}, "loader": {"batch_size": 4}}
    (tmp_path / "config.json").write_text(json.dumps(config))
    line = f"cd {tmp_path} && {SCRIPT} config check config.json"
    failed = in_shell(line)
    assert (failed.returncode, "make no batch" in failed.stderr) == (2, True), failed.stderr
    config["dataset"]["transform"] = "mine.change"
    (tmp_path / "config.json").write_text(json.dumps(config))
    assert "uint8 [3, 8]" in in_shell(line).stdout
