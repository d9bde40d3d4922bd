"""`storeds stats`, `head` and `get`, run as a user runs them."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import xxhash
from typer.testing import CliRunner

import storeds
from _packing import storeds_command, storeds_json
from make_store import make_store
from photographs import by_pillow, jpeg
from picture_stores import foreign
from storeds.cli import app

BLOBS = [jpeg(n) for n in range(4)] + [jpeg(4)[:-2]]
HOSTILE = f"<b>[red]\x1b[31m{'x' * 300}"
FIELDS = {
    **{"image": "image", "label": "int", "key": "str", "caption": "str", "raw": "bytes", "more": "json"},
    "vector": {"kind": "array", "dtype": "float32", "shape": [3]},
}


@pytest.fixture
def url(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv("STOREDS_CACHE", str(tmp_path / "cache"))
    same = {"caption": HOSTILE, "raw": b"12345", "more": {"a": [1]}, "vector": np.zeros(3, np.float32)}
    records = [{"image": blob, "label": n % 2, "key": f"cat/{n}.jpg", **same} for n, blob in enumerate(BLOBS)]
    return make_store(FIELDS, records, f"lmdb://{tmp_path}/a.lmdb", attrs={"classes": ["cat", "dog"]})


def test_stats_as_text_and_as_json(url: str) -> None:
    pixels = np.concatenate([by_pillow(blob).reshape(-1, 3) for blob in BLOBS[:4]]) / 255
    found = storeds_json("stats", url, "--all")
    assert found["mean"] == pytest.approx(pixels.mean(0), abs=1e-6)
    assert (found["classes"], found["damaged"]) == ({"cat": 3, "dog": 2}, {"missing_eoi": 1})
    lines = storeds_command("stats", url).splitlines()
    assert lines[-8].split()[:2] == ["bytes", f"{min(map(len, BLOBS)):,}"]
    mean, std = (", ".join(f"{value:.4f}" for value in values) for values in (pixels.mean(0), pixels.std(0)))
    assert lines[-7:] == [
        *("classes: 2: cat 3, dog 2", "damaged: 1 of 5 (missing_eoi 1)", "exact duplicates: 0"),
        *(f"mean: {mean}", f"std: {std}", "mean and std are of the 4 that decode in mode RGB"),
        f"{url}: 5 of 5 records examined",
    ]
    sampled = storeds_command("stats", url, "--sample", 2, "--mode", "L")
    assert " ± " in sampled
    assert "2 of 5 records examined; --all is exact" in sampled


@pytest.mark.parametrize("operation", ["info", "stats", "verify"])
def test_print_shows_what_the_command_shows(url: str, operation: str) -> None:
    printed = CliRunner().invoke(app, [operation, url]).stdout
    assert printed == f"{getattr(storeds, operation)(url)}\n"
    assert f"{url}" in printed


def test_head_describes_what_is_large_and_prints_the_rest_as_it_is(url: str) -> None:
    lines = storeds_command("head", url, "-n", 2).splitlines()
    assert len(lines) == 4
    assert f"JPEG 96 × 64, intact, {len(BLOBS[0]) / 1000:.1f} kB (" in lines[2]
    assert "cat/0.jpg" in lines[2]
    assert r"<b>[red]\x1b[31mxxx" in lines[2]
    assert "x" * 100 not in lines[2]
    records = storeds_json("head", url)["records"]
    assert [record["label"] for record in records] == [0, 1, 0, 1, 0]
    size = len(BLOBS[4])
    stored = f"{size / 1000:.1f} kB ({size:,} bytes), checksum {xxhash.xxh3_64_hexdigest(BLOBS[4])}"
    assert records[4] == {
        "image": f"JPEG 96 × 64, missing_eoi, {stored}",
        "label": 0,
        "key": "cat/4.jpg",
        "caption": HOSTILE,
        "raw": f"5 bytes, checksum {xxhash.xxh3_64_hexdigest(b'12345')}",
        "more": {"a": [1]},
        "vector": "float32 [3]: [0.0, 0.0, 0.0]",
    }


def test_get_writes_the_bytes_as_stored(url: str, tmp_path: Path) -> None:
    file = tmp_path / "out.jpg"
    storeds_command("get", url, "cat/4.jpg", "-o", file)
    assert file.read_bytes() == BLOBS[4]
    storeds_command("get", url, "cat/4.jpg", "-o", file, "--field", "raw")
    assert file.read_bytes() == b"12345"
    assert CliRunner().invoke(app, ["get", url, "cat/2.jpg", "-o", "-"]).stdout_bytes == BLOBS[2]


def test_get_without_a_file_prints_the_record(url: str) -> None:
    (record,) = storeds_json("get", url, "cat/4.jpg")["records"]
    assert record == storeds_json("head", url)["records"][4]
    shown = dict(line.split(None, 1) for line in storeds_command("get", url, "cat/4.jpg").splitlines())
    assert (shown["key"], shown["label"], shown["more"]) == ("cat/4.jpg", "0", '{"a": [1]}')
    assert shown["caption"].endswith("xxx")


def test_head_and_get_take_the_same_options(url: str, tmp_path: Path) -> None:
    file = tmp_path / "out.jpg"
    both = storeds_json("get", url, "cat/1.jpg", "-n", 2, "--field", "key")
    assert both == {"records": [{"key": "cat/1.jpg"}, {"key": "cat/2.jpg"}]}
    assert storeds_json("head", url, "-n", 1, "--field", "key", "--field", "label") == {
        "records": [{"key": "cat/0.jpg", "label": 0}]
    }
    storeds_command("head", url, "-o", file)
    assert file.read_bytes() == BLOBS[0]
    for command in (("head", url), ("get", url, "cat/1.jpg")):
        assert "`storeds export` writes those of all" in storeds_command(*command, "-n", 2, "-o", file, code=2)
        assert "did you mean 'label'?" in storeds_command(*command, "--field", "lable", code=2)


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("cat/9.jpg",), "did you mean 'cat/4.jpg'? The keys next to it are cat/0.jpg, cat/1.jpg"),
        (("cat/1.jpg", "-o", "x", "--field", "label"), "has no picture or bytes 'label'"),
        (("cat/1.jpg", "-o", "/nowhere/x"), "/nowhere/x cannot be written: No such file or directory"),
    ],
)
def test_get_says_what_is_wrong(url: str, arguments: tuple[str, ...], says: str) -> None:
    assert says in storeds_command("get", url, *arguments, code=2)


def test_near_keys_of_a_large_store() -> None:
    url = make_store({"key": "str", "x": "int"}, ({"key": f"{n:05}.jpg", "x": n} for n in range(2000)))
    said = storeds_command("get", url, "01234", code=2)
    assert "did you mean '01234.jpg'? The keys next to it are 01224.jpg, " in said


SITES = ["007", "15", "1.0", "1e3", "true", "null", "NaN", "{}", "a=b"]


@pytest.fixture
def sites(tmp_path: Path) -> str:
    """A store whose texts and class names look like numbers and like JSON."""
    labels = [0, 1, 1, 2, 2, 2, 2, 2, 2]
    records = [{"image": jpeg(0), "n": n, "site": site, "label": labels[n]} for n, site in enumerate(SITES)]
    fields, attrs = {"image": "image", "n": "int", "site": "str", "label": "int"}, {"classes": ["true", "1e3", "null"]}
    return make_store(fields, records, f"lmdb://{tmp_path}/a.lmdb", attrs=attrs)


# Conditions of `--where`, and how many records fit.
CONDITIONS: dict[tuple[str, ...], int] = {
    **{(f"site={site}",): 1 for site in (*SITES, '"15"')},
    ('site=["15", "007"]',): 2,
    ("n=1",): 1,
    ("n=[0, 1]",): 2,
    ("site=15", "n=1"): 1,
    ("site=15", "n=2"): 0,
    **{(f"label={name}",): count for name, count in (("true", 1), ("1e3", 2), ('"1e3"', 2), ("null", 6), ("2", 6))},
    ('label=["true", "null"]',): 7,
}


def test_the_kind_of_a_field_decides_what_a_condition_means(sites: str) -> None:
    for where, count in CONDITIONS.items():
        conditions = (part for each in where for part in ("--where", each))
        assert (where, storeds_json("stats", sites, *conditions)["count"]) == (where, count)


def test_stores_of_other_tools_and_stores_without_keys(url: str, tmp_path: Path) -> None:
    other, file = foreign(tmp_path, BLOBS), tmp_path / "out.jpg"
    storeds_command("get", other, "0003.jpg", "-o", file)
    assert file.read_bytes() == BLOBS[3]
    assert "JPEG 96 × 64" in storeds_command("head", other)
    assert storeds_json("stats", other)["damaged"] == {"missing_eoi": 1}
    unnamed = make_store({"image": "image"}, [{"image": blob} for blob in BLOBS])
    storeds_command("get", unnamed, 2, "-o", file)
    assert file.read_bytes() == BLOBS[2]
    assert "has no field key, so name a position, 0 to 4" in storeds_command("get", unnamed, "5", code=2)


def test_every_command_takes_conditions(sites: str, tmp_path: Path) -> None:
    (tmp_path / "c.toml").write_text(f'[dataset]\nurl = "{sites}"')
    (tmp_path / "m.json").write_text(json.dumps({"dataset": {"sources": [{"url": sites}, {"url": [sites]}]}}))
    (tmp_path / "s.toml").write_text(f'[dataset]\nurl = "{tmp_path}/{{split}}.lmdb"')
    conditions = ["--where", "site=15", "--where", "n=1", "-o", tmp_path / "page.html"]
    for arguments in ([sites], ["c.toml"], [sites, "--as-trained", "c.toml"], ["m.json"], ["s.toml", "--split", "a"]):
        paths = [each if each in (sites, "a") or each[0] == "-" else tmp_path / each for each in arguments]
        assert "1 of 1 record" in storeds_command("show", *paths, *conditions), arguments
