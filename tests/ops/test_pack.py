"""Packing: splits, re-encoding, and bad items by policy; `test_resuming` has interrupts."""

from __future__ import annotations

import ast
import io
import os
import struct
import zlib
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

import storeds
from _packing import records_of
from _source_files import table
from jpeg_encodings import chunk
from make_store import make_store
from mask_files import write
from photographs import jpeg, photograph, saved
from picture_stores import exif
from shares import examples
from storeds import errors
from storeds.formats import Bad, Row, Rows, from_start
from storeds.ops import Progress
from storeds.ops.packing.listing import Listing
from storeds.ops.packing.splits import make_split
from storeds.protocols import Field

GOOD = {f"{'cat' if n % 2 else 'dog'}/{n}.jpg": jpeg(n) for n in range(8)}


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    return write(tmp_path / "tree", GOOD)


def test_a_split_goes_by_the_key_alone(tree: Path) -> None:
    shares: dict[str, Any] = {"train": np.float64(0.5), "val": np.float32(0.3), "test": 0.2}

    def splits() -> dict[str, str]:
        storeds.pack(tree, "memory://split", split=shares, split_by="key", overwrite=True)
        return {record["key"]: record["split"] for record in records_of("memory://split")}

    everything = splits()
    for name in list(GOOD)[:3]:
        (tree / name).unlink()
    assert splits().items() <= everything.items()
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
    found, shuffled = divide(items, shares), order.sample(items, len(items))
    chosen = {key: shares[number][0] for (key, _), number in zip(items, found, strict=True)}
    assert [shares[number][0] for number in found] == [chosen[key] for key, _ in items]  # a key is in one split
    again = divide(shuffled, shares)
    assert {key: shares[number][0] for (key, _), number in zip(shuffled, again, strict=True)} == chosen
    labels: dict[str, int] = {}
    for key, label in items:
        labels[key] = min(label, labels.get(key, label))
    for label in set(labels.values()):
        keys = [key for key in labels if labels[key] == label]
        got = Counter(chosen[key] for key in keys)
        wanted = {name: len(keys) * share for name, share in shares}
        if all(int(wanted[name] + 0.5) >= 1 for name, share in shares if share):
            assert all(abs(got[name] - want) < 1 for name, want in wanted.items())


def divide(items: list[tuple[str, int]], shares: tuple[tuple[str, float], ...]) -> list[int]:
    """Return the number of the share of each item."""
    return cast("list[int]", make_split(listed(items), shares, by_label=True).chosen.tolist())  # type: ignore[union-attr]


def test_the_largest_remainders_are_rounded_up() -> None:
    found = divide([(str(n), 0) for n in range(10)], (("train", 0.72), ("val", 0.28)))
    assert Counter(found) == {0: 7, 1: 3}


def test_classes_too_small_for_every_split_are_divided_together() -> None:
    items = [(f"{label}-{n}", label) for label in range(100) for n in range(2)] + [(f"x{n}", 100) for n in range(10)]
    shares = (("train", 0.8), ("val", 0.2))
    found = divide(items, shares)
    assert (Counter(found[:200]), Counter(found[200:])) == ({0: 160, 1: 40}, {0: 8, 1: 2})
    (note,) = make_split(listed(items), shares, by_label=True).notes
    assert note.startswith("100 classes have too few records for every split (0, 1, 2, 3, …)")


def test_a_split_by_label_needs_a_label(tree: Path) -> None:
    options: dict[str, Any] = {"split": {"a": 0.5, "b": 0.5}, "overwrite": True}
    with pytest.raises(errors.ConfigError, match="records have no label; pass split_by='key'"):
        storeds.pack(tree, "memory://no-label", kind="flat", split_by="label", **options)
    storeds.pack(tree, "memory://no-label", kind="flat", **options)
    onehot = {"label": Field("array", dtype="int64", shape=(2,))}
    store = make_store(onehot, [{"label": np.eye(2, dtype=np.int64)[at % 2]} for at in range(8)])
    with pytest.raises(errors.ConfigError, match="the field label is of kind array"):
        storeds.pack(store, "memory://parts", kind="store", split_by="label", **options)


def test_smaller_images_are_left_alone(tmp_path: Path) -> None:
    small = [jpeg(1, (50, 40)), jpeg(2, (80, 60))[:-400]]
    root = write(tmp_path / "tree", {"a/1.jpg": small[0], "a/2_cut.jpg": small[1], "a/3.jpg": jpeg(0, (200, 100))})
    storeds.pack(root, "memory://scaled", max_side=80, overwrite=True)
    *found, large = (record["image"] for record in records_of("memory://scaled"))
    assert (found, Image.open(io.BytesIO(large)).size) == (small, (80, 40))


def _png(size: tuple[int, int], bits: int, colours: int, rows: bytes) -> bytes:
    header = chunk(b"IHDR", struct.pack(">IIBBBBB", *size, bits, colours, 0, 0, 0))
    return b"\x89PNG\r\n\x1a\n" + header + chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b"")


def _deep_png(colours: int, channels: int) -> bytes:
    return _png((100, 80), 16, colours, (b"\0" + bytes(range(200)) * channels) * 80)


_RAMP = np.linspace(0, 65535, 8000).reshape(80, 100)
_PHOTO = photograph(0, (100, 80))
_CLEAR = Image.merge("RGBA", [*_PHOTO.split(), _PHOTO.convert("L")])
_OPAQUE = _PHOTO.convert("RGBA")
KEPT = {
    "I;16": saved(Image.fromarray(_RAMP.astype(np.uint16))),
    "I": saved(Image.fromarray(_RAMP.astype(np.int32)), "TIFF"),
    "I, PGM": saved(Image.fromarray(_RAMP.astype(np.int32)), "PPM"),
    "F": saved(Image.fromarray(_RAMP.astype(np.float32)), "TIFF"),
    **{"RGB, 16 bits": _deep_png(2, 3), "LA, 16 bits": _deep_png(4, 2), "RGBA, 16 bits": _deep_png(6, 4)},
    "RGB, 16 bits, PPM": b"P6 100 80 65535\n" + bytes(range(240)) * 200,
    **{"RGBA": saved(_CLEAR), "LA": saved(_CLEAR.convert("LA")), "WebP": saved(_CLEAR, "WEBP", lossless=True)},
    "P, transparent": saved(_CLEAR.quantize(16)),
    "P, a transparent colour": saved(_PHOTO.quantize(16), transparency=3),
    "L, a transparent level": saved(_PHOTO.convert("L"), transparency=_PHOTO.convert("L").getpixel((0, 0))),
    "LAB": saved(Image.merge("LAB", _PHOTO.split()), "TIFF"),
}
ENCODED = {
    **{"1": saved(_PHOTO.convert("1")), "L": saved(_PHOTO.convert("L")), "P": saved(_PHOTO.quantize(64))},
    **{"RGBA": saved(_OPAQUE), "LA": saved(_OPAQUE.convert("LA")), "WebP": saved(_PHOTO, "WEBP")},
    **{"CMYK": saved(_PHOTO.convert("CMYK"), "TIFF"), "YCbCr": saved(_PHOTO.convert("YCbCr"), "TIFF")},
    "an unused transparent colour": saved(_PHOTO, transparency=(1, 2, 3)),
    "JPEG": jpeg(0, (100, 80)),
}


@pytest.mark.parametrize("options", [{"max_side": 40}, {"quality": 95}], ids=str)
def test_only_what_a_jpeg_can_hold_is_encoded_again(tmp_path: Path, options: dict[str, Any]) -> None:
    files = {f"kept-{name}": blob for name, blob in KEPT.items()} | ENCODED
    root, url = write(tmp_path / "tree", {f"a/{name}.png": blob for name, blob in files.items()}), "memory://unencoded"
    packed = storeds.pack(root, url, overwrite=True, **options)
    (note,) = packed.notes
    assert note.startswith(f"{len(KEPT)} pictures are neither scaled nor encoded, since a JPEG cannot hold them: ")
    assert {"transparency 6", "more than 8 bits 4", "mode I 2", "mode I;16 1", "mode F 1"} <= {
        *note.partition(": ")[2].split(", ")
    }
    for record in records_of(url):
        name = record["key"][2:-4]
        if name.startswith("kept-"):
            assert record["image"] == files[name]
            continue
        truth = Image.open(io.BytesIO(files[name])).convert("RGB")
        with Image.open(io.BytesIO(record["image"])) as image:
            assert image.format == "JPEG"
            truth = truth.resize(image.size, Image.Resampling.LANCZOS)
            assert np.abs(np.asarray(image.convert("RGB"), int) - np.asarray(truth, int)).mean() < 5, name


def test_sizes_are_those_of_the_stored_pictures(tmp_path: Path) -> None:
    sizes = {"a/wide.jpg": (300, 40), "a/high.jpg": (50, 120), "b/turned.jpg": (64, 48)}
    files = {name: jpeg(at, size) for at, (name, size) in enumerate(sizes.items())}
    files["b/turned.jpg"] = saved(photograph(3, (64, 48)), "JPEG", exif=exif(6))  # as stored, not upright
    root, url = write(tmp_path / "tree", {**files, "b/page.jpg": b"<html>"}), f"lmdb://{tmp_path}/a.lmdb"
    storeds.pack(root, url, sizes=True, on_bad="keep", max_side=200)
    found = {record["key"]: (record["width"], record["height"]) for record in records_of(url)}
    assert found == {**sizes, "a/wide.jpg": (200, 27), "b/page.jpg": (0, 0)}
    batches = storeds.EpochSampler(storeds.StoreDataset(url), bucket_by=["width", "height"], batch_size=2)
    assert sorted(index for batch in batches for index in batch) == [0, 1, 2, 3]
    with pytest.raises(errors.ConfigError, match="already has a field 'width'"):
        storeds.pack(url, f"lmdb://{tmp_path}/b.lmdb", sizes=True)


def test_quality_encodes_every_image_upright(tmp_path: Path) -> None:
    turned = saved(photograph(0, (60, 40)), "JPEG", exif=exif(6))  # the camera was held upright
    root = write(tmp_path / "tree", {"a/1.jpg": turned, "a/2.png": saved(photograph(1, (60, 40)).convert("RGBA"))})
    storeds.pack(root, "memory://encoded", quality=80, overwrite=True)
    images = [Image.open(io.BytesIO(record["image"])) for record in records_of("memory://encoded")]
    assert [(image.format, image.size) for image in images] == [("JPEG", (40, 60)), ("JPEG", (60, 40))]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"on_bad": "ignore"}, "on_bad 'ignore'; the policies are raise, skip, keep|did you mean"),
        ({"split": {"train": 0.5}}, "sum to 1"),
        ({"split": {"train": 1.5, "val": -0.5}}, "positive"),
        ({"split": {"train": np.nan, "val": 1}}, "positive and sum to 1"),
        ({"max_side": 0}, "max_side must be a positive"),
        ({"quality": 100}, "between 1 and 95"),
        ({"split_by": "key"}, r"split_by='key' needs shares: .*--shares train=0\.9"),
        ({"workers": -1}, "workers"),
        ({"commit_every": 0}, "commit_every"),
    ],
    ids=str,
)
def test_a_wrong_option_is_named(tree: Path, tmp_path: Path, options: dict[str, Any], message: str) -> None:
    with pytest.raises(errors.ConfigError, match=message):
        storeds.pack(tree, f"lmdb://{tmp_path}/a.lmdb", **options)


def test_a_picture_above_the_limit_is_packed_as_it_is_with_a_note_of_what_reads_it(tmp_path: Path) -> None:
    side = 14_000  # above Pillow's own limit too
    blob = _png((side, side), 1, 0, bytes(1 + side // 8) * side)
    tree = write(tmp_path / "tree", {"a/large.png": blob, "a/small.jpg": jpeg(0)})
    url = f"lmdb://{tmp_path}/a.lmdb"
    packed = storeds.pack(tree, url, max_side=5_000)
    (note,) = packed.notes
    assert "1 picture claims more than 134,217,728 pixels, up to 196,000,000" in note
    assert records_of(url)[0]["image"] == blob
    with pytest.raises(errors.DecodeError, match="more than max_pixels=134,217,728"):
        storeds.StoreDataset(url, mode="1")[0]
    options = ast.literal_eval(note.partition("reader_options=")[2])
    dataset = storeds.StoreDataset(url, mode="1", transform=lambda image: image.size, reader_options=options)
    assert dataset[0][0] == (side, side)


# Broken items of ten kinds: each is listed with its name and a reason, and nothing else is lost

COUNT, WHOLE = 3, 9


SCANLESS = jpeg(2)[: jpeg(2).index(b"\xff\xda")]
BREAK: dict[str, tuple[Callable[[Path], object], str]] = {
    "empty": (lambda path: path.touch(), "is empty (0 bytes)"),
    "text": (lambda path: path.write_text("<html>404</html>"), "cannot be read as an image"),
    "header": (lambda path: path.write_bytes(jpeg(1)[:100]), "cannot be read as an image"),
    "zeros": (lambda path: path.write_bytes(bytes(5000)), "cannot be read as an image"),
    "scanless": (lambda path: path.write_bytes(SCANLESS), "cannot be read as an image"),
    "dangling": (lambda path: path.symlink_to("nowhere.jpg"), "cannot be read: No such file or directory"),
    "loop": (lambda path: path.symlink_to(path.name), "cannot be "),
    "outside": (lambda path: path.symlink_to("/etc/hostname"), "is a link to /etc/hostname, outside"),
    "fifo": (os.mkfifo, "is not a regular file"),
    "bytes": (lambda path: Path(os.fsdecode(bytes(path) + b"\xff.jpg")).touch(), "its name is not valid UTF-8"),
}
HAVE_BYTES = {"empty", "text", "header", "zeros", "scanless"}  # the others have no bytes


@pytest.fixture
def broken(tmp_path: Path) -> Path:
    root = write(tmp_path / "tree", {f"c{n % 3}/good{n:02}.jpg": n % 12 for n in range(WHOLE)})
    for name, (damage, _) in BREAK.items():
        for number in range(COUNT):
            damage(root / f"c{number % 3}/{name}{number:02}.jpg")
    return root


def test_of_a_folder(broken: Path, tmp_path: Path) -> None:
    problems, seen = list[Bad](), list[Progress]()
    url, every = f"lmdb://{tmp_path}/store", COUNT * len(BREAK)
    packed = storeds.pack(broken, url, on_bad="skip", on_problem=problems.append, progress=seen.append)
    assert (seen[-1].done, seen[-1].total, seen[-1].bad) == (every + WHOLE, every + WHOLE, every)
    assert seen[-1].bytes == sum(path.stat().st_size for path in broken.glob("*/good*"))
    assert (packed.count, packed.left_out) == (WHOLE, every)
    found = Counter[str]()
    for problem in problems:
        name = next(name for name in BREAK if Path(problem.name).name.startswith(name))
        assert problem.reason.startswith(BREAK[name][1])
        found[name] += 1
    assert found == dict.fromkeys(BREAK, COUNT)
    keys = [f"c{label}/good{number:02}.jpg" for label in range(3) for number in range(label, WHOLE, 3)]
    assert records_of(url, "key") == [{"key": key} for key in keys]
    with pytest.raises(
        storeds.errors.RecordError, match=f"{every} of {every + WHOLE} items cannot be packed"
    ) as raised:
        storeds.pack(broken, f"lmdb://{tmp_path}/none")
    first, *lines = (line.strip() for line in str(raised.value).splitlines())
    assert "so nothing was published" in first
    assert "--on-bad skip" in first
    assert lines[:20] == [str(problem) for problem in problems[:20]]
    assert lines[20] == f"… and {every - 20} more"
    assert sum(int(line.split()[0]) for line in lines[21:]) == every  # by reason
    assert len(lines) < 20 + len(BREAK) + 2
    assert not (tmp_path / "none").exists()


def test_keep_says_what_it_kept(broken: Path, tmp_path: Path) -> None:
    problems: list[Bad] = []
    packed = storeds.pack(broken, f"lmdb://{tmp_path}/store", on_bad="keep", on_problem=problems.append)
    assert {kind for kind in BREAK for each in problems if each.kept and f"/{kind}" in each.name} == HAVE_BYTES
    assert (packed.count, packed.left_out) == (WHOLE + len(HAVE_BYTES) * COUNT, (len(BREAK) - len(HAVE_BYTES)) * COUNT)


def as_parquet(blobs: list[bytes], folder: Path) -> Path:
    (folder / "a.parquet").write_bytes(table(image=blobs, label=list(range(len(blobs)))))
    return folder / "a.parquet"


def as_samples(blobs: list[bytes], folder: Path) -> list[dict[str, Any]]:
    return [{"image": blob, "label": number} for number, blob in enumerate(blobs)]


@pytest.mark.parametrize("broken", [[0], [9], [0, 1, 2, 3]], ids=str)
@pytest.mark.parametrize("form", [as_parquet, as_samples, lambda blobs, _: [*zip(blobs, range(10), strict=True)]])
def test_a_broken_image_leaves_the_others(
    tmp_path: Path, form: Callable[[list[bytes], Path], Any], broken: list[int]
) -> None:
    blobs = [b"<html>"[: 6 * (number % 2)] if number in broken else jpeg(number) for number in range(10)]
    source, url = form(blobs, tmp_path), f"hdf5://{tmp_path}/a.h5"
    with pytest.raises(storeds.errors.RecordError, match=f"{len(broken)} of 10 items cannot be packed"):
        storeds.pack(source, url)
    packed = storeds.pack(source, url, on_bad="skip", resume=True)
    assert packed.fields["image"].kind == "image"
    kept = [number for number in range(10) if number not in broken]
    assert records_of(url, "image", "label") == [{"image": blobs[number], "label": number} for number in kept]


@pytest.mark.parametrize("form", [as_parquet, as_samples])
def test_bytes_among_which_few_are_images_stay_bytes(tmp_path: Path, form: Callable[[list[bytes], Path], Any]) -> None:
    blobs = [jpeg(number) if number in (0, 3) else bytes([number]) * 9 for number in range(1, 11)]
    packed = storeds.pack(form(blobs, tmp_path), f"lmdb://{tmp_path}/a.lmdb")
    assert (packed.fields["image"].kind, packed.count) == ("bytes", 10)
