"""Packing: bad items by policy, splits, re-encoding, workers, and going on after an interrupt."""

from __future__ import annotations

import io
import json
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image
from typer.testing import CliRunner

import storeds
from _verdicts import unjudged
from photographs import jpeg, photograph
from shares import examples
from storeds import errors
from storeds.cli import app
from storeds.ops import Progress
from storeds.ops.packing.rows import Bad as Problem
from storeds.ops.packing.rows import Listing, Row, Rows, from_start
from storeds.ops.packing.splits import make_split
from storeds.protocols import Field

GOOD = {f"{'cat' if n % 2 else 'dog'}/{n}.jpg": jpeg(n) for n in range(8)}
BAD = {"cat/empty.jpg": b"", "dog/page.jpg": b"<html>404</html>", "dog/cut.jpg": jpeg(1)[:60]}


def write(root: Path, files: dict[str, bytes]) -> Path:
    for name, data in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes(data)
    return root


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    return write(tmp_path / "tree", GOOD)


@pytest.fixture
def spoilt(tree: Path) -> Path:
    return write(tree, BAD)


def records(url: str) -> list[Any]:
    with storeds.open_backend(url) as backend:
        return unjudged(backend.get_many(range(len(backend))))


def test_by_default_every_bad_item_is_listed_and_nothing_is_published(spoilt: Path, tmp_path: Path) -> None:
    with pytest.raises(errors.RecordError) as raised:
        storeds.pack(spoilt, f"lmdb://{tmp_path}/a.lmdb")
    first, *lines = str(raised.value).splitlines()
    assert first.startswith("3 of 11 items cannot be packed, so nothing was published")
    assert "--on-bad skip" in first
    assert [line.split(": ")[0].strip() for line in lines[:3]] == sorted(BAD)
    assert [path.name for path in tmp_path.iterdir()] == ["tree"]


def test_skip_leaves_bad_items_out_and_reports_them(spoilt: Path, tmp_path: Path) -> None:
    reported: list[Problem] = []
    seen: list[Progress] = []
    url = f"hdf5://{tmp_path}/a.h5"
    meta = storeds.pack(spoilt, url, on_bad="skip", on_problem=reported.append, progress=seen.append)
    assert {record["key"]: record["image"] for record in records(url)} == GOOD
    assert sorted(problem.name for problem in reported) == sorted(BAD)
    assert (seen[-1].done, seen[-1].bad) == (11, 3)
    assert meta.attrs["classes"] == ["cat", "dog"]


@pytest.mark.parametrize("options", [{}, {"max_side": 40}, {"quality": 50, "split": {"a": 0.5, "b": 0.5}}])
def test_the_result_does_not_depend_on_the_number_of_workers(
    spoilt: Path, tmp_path: Path, options: dict[str, Any]
) -> None:
    found = {
        storeds.pack(spoilt, f"lmdb://{tmp_path}/{workers}.lmdb", on_bad="skip", workers=workers, **options).id
        for workers in (None, 0, 1, 3)
    }
    assert len(found) == 1


def test_a_split_goes_by_the_key_alone(tree: Path, tmp_path: Path) -> None:
    shares: dict[str, Any] = {"train": np.float64(0.5), "val": np.float32(0.3), "test": 0.2}
    storeds.pack(tree, "memory://split-all", split=shares, split_by="key", overwrite=True)
    for name in list(GOOD)[:3]:
        (tree / name).unlink()
    storeds.pack(tree, "memory://split-rest", split=shares, split_by="key", overwrite=True)
    everything = {record["key"]: record["split"] for record in records("memory://split-all")}
    rest = {record["key"]: record["split"] for record in records("memory://split-rest")}
    assert rest.items() <= everything.items()
    assert set(everything.values()) <= set(shares)


def listed(items: list[tuple[str, int]]) -> Listing:
    """The listing of a source of keys and labels."""
    rows = [Row(key, {"key": key, "label": label}) for key, label in items]
    return Listing(
        Rows(fields={"label": Field("int"), "key": Field("str")}, items=from_start(lambda: rows)), strata=True
    )


SHARES = st.sampled_from([(("a", 0.8), ("b", 0.2)), (("a", 0.5), ("b", 0.3), ("c", 0.2)), (("a", 1.0), ("b", 0.0))])


@settings(max_examples=examples(60))
@given(
    items=st.lists(st.tuples(st.integers(0, 200).map(str), st.integers(-2, 4)), min_size=1, max_size=120),
    shares=SHARES,
    order=st.randoms(use_true_random=False),
)
def test_each_class_is_divided_by_largest_remainder(
    items: list[tuple[str, int]], shares: tuple[tuple[str, float], ...], order: Any
) -> None:
    split = make_split(listed(items), shares, by_label=True)
    assert split.chosen is not None
    chosen = {key: shares[int(number)][0] for (key, _), number in zip(items, split.chosen, strict=True)}
    assert [shares[int(n)][0] for n in split.chosen] == [chosen[key] for key, _ in items]  # a key is in one split
    shuffled = order.sample(items, len(items))
    again = make_split(listed(shuffled), shares, by_label=True)
    assert again.chosen is not None
    assert {key: shares[int(n)][0] for (key, _), n in zip(shuffled, again.chosen, strict=True)} == chosen
    labels: dict[str, int] = {}
    for key, label in items:
        labels[key] = min(label, labels.get(key, label))
    for label in set(labels.values()):
        keys = [key for key in labels if labels[key] == label]
        got = Counter(chosen[key] for key in keys)
        wanted = {name: len(keys) * share for name, share in shares}
        if all(int(wanted[name] + 0.5) >= 1 for name, share in shares if share) or len(shares) == 1:
            assert all(abs(got[name] - want) < 1 for name, want in wanted.items())


def test_the_largest_remainders_are_rounded_up() -> None:
    split = make_split(listed([(str(n), 0) for n in range(10)]), (("train", 0.72), ("val", 0.28)), by_label=True)
    assert split.chosen is not None
    assert Counter(split.chosen.tolist()) == {0: 7, 1: 3}


def test_classes_too_small_for_every_split_are_divided_together(tmp_path: Path) -> None:
    items = [(f"{label}-{n}", label) for label in range(100) for n in range(2)] + [(f"x{n}", 100) for n in range(10)]
    split = make_split(listed(items), (("train", 0.8), ("val", 0.2)), by_label=True)
    assert split.chosen is not None
    assert Counter(split.chosen[:200].tolist()) == {0: 160, 1: 40}
    assert Counter(split.chosen[200:].tolist()) == {0: 8, 1: 2}
    (note,) = split.notes
    assert note.startswith("100 classes have too few records for every split (0, 1, 2, 3, …)")


def test_a_split_by_label_resumes_and_needs_a_label(tree: Path, tmp_path: Path) -> None:
    def interrupt(_: Progress) -> None:
        raise KeyboardInterrupt

    options: dict[str, Any] = {"split": {"a": 0.5, "b": 0.5}, "commit_every": 2}
    whole = storeds.pack(tree, f"lmdb://{tmp_path}/whole.lmdb", **options)
    url = f"lmdb://{tmp_path}/cut.lmdb"
    with pytest.raises(KeyboardInterrupt):
        storeds.pack(tree, url, progress=interrupt, **options)
    with pytest.raises(errors.ConfigError, match="cannot be resumed"):
        storeds.pack(tree, url, resume=True, split_by="key", **options)
    assert storeds.pack(tree, url, resume=True, **options).id == whole.id
    with pytest.raises(errors.ConfigError, match="records have no label; pass split_by='key'"):
        storeds.pack(tree, url, kind="flat", overwrite=True, split_by="label", **options)
    storeds.pack(tree, url, kind="flat", overwrite=True, **options)


def test_larger_images_are_scaled_and_smaller_ones_left_alone(tmp_path: Path) -> None:
    cut = jpeg(2, (80, 60))[:-400]
    files = {"large": jpeg(0, (200, 100)), "small": jpeg(1, (50, 40)), "small_cut": cut}
    root = write(tmp_path / "tree", {f"a/{name}.jpg": blob for name, blob in files.items()})
    storeds.pack(root, "memory://scaled", max_side=80, overwrite=True)
    large, *small = (record["image"] for record in records("memory://scaled"))
    with Image.open(io.BytesIO(large)) as image:
        assert (image.format, image.size) == ("JPEG", (80, 40))
        reference = photograph(0, (200, 100)).resize((80, 40), Image.Resampling.LANCZOS)
        assert np.abs(np.asarray(image, int) - np.asarray(reference, int)).mean() < 4
    assert small == [jpeg(1, (50, 40)), cut]


HALF = jpeg(2, (200, 100))[:1500]


@pytest.mark.parametrize("options", [{"max_side": 80}, {"quality": 90}])
def test_encoding_again_does_not_hide_damage(tmp_path: Path, options: dict[str, Any]) -> None:
    whole = jpeg(0, (200, 100))
    zeros = whole[: len(whole) // 2].ljust(len(whole), b"\0")
    root = write(
        tmp_path / "tree", {"a/half.jpg": HALF, "a/zeros.jpg": zeros, "a/end.jpg": whole[:-2], "a/1.jpg": whole}
    )
    packed = storeds.pack(root, "memory://lossy", overwrite=True, check=False, **options)
    assert packed.findings == {"truncated_scan": 2, "intact": 1, "missing_eoi": 1}


def test_quality_encodes_every_image_upright(tmp_path: Path) -> None:
    turned = io.BytesIO()
    exif = Image.Exif()
    exif[0x0112] = 6  # the camera was held upright
    photograph(0, (60, 40)).save(turned, "JPEG", exif=exif)
    png = io.BytesIO()
    photograph(1, (60, 40)).convert("RGBA").save(png, "PNG")
    root = write(tmp_path / "tree", {"a/1.jpg": turned.getvalue(), "a/2.png": png.getvalue()})
    storeds.pack(root, "memory://encoded", quality=80, overwrite=True)
    sizes = []
    for record in records("memory://encoded"):
        with Image.open(io.BytesIO(record["image"])) as image:
            assert image.format == "JPEG"
            sizes.append(image.size)
    assert sizes == [(40, 60), (60, 40)]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"on_bad": "ignore"}, "on_bad 'ignore'; the policies are raise, skip, keep|did you mean"),
        ({"split": {"train": 0.5}}, "sum to 1"),
        ({"split": {"train": 1.5, "val": -0.5}}, "positive"),
        ({"max_side": 0}, "max_side must be a positive"),
        ({"quality": 100}, "between 1 and 95"),
        ({"kind": "imagfolder"}, "did you mean 'imagefolder'"),
        ({"delimter": ";"}, "no option 'delimter'"),
        ({"split_by": "key"}, r"split_by='key' needs shares: .*--split train=0\.9"),
        ({"split": {"train": np.nan, "val": 1}}, "positive and sum to 1"),
        ({"workers": -1}, "workers"),
        ({"commit_every": 0}, "commit_every"),
    ],
)
def test_a_wrong_option_is_named(tree: Path, tmp_path: Path, options: dict[str, Any], message: str) -> None:
    with pytest.raises(errors.ConfigError, match=message):
        storeds.pack(tree, f"lmdb://{tmp_path}/a.lmdb", **options)


@pytest.mark.parametrize("on_bad", ["skip", "keep", "raise"])
def test_an_interrupted_pack_with_bad_items_resumes_to_the_same_id(spoilt: Path, tmp_path: Path, on_bad: Any) -> None:
    url = f"lmdb://{tmp_path}/cut.lmdb"

    def interrupt(_: Progress) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        storeds.pack(spoilt, url, on_bad=on_bad, commit_every=2, progress=interrupt)
    if on_bad == "raise":
        with pytest.raises(errors.RecordError, match="3 of 11 items"):
            storeds.pack(spoilt, url, commit_every=2, resume=True)
        return
    whole = storeds.pack(spoilt, f"lmdb://{tmp_path}/whole.lmdb", on_bad=on_bad)
    packed = storeds.pack(spoilt, url, on_bad=on_bad, commit_every=3, resume=True)
    assert (packed.id, packed.left_out, packed.reasons) == (whole.id, whole.left_out, whole.reasons)


def test_a_pack_resumes_only_from_the_same_source_and_options(tree: Path, tmp_path: Path) -> None:
    url = f"lmdb://{tmp_path}/cut.lmdb"

    def interrupt(_: Progress) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        storeds.pack(tree, url, commit_every=2, progress=interrupt)
    with pytest.raises(errors.ConfigError, match="cannot be resumed"):
        storeds.pack(tree, url, quality=50, workers=0, resume=True)
    write(tree, {"cat/new.jpg": jpeg(9)})
    with pytest.raises(errors.ConfigError, match="cannot be resumed"):
        storeds.pack(tree, url, resume=True)


def test_the_command_packs_a_manifest_and_prints_problems(tree: Path, tmp_path: Path) -> None:
    rows = ["path,label,weight", *(f"{name},{name[:3]},{n / 2}" for n, name in enumerate(GOOD)), "none.jpg,cat,1"]
    (tree / "list.csv").write_text("\n".join(rows) + "\n")
    url = f"lmdb://{tmp_path}/a.lmdb"
    arguments = ["pack", str(tree / "list.csv"), url, "--on-bad", "skip", "--split", "train=0.5,val=0.5"]
    result = CliRunner().invoke(app, [*arguments, "--json"])
    assert result.exit_code == 0, result.output
    shown = json.loads(result.output)
    assert shown["count"] == 8
    (problem,) = shown["problems"]
    assert "none.jpg" in problem["name"] + problem["reason"]
    assert list(records(url)[0]) == ["image", "label", "key", "weight", "split"]
    for wrong, message in (
        (["--split", "train"], "must have the form"),
        (["--on-bad", "stop"], "'stop' is not one of"),
    ):
        result = CliRunner().invoke(app, [*arguments[:3], *wrong])
        assert result.exit_code == 2
        assert message in result.output
