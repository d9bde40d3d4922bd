"""Lists with one row per caption: rows of one image become one record with a list of captions."""

from __future__ import annotations

import csv
import json
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner

import storeds
from _verdicts import declared, unjudged
from mask_files import mask, write
from photographs import jpeg
from storeds.cli import app
from storeds.errors import ConfigError, RecordError
from storeds.ops.packing.sources import ManifestSource, open_source
from storeds.protocols import Field

MakeUrl = Callable[[str], str]
ENGINES = ("lmdb", "hdf5", "mongodb")
TEXTS = Field("json", role="text")
FIVE = [(f"{n}.jpg", f"caption {at}, of “{n}”\n\u2028 Ü") for n in range(4) for at in range(5)]


def records(url: str) -> list[dict[str, Any]]:
    with storeds.open_backend(url) as backend:
        return unjudged(backend.get_many(range(len(backend))))


def write_csv(path: Path, columns: Sequence[str], rows: Sequence[Sequence[Any]]) -> Path:
    with path.open("w", newline="") as file:
        csv.writer(file).writerows([columns, *rows])
    return path


def write_jsonl(path: Path, rows: Sequence[Mapping[str, Any]]) -> Path:
    path.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    return path


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A folder with four photographs, and a mask of each."""
    return write(tmp_path / "data", {f"{n}.jpg": n for n in range(4)} | {f"m/{n}.png": n for n in range(4)})


@pytest.mark.parametrize("engine", ENGINES)
def test_flickr8k(root: Path, tmp_path: Path, engine: str, make_engine_url: MakeUrl) -> None:
    """The file of Flickr8k is named captions.txt and has five rows for each image."""
    file, url = write_csv(root / "captions.txt", ["image", "caption"], FIVE), make_engine_url(engine)
    meta = storeds.pack(file, url, caption_columns=["caption"])
    assert declared(meta) == {"image": Field("image", role="image"), "key": Field("str"), "caption": TEXTS}
    assert meta.attrs["source"] == {"kind": "csv", "file": "captions.txt"}
    assert records(url) == [
        {"image": jpeg(n), "key": f"{n}.jpg", "caption": [text for name, text in FIVE if name == f"{n}.jpg"]}
        for n in range(4)
    ]
    assert storeds.verify(url).ok
    storeds.export(url, tmp_path / "out", format="folder")
    for n in range(4):
        assert (tmp_path / "out" / "images" / f"{n}.jpg").read_bytes() == jpeg(n)
    again = storeds.pack(tmp_path / "out", make_engine_url(engine))
    assert (again.id, again.attrs) == (meta.id, meta.attrs)


@pytest.mark.parametrize("name", ["Flickr8k.token.txt", "results_20130124.token"])
def test_flickr8k_without_a_header(name: str, root: Path, tmp_path: Path) -> None:
    captions = {f"{n}.jpg": [f'caption {at}, of "{n}" # 1.jpg#7\u2028' for at in range(2)] for n in range(2)}
    lines = [f"{image}#{at}\t{text}\r\n" for image, texts in captions.items() for at, text in enumerate(texts)]
    (root / name).write_bytes("".join(lines).encode())
    url = f"lmdb://{tmp_path}/a.lmdb"
    meta = storeds.pack(root / name, url)
    assert declared(meta) == {"image": Field("image", role="image"), "key": Field("str"), "caption": TEXTS}
    assert {each["key"]: each["caption"] for each in records(url)} == captions
    with (root / name).open("a") as file:
        file.write("2.jpg no tab\n\n3.jpg#0\tlast")
    (problem,) = open_source(root / name).problems
    assert str(problem).startswith(f"{name} line 5: is not an image, # with the number of the caption, a tab")
    assert len(open_source(root / name)) == 3


def test_flickr30k_numbers_the_captions(root: Path) -> None:
    """The file of Flickr30k separates its columns with a bar and a space, and lacks one bar."""
    lines = [f"{n}.jpg| {at}| Two men, {at} ." for n in range(2) for at in range(5)]
    (root / "results.csv").write_text("\n".join(["image_name| comment_number| comment", *lines, "1.jpg| 4   A dog ."]))
    source = ManifestSource(root / "results.csv", caption_columns=["comment", "comment_number"])
    assert source.fields["comment"] == source.fields["comment_number"] == TEXTS
    assert source.read(1)["comment"] == [f"Two men, {at} ." for at in range(5)]
    assert source.read(1)["comment_number"] == list("01234")
    assert [str(each) for each in source.problems] == ["results.csv line 12: has 2 columns instead of 3"]
    (reason, *others) = [
        each.reason for each in ManifestSource(root / "results.csv", caption_columns=["comment"]).problems
    ]
    assert reason == (
        "the path is already listed at results.csv line 2, with another 'comment_number'; only rows that differ in "
        "captions are joined"
    )
    assert len(others) == 8


@given(rows=st.lists(st.tuples(st.integers(0, 3), st.text(st.characters(exclude_categories=["Cs", "Cc"])))))
@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_rows_in_any_order(rows: list[tuple[int, str]]) -> None:
    """Oracle: a dict of lists. Without a repeated path the field is what it is without the option."""
    rows = [(0, "a"), *rows]
    expected: dict[str, list[str]] = {}
    for number, text in rows:
        expected.setdefault(f"{number}.jpg", []).append(text)
    with tempfile.TemporaryDirectory() as folder:
        root = write(Path(folder) / "data", {f"{n}.jpg": n for n in range(4)})
        table = write_csv(root / "a.csv", ["image", "say"], [(f"{n}.jpg", text) for n, text in rows])
        lines = write_jsonl(root / "a.jsonl", [{"image": f"./{n}.jpg", "say": text} for n, text in rows])
        for file in (table, lines):
            source = ManifestSource(file, caption_columns=["say"])
            found = [source.read(at) for at in range(len(source))]
            assert [Path(record["key"]).name for record in found] == list(expected)
            if len(expected) < len(rows):
                assert source.fields["say"] == TEXTS
                assert [record["say"] for record in found] == list(expected.values())
            else:
                assert source.fields["say"] == Field("str", role="text")
                assert [[record["say"]] for record in found] == list(expected.values())
            assert source.problems == ()


def test_rows_that_differ_in_more_than_captions(root: Path, tmp_path: Path) -> None:
    rows = [
        ("0.jpg", "cat", "m/0.png", 1, "a"),
        ("./0.jpg", "cat", "m/0.png", 1, "b"),
        ("0.jpg", "dog", "m/0.png", 1, "c"),
        ("1.jpg", "dog", "m/1.png", 1, "d"),
        ("1.jpg", "cat", "m/0.png", 2, "e"),
        ("1.jpg", "dog", "m/1.png", 1, "f"),
    ]
    file = write_csv(root / "a.csv", ["image", "label", "mask", "year", "caption"], rows)
    url = f"lmdb://{tmp_path}/a.lmdb"
    with pytest.raises(RecordError) as error:
        storeds.pack(file, url, caption_columns=["caption"])
    end = "only rows that differ in captions are joined"
    assert [line.strip() for line in str(error.value).splitlines()[1:]] == [
        f"a.csv line 4 (0.jpg): the path is already listed at a.csv line 2, with another 'label'; {end}",
        f"a.csv line 6 (1.jpg): the path is already listed at a.csv line 5, with another 'label' and 'mask' and 'year'; {end}",
    ]
    meta = storeds.pack(file, url, caption_columns=["caption"], on_bad="skip")
    assert (meta.count, meta.left_out) == (2, 2)
    (first, second) = records(url)
    assert first == {"image": jpeg(0), "mask": mask(0), "label": 0, "key": "0.jpg", "year": 1, "caption": ["a", "b"]}
    assert (second["label"], second["caption"]) == (1, ["d", "f"])


def test_lists_and_texts_in_jsonl(root: Path) -> None:
    say: list[Any] = ["a", ["b", "c"], [], "d", None, ["e", 5]]
    rows = [{"image": "0.jpg", "labels": ["x"], "say": each} for each in say]
    source = ManifestSource(
        write_jsonl(root / "a.jsonl", [*rows, {"image": "1.jpg", "labels": [], "say": "f"}]), caption_columns=["say"]
    )
    assert [source.read(at)["say"] for at in range(len(source))] == [["a", "b", "c", "d"], ["f"]]
    assert [str(each) for each in source.problems] == [
        "a.jsonl line 5 (0.jpg): its say contains None; expected text, or a list of texts",
        "a.jsonl line 6 (0.jpg): its say contains 5; expected text, or a list of texts",
    ]
    assert source.notes == ("joined the captions of 3 rows to those of earlier rows with the same path",)


@pytest.mark.parametrize("others", [{"left": "0.jpg", "right": "1.jpg"}, {"image": "0.jpg", "mask": "m/0.png"}])
def test_captions_beside_masks_and_several_images_are_found(others: dict[str, str], root: Path) -> None:
    file = write_csv(root / "list.csv", [*others, "caption"], [[*others.values(), "a cat"]])
    assert open_source(file).fields["caption"] == Field("str", role="text")
    file = write_csv(root / "list.csv", [*others, "caption", "label"], [[*others.values(), "a cat", "cat"]])
    assert open_source(file, label_column="label").fields["caption"] == Field("str")


def test_pairs_of_images_are_joined_only_if_both_agree(root: Path) -> None:
    rows = [("0.jpg", "1.jpg", "a"), ("0.jpg", "2.jpg", "b"), ("0.jpg", "./1.jpg", "c")]
    file = write_csv(root / "a.csv", ["left", "right", "say"], rows)
    source = ManifestSource(file, image_columns=["left", "right"], caption_columns=["say"])
    assert [source.read(at)["right"] for at in (0, 1)] == [jpeg(1), jpeg(2)]
    assert [source.read(at)["say"] for at in range(len(source))] == [["a", "c"], ["b"]]


def test_without_the_option_a_doubled_path_stays_a_bad_item(root: Path) -> None:
    file = write_csv(root / "a.csv", ["image", "caption"], FIVE[:2])
    assert [str(each) for each in ManifestSource(file).problems] == [
        "a.csv line 4 (0.jpg): the path is already listed at a.csv line 2; caption_columns= (--caption-columns caption) "
        "joins the captions of one image"
    ]


def test_which_text_files_are_lists(root: Path) -> None:
    file = write_csv(root / "captions.TXT", ["Image", "caption"], FIVE)
    assert len(open_source(file, caption_columns=["caption"])) == 4
    (root / "tabs.txt").write_text("\ufeffcaption\tfile_name\na\t0.jpg\nb\t1.jpg\n")
    assert list(open_source(root / "tabs.txt").fields) == ["image", "key", "caption"]
    for text in ("", "0.jpg\n1.jpg\n", "An image, and more\n", "0.jpg#x\ta cat\n"):
        (root / "other.txt").write_text(text)
        with pytest.raises(ConfigError, match=r"ends in none of \.csv.*pass kind="):
            open_source(root / "other.txt")
    (root / "other.txt").write_text("0.jpg#a cat\n1.jpg#a dog\n0.jpg#asleep")
    source = open_source(
        root / "other.txt", kind="csv", columns=["image", "say"], delimiter="#", caption_columns=["say"]
    )
    assert source.read(0)["say"] == ["a cat", "asleep"]


def test_the_command_line(root: Path, tmp_path: Path) -> None:
    file = write_csv(root / "captions.txt", ["image", "caption"], FIVE)
    command = ["pack", str(file), f"{tmp_path}/a.lmdb", "--caption-columns", "caption", "--workers", "2"]
    run = CliRunner().invoke(app, command)
    assert run.exit_code == 0, run.stderr
    assert "4 records" in run.stdout
    assert [len(record["caption"]) for record in records(f"{tmp_path}/a.lmdb")] == [5] * 4
