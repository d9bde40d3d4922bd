"""`storeds show` and `dataset.show`: the page in a browser, odd and hostile records, and the sheet of damage."""

from __future__ import annotations

import html
import io
import json
import os
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
from axe_playwright_python.sync_playwright import Axe
from PIL import Image
from playwright.sync_api import Browser, expect, sync_playwright
from playwright.sync_api import Page as Tab

import storeds
from _damaged import PICTURES
from _damaged import write as write_damaged
from _modes import Counted
from _packing import storeds_command
from make_store import make_store
from photographs import jpeg, photograph, saved
from storeds import ops
from storeds.errors import DecodeError
from storeds.ops import Finding, Report, show

FIELDS: dict[str, Any] = {
    "key": "str",
    "image": "image",
    "label": {"kind": "int", "role": "label"},
    "split": "str",
    "caption": {"kind": "str", "role": "text"},
    "score": "float",
    "mask": {"kind": "image", "role": "mask"},
    "boxes": {"kind": "array", "dtype": "float32", "shape": [None, 4], "role": "boxes"},
    "classes": {"kind": "array", "dtype": "int64", "shape": [None], "role": "labels", "of": "boxes"},
    "points": {"kind": "array", "dtype": "float32", "shape": [None, 3], "role": "keypoints"},
}
SCRIPT = "<script>document.title='gone'</script>"
HOSTILE = (SCRIPT, "</script><img src=x onerror=alert(1)>", "\x1b[2J\x00\u2028", "y" * 1_000_000)
MASK = saved(Image.fromarray(np.pad(np.ones((30, 40), np.uint8), ((10, 24), (20, 36)))))


def record(number: int, **changes: Any) -> dict[str, Any]:
    return {
        "key": f"{number}.jpg",
        "image": jpeg(number),
        "label": number % 3,
        "split": "val" if number % 4 == 0 else "train",
        "caption": f"the caption of {number}",
        "score": float(number),
        "mask": MASK,
        "boxes": np.array([[20, 10, 60, 40]], np.float32),
        "classes": np.array([1]),
        "points": np.array([[30, 30, 2], [0, 0, 0]], np.float32),
        **changes,
    }


def store(folder: Path, records: Sequence[dict[str, Any]], third: str = "bird") -> str:
    attrs = {"classes": ["cat", "dog", third]}
    return make_store(FIELDS, records, f"lmdb://{folder}/a.lmdb", attrs=attrs)


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path="/usr/bin/chromium", args=["--no-sandbox"])
        yield browser
        browser.close()


def opened(browser: Browser, path: Path, width: int = 1280, scheme: Any = "light") -> tuple[Tab, list[str]]:
    """Return a tab with the page, and the list to which every message, error and request of it is added."""
    tab, seen = browser.new_page(viewport={"width": width, "height": 900}, color_scheme=scheme), []
    tab.on("console", lambda message: seen.append(message.text))
    tab.on("pageerror", lambda error: seen.append(str(error)))
    tab.on("dialog", lambda dialog: seen.append(dialog.message))
    tab.on("request", lambda request: seen.append(request.url) if not request.url.startswith("data:") else None)
    tab.goto(path.as_uri())
    assert seen.pop(0) == path.as_uri()
    return tab, seen


def shown_in(browser: Browser, page: ops.Page, folder: Path) -> tuple[Tab, list[str]]:
    """Save a page, and open it in a tab."""
    page.save(folder / "page.html")
    return opened(browser, folder / "page.html")


def names(tab: Tab) -> list[str]:
    return [each.split(" · ")[0] for each in tab.locator("#grid > li:visible .key").all_inner_texts()]


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A page of 24 records: of number 5 a third is missing, and the picture of 7 is that of 6."""
    folder = tmp_path_factory.mktemp("show")
    changes = {5: {"image": PICTURES["half"].blob}, 7: {"image": jpeg(6)}}
    url = store(folder, [record(number, **changes.get(number, {})) for number in range(24)])
    storeds_command("show", url, "-o", folder / "page.html")
    return folder / "page.html"


@pytest.mark.parametrize(("width", "scheme"), [(360, "light"), (1280, "dark")])
def test_the_page_fits_and_asks_for_nothing(browser: Browser, page: Path, width: int, scheme: str) -> None:
    tab, seen = opened(browser, page, width, scheme)
    tab.locator("summary").click()
    for step in ("the grid", "a record"):
        if step == "a record":
            tab.locator(".open").first.click()
        found = Axe().run(tab).response["violations"]
        assert [(step, each["id"]) for each in found if each["impact"] in ("serious", "critical")] == []
        assert tab.evaluate("document.documentElement.scrollWidth") <= width
    assert seen == []


def test_records_are_filtered_searched_opened_marked_and_copied(browser: Browser, page: Path) -> None:
    tab, seen = opened(browser, page)
    assert len(names(tab)) == 24
    for select, option, numbers in (
        ("label", "dog", range(1, 24, 3)),
        ("split", "val", range(0, 24, 4)),
        ("tags", "truncated_scan", [5]),
        ("tags", "duplicate", [6, 7]),
    ):
        tab.locator(f"#{select}").select_option(label=option)
        assert names(tab) == [f"{number}.jpg" for number in numbers]
        tab.locator(f"#{select}").select_option(label="all")
    tab.get_by_label("key", exact=True).fill("13.J")
    assert names(tab) == ["13.jpg"]
    assert tab.locator("#count").inner_text() == "1 of 24"
    tab.get_by_label("key", exact=True).fill("")
    # Arrows, Enter, Escape and m: from 4 to 5, which opens, and marks of 5 and 6.
    tab.locator(".open").nth(4).focus()
    tab.keyboard.press("ArrowRight")
    tab.keyboard.press("Enter")
    details = tab.locator("#record").inner_text()
    for part in ("5.jpg", "the caption of 5", "before repair", "96 × 64", "truncated_scan", "% is left"):
        assert part in details
    tab.keyboard.press("Escape")
    expect(tab.locator(".open").nth(5)).to_be_focused()
    for key in ("m", "ArrowRight", "m"):
        tab.keyboard.press(key)
    for button, text in (("Copy marked keys", "5.jpg\n6.jpg"), ("Copy as where", '{"key":["5.jpg","6.jpg"]}')):
        tab.get_by_role("button", name=button).click()
        assert tab.locator("#copied-text").input_value() == text
        assert "2 keys, copied" in tab.locator("#copied-note").inner_text()
        tab.keyboard.press("Escape")
    tab.get_by_label("key", exact=True).focus()
    tab.keyboard.press("Control+V")
    assert tab.get_by_label("key", exact=True).input_value() == '{"key":["5.jpg","6.jpg"]}'
    assert seen == []


def test_overlays_lie_on_what_they_mark(browser: Browser, tmp_path: Path) -> None:
    # A red square with a box and a mask, and a blue one with a keypoint in its middle, in 380 × 190 pixels.
    pixels = np.full((190, 380, 3), 255, np.uint8)
    pixels[60:160, 80:200], pixels[90:111, 290:311] = (255, 0, 0), (0, 0, 255)
    mask = saved(Image.fromarray(np.where((pixels == (255, 0, 0)).all(axis=-1), 2, 0).astype(np.uint8)))
    boxes, points = np.array([[80, 60, 200, 160]], np.float32), np.array([[300, 100, 1]], np.float32)
    changes = {"image": saved(Image.fromarray(pixels)), "mask": mask, "boxes": boxes, "points": points}
    tab, _ = shown_in(browser, ops.show(store(tmp_path, [record(0, **changes)])), tmp_path)
    for kind in ("masks", "boxes", "keypoints"):
        tab.get_by_label(kind).uncheck()
    plain = screenshot(tab)
    red, blue = bounds(plain[..., 2] < 128), bounds(plain[..., 0] < 128)
    middle = np.tile((blue[:2] + blue[2:]) / 2, 2)
    # A line is two pixels wide, with its middle on the edge, and a dot six.
    wanted = {"masks": red, "boxes": red + np.array([-1, -1, 1, 1]), "keypoints": middle + np.array([-3, -3, 3, 3])}
    for kind, expected in wanted.items():
        tab.get_by_label(kind).check()
        changed = np.abs(screenshot(tab).astype(int) - plain).max(axis=-1) > 60
        assert np.abs(bounds(changed) - expected).max() <= 1, kind
        tab.get_by_label(kind).uncheck()
        assert (screenshot(tab) == plain).all()


def test_a_record_is_opened_at_its_own_resolution_with_each_field_once(browser: Browser, tmp_path: Path) -> None:
    image = saved(Image.fromarray(np.random.default_rng(0).integers(0, 255, (300, 400, 3), np.uint8)))
    mask, long_name = saved(Image.fromarray(np.zeros((300, 400), np.uint8))), "a" + "very" * 50 + "long bird"
    page = ops.show(store(tmp_path, [record(n, image=image, mask=mask) for n in range(3)], long_name))
    tab, _ = shown_in(browser, page, tmp_path)
    is_cut = "each => [getComputedStyle(each).textOverflow, each.scrollWidth > each.clientWidth, each.scrollLeft]"
    assert tab.locator(".label > span").last.evaluate(is_cut) == ["ellipsis", True, 0]
    tab.locator(".open").nth(1).click()
    picture = tab.locator("#record .picture img").first
    assert picture.evaluate("image => [image.naturalWidth, image.naturalHeight, image.clientWidth]") == [400, 300, 400]
    assert tab.locator("#record dt").all_inner_texts() == ["position", *(name for name in FIELDS if name != "key")]
    assert "dog (1)" in tab.locator("#record dd").all_inner_texts()
    tab.get_by_role("button", name="Next").click()
    assert tab.locator("#record h2").inner_text() == "2.jpg"


def test_two_hundred_photographs_take_five_megabytes(tmp_path: Path) -> None:
    noise = np.random.default_rng(0).integers(0, 255, (427, 640, 3), np.uint8)  # nothing takes more
    blobs = [saved(photograph(0).resize((640, 427)), "JPEG"), saved(Image.fromarray(noise), "JPEG")]
    url = make_store({"image": "image"}, [{"image": blobs[n % 2]} for n in range(220)], check=False)
    page = ops.show(url)
    assert len(page.records) == 200
    assert len(page.html) < 5_000_000
    assert len(ops.show(url, count=9).html) > 9 * len(ops.show(url, count=200).html) / 200  # fewer are shown larger


def test_classes_of_a_file_of_another_tool_are_spread(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "digits.h5", "w") as file:
        file["images"], file["target"] = np.zeros((1000, 8, 8), np.uint8), np.arange(1000) // 100
    page = ops.show(tmp_path / "digits.h5", count=20)
    assert sorted(each.label for each in page.records) == sorted([*"0123456789"] * 2)
    assert [each.label for each in page.records[:10]] == [*"0123456789"]
    assert page.counts["classes"] == dict.fromkeys("0123456789", 100)


def screenshot(tab: Tab) -> np.ndarray[Any, Any]:
    with Image.open(io.BytesIO(tab.locator(".picture").first.screenshot())) as image:
        return np.asarray(image.convert("RGB"))


def bounds(found: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    rows, columns = np.nonzero(found.any(axis=1))[0], np.nonzero(found.any(axis=0))[0]
    return np.array([columns[0], rows[0], columns[-1] + 1, rows[-1] + 1])


def test_hostile_names_are_text(browser: Browser, tmp_path: Path) -> None:
    records = [record(n, key=text, caption=text, split=text, label=2) for n, text in enumerate(HOSTILE)]
    page = ops.show(store(tmp_path, records, SCRIPT))
    page.save(tmp_path / "sheet.png")
    assert len(page.html) < 500_000
    tab, seen = shown_in(browser, page, tmp_path)
    texts = tab.locator("#grid .text").all_inner_texts()
    assert texts[:2] == list(HOSTILE[:2])
    assert r"\x1b[2J\x00" in texts[2]
    assert "1,000,000 characters" in texts[3]
    assert SCRIPT in tab.locator("#label option").all_inner_texts()
    tab.locator("input[type=checkbox] >> visible=true").last.check()  # a key that is cut is not copied
    tab.get_by_role("button", name="Copy marked keys").click()
    assert "0 keys; 1 records" in tab.locator("#copied-note").inner_text()
    assert tab.title().startswith("lmdb://")
    assert seen == []


def picture(values: Any, form: str = "PNG", **convert: Any) -> bytes:
    image = Image.fromarray(np.asarray(values))
    return saved(image.convert(**convert) if convert else image, form)


GREY = np.full((20, 30), 7, np.uint8)
RAMP = np.linspace(100, 4000, 600).reshape(20, 30)
# The file, what the page says of it, and the size of the picture that it shows.
ODD: dict[str, tuple[bytes, str, tuple[int, int] | None]] = {
    "16 bits": (picture(RAMP.astype(np.uint16)), "stretched from 100 to 4000", (30, 20)),
    "float": (picture(RAMP.astype(np.float32), "TIFF"), "stretched from 100 to 4000", (30, 20)),
    "one channel": (picture(GREY), "PNG L, 30 × 20", (30, 20)),
    "four channels": (picture(np.dstack([GREY] * 4)), "PNG RGBA, 30 × 20, on white", (30, 20)),
    "CMYK": (picture(np.dstack([GREY] * 3), "JPEG", mode="CMYK"), "JPEG CMYK", (30, 20)),
    "very wide": (picture(np.zeros((10, 20_000, 3), np.uint8)), "20000 × 10", (1600, 1)),
    "missing": (b"", "nothing of it is left: not_jpeg", None),
    "a page": (PICTURES["page"].blob, "not a JPEG but HTML", None),
    "too large": (PICTURES["huge"].blob, "more than max_pixels", None),
    "half a png": (PICTURES["half a png"].blob, "truncated", None),
}


def test_odd_pictures_show_something_true() -> None:
    url = make_store({"image": "image"}, [{"image": blob} for blob, _, _ in ODD.values()], check=False)
    panels = [shown.panels[0] for shown in ops.show(url).records]
    for name, (_, note, size), panel in zip(ODD, ODD.values(), panels, strict=True):
        assert note in panel.note, name
        assert (panel.image and panel.image.size) == size, name


def test_several_images_arrays_and_frames_lie_side_by_side() -> None:
    clip = np.arange(12, dtype=np.uint8)[:, None, None, None] * np.full((1, 16, 16, 3), 20, np.uint8)
    fields = {"left": "image", "right": "image", "clip": {"kind": "array", "dtype": "uint8", "shape": [12, 16, 16, 3]}}
    url = make_store(fields, [{"left": jpeg(0), "right": jpeg(1), "clip": clip}])
    left, right, strip = ops.show(url).records[0].panels
    assert [left.name, right.name, strip.name] == ["left", "right", "clip"]
    for panel, number in ((left, 0), (right, 1)):
        assert np.abs(np.asarray(panel.image, int) - np.asarray(photograph(number), int)).mean() < 8
    assert strip.image is not None
    assert strip.image.size == (8 * 16, 16)
    assert [np.asarray(strip.image)[8, 16 * at, 0] for at in (0, 7)] == [0, 220]
    assert "8 of 12 frames" in strip.note


def test_records_are_spread_over_classes_and_splits_or_selected(tmp_path: Path) -> None:
    # 300 records; one class has two, and one number is unusual.
    changes: dict[int, dict[str, Any]] = {
        100: {"label": 2, "score": -900.0},
        200: {"label": 2},
        50: {"image": PICTURES["half"].blob},
    }
    records = [record(n, **{"label": int(n % 10 == 0), **changes.get(n, {})}) for n in range(300)]
    url, target = store(tmp_path, records), tmp_path / "page.html"
    page = ops.show(url, count=12)
    assert page.counts["classes"] == {"cat": 270, "dog": 28, "bird": 2}
    assert page.counts["splits"] == {"train": 225, "val": 75}
    labels = [each.label for each in page.records]
    assert (len(labels), labels.count("bird")) == (12, 2)
    assert {each.split for each in page.records} == {"train", "val"}
    assert [each.position for each in ops.show(url, where={"label": "bird"}).records] == [100, 200]
    (tmp_path / "keys.txt").write_text("7.jpg\n250.jpg\n")
    assert [each.key for each in ops.show(url, keys_file=tmp_path / "keys.txt").records] == ["7.jpg", "250.jpg"]
    assert [each.position for each in ops.show(url, count=2, worst_first=True).records] == [50, 100]
    storeds_command("show", url, "-n", 5, "--where", "split=val", "-o", target)
    assert target.read_text().count("data-facts=") == 5


def test_a_record_is_shown_as_trained(tmp_path: Path) -> None:
    url = store(tmp_path, [record(number) for number in range(4)])
    steps = [{"name": "RandomHorizontalFlip", "p": 0.5}, {"name": "ToTensor"}]
    config = {"dataset": {"url": "lmdb:///nowhere", "seed": 3, "fields": ["image", "label"], "transform": steps}}
    (tmp_path / "train.json").write_text(json.dumps(config))
    page = ops.show(url, config=tmp_path / "train.json")
    options = ("--as-trained", tmp_path / "train.json", "--split", "val", "-o", tmp_path / "a.png")
    assert "1 of 1 record" in storeds_command("show", url, *options)
    assert storeds_command("show", url, "--split", "val", code=2)
    assert "for a store" in storeds_command("show", url, *options, "--option", "readahead=true", code=2)
    config["dataset"] |= {"url": f"lmdb://{tmp_path}/{{split}}.lmdb"}
    (tmp_path / "splits.json").write_text(json.dumps(config | {"splits": {"train": {}, "val": {}}}))
    by_split = ops.show(url, config=tmp_path / "splits.json", split="train")
    assert (by_split.across, [each.split for each in by_split.records]) == (5, ["train"] * 3)
    flipped = 0
    for number, shown in enumerate(page.records):
        assert [panel.name for panel in shown.panels[1:]] == [f"image, epoch {epoch}" for epoch in range(4)]
        for panel in shown.panels[1:]:
            pixels, truth = np.asarray(panel.image, int), np.asarray(photograph(number), int)
            errors = [np.abs(pixels - each).mean() for each in (truth, truth[:, ::-1])]
            flipped += errors[1] < errors[0]
            assert min(errors) < 12
    assert 0 < flipped < 16


def test_a_mixture_shows_records_of_each_source(tmp_path: Path) -> None:
    urls = [make_store(FIELDS, [record(n) for n in range(9)], f"lmdb://{tmp_path}/{name}.lmdb") for name in "ab"]
    sources = [{"name": f"source {at}", "url": url} for at, url in enumerate(urls)]
    config = {"dataset": {"fields": ["image", "label"], "transform": ["ToTensor"], "sources": sources}}
    (tmp_path / "mixture.json").write_text(json.dumps(config))
    page = ops.show(tmp_path / "mixture.json", count=8)
    assert page.title == "; ".join(f"{url}: 4 of 9 records" for url in urls)
    assert [counts for name, counts in page.counts.items() if name.startswith("splits")] == [{"train": 6, "val": 3}] * 2
    assert len(page.records) == 8


def test_reports_and_loaders_are_tables_of_text_in_a_notebook() -> None:
    url = make_store({"key": "str", "image": "image"}, [{"key": SCRIPT, "image": jpeg(0)[:-60]}])
    loader = storeds.StoreLoader(storeds.StoreDataset(url, where={"key": SCRIPT}, on_error="skip"))
    dataset = storeds.StoreDataset(url, min_recovered=1.0)
    with pytest.raises(DecodeError):
        dataset[0]
    for shown, row in (
        (loader, ("batch_size", "1")),
        (replace(dataset.report(), url=SCRIPT), ("bad", "{'truncated_scan': 1}")),
        (replace(storeds.verify(url), url=SCRIPT), ("truncated_scan", "1")),
    ):
        table = shown._repr_html_()
        assert "".join(f"<t{cell}>{html.escape(text)}</t{cell}>" for cell, text in zip("hd", row, strict=True)) in table
        assert html.escape(SCRIPT) in table
        assert "<script" not in table


class CountedColumns(Counted):
    """A backend that notes the calls that read records, and reads columns without them."""

    def column(self, name: str, /) -> Any:
        return self.backend.column(name)  # type: ignore[attr-defined]  # engines of storeds have columns


def test_a_dataset_shows_itself_in_a_notebook(browser: Browser, tmp_path: Path) -> None:
    url = store(tmp_path, [record(number, key=f"{number}-é") for number in range(100)])
    backend = CountedColumns(storeds.open_backend(url))
    dataset = storeds.StoreDataset(backend, where={"split": "train"}, transform=[{"name": "ToTensor"}])
    shown = dataset._repr_html_()
    assert len(shown) < 1_000_000
    assert [size for size in backend.take_calls() if size] == [24]
    (tmp_path / "notebook.html").write_text(f"<meta charset=utf-8>{shown}")
    tab, seen = opened(browser, tmp_path / "notebook.html")
    frame = tab.frame_locator("iframe")
    frame.locator(".open").nth(23).click()
    assert "-é" in frame.locator("#record h2").inner_text()
    assert seen == []
    assert [each.key for each in dataset.show([0, -1, 2]).records] == ["1-é", "99-é", "3-é"]


def test_elements_of_a_dataset_have_the_roles_that_it_gives() -> None:
    fields = {"photo": "image", "notes": "json"}
    notes = {"objects": [{"bbox": [20, 10, 40, 30]}], "text": "a cup"}
    url = make_store(fields, [{"photo": jpeg(0), "notes": notes}])
    roles = {"boxes": {"role": "boxes", "format": "xywh"}, "caption": "text"}
    names = {"image": "photo", "boxes": "notes.objects[].bbox", "caption": "notes.text"}
    (shown,) = storeds.StoreDataset(url, fields=names, roles=roles).show().records
    assert [panel.name for panel in shown.panels] == ["image"]
    (box,) = shown.panels[0].boxes
    assert np.multiply(box.corners, [96, 64, 96, 64]).tolist() == pytest.approx([20, 10, 60, 40])
    assert shown.texts == ["a cup"]


def test_records_without_pictures_are_texts(tmp_path: Path) -> None:
    page = ops.show(make_store({"x": "float", "y": "json"}, [{"x": 0.5 * n, "y": {"n": [n]}} for n in range(3)]))
    page.save(tmp_path / "sheet.png")
    assert page.records[1].texts == ["x: 0.5", 'y: {"n": [1]}']
    assert page.histograms["x"]["0 to 0.0625"] == page.histograms["x"]["0.9375 to 1"] == 1


def test_windows_of_a_dataset_are_strips() -> None:
    records = [{"frame": jpeg(n), "video": n // 6} for n in range(12)]
    url = make_store({"frame": "image", "video": "int"}, records)
    page = storeds.StoreDataset(url, reader="video", reader_options={"by": "video"}).show()
    widths = [panel.image.width for each in page.records for panel in each.panels if panel.image is not None]
    assert [width > 300 for width in widths] == [True] * 2


def test_a_bad_record_and_a_bad_value_are_shown_as_such(tmp_path: Path) -> None:
    url, path = store(tmp_path, [record(n) for n in range(3)]), tmp_path / "a.lmdb"
    data = bytearray(path.read_bytes())
    data[data.index(jpeg(1)[-60:-10])] ^= 255
    path.write_bytes(data)
    page = ops.show(url)
    assert [each.tags for each in page.records] == [[], ["unreadable"], []]
    assert "checksum" in page.records[1].notes[0]
    boxes = {"role": "boxes", "format": "xywh"}
    other = make_store({"image": "image", "rows": "json"}, [{"image": jpeg(0), "rows": [[500, 0, 10, 10]]}])
    (shown,) = storeds.StoreDataset(other, fields=["image", "rows"], roles={"rows": boxes}).show().records
    assert shown.tags == ["value"]
    assert "lies outside the image of 96 × 64 pixels" in shown.notes[0]
    assert shown.panels[0].image is not None


# The sheet of damaged pictures

# What a sheet looks like: pixels of a tile, of the gap and of a line below it, and tiles in a row.
_SIDE, _GAP, _LINE, _HEADING, _COLUMNS = 160, 12, 15, 30, 10


def tiles(path: Path, count: int) -> list[tuple[Any, Any]]:
    """Return (picture, text below it) of each tile, as arrays."""
    with Image.open(path) as image:
        assert (image.format, image.mode) == ("PNG", "RGB")
        sheet = np.asarray(image)
    across, down = _SIDE + _GAP, _SIDE + 2 * _LINE + _GAP
    found = []
    for number in range(count):
        left, upper = _GAP + number % _COLUMNS * across, _GAP + _HEADING + number // _COLUMNS * down
        tile = sheet[upper : upper + down, left : left + _SIDE]
        found.append((tile[:_SIDE], tile[_SIDE : _SIDE + 2 * _LINE]))
    return found


def test_the_sheet_shows_damaged_pictures_repaired_the_most_frequent_kind_first(tmp_path: Path) -> None:
    url, path = f"hdf5://{tmp_path}/a.h5", tmp_path / "sheet.png"
    write_damaged(url)
    assert f"{path}: 11 damaged records" in storeds_command("show", url, "--damaged", "-o", path)
    names = ("no pixel", "filled up", "half", "coarse")  # all are truncated_scan, and other kinds have two at most
    assert sorted(list(PICTURES)[position] for position in storeds.verify(url).worst()[:4]) == sorted(names)
    drawn = tiles(path, 11)
    assert len({text.tobytes() for _, text in drawn}) == 11
    colours = [len(np.unique(picture.reshape(-1, 3), axis=0)) for picture, _ in drawn[:4]]
    assert [count > 300 for count in colours] == [False, True, True, True]  # the first has text only
    # "no end", of 96 x 64, in the middle of its tile: every pixel of the photograph is there.
    show(url, [list(PICTURES).index("no end")]).save(path)
    ((picture, _),) = tiles(path, 1)
    assert np.abs(picture[48:112, 32:128].astype(int) - np.asarray(photograph(1), int)).mean() < 8


def test_the_worst_thirty_of_a_kind_are_shown_and_no_record_that_ended_a_process() -> None:
    cuts = [Finding("truncated_scan", "", n, f"{n}", "image", (n + 1) / 101) for n in range(100)]
    rare, crashes = [Finding("record", "", 200)], [Finding("crash", "", n) for n in range(300, 500)]
    findings = [*rare, *crashes, *cuts[::-1], Finding("column", "", 250), Finding("id", "")]
    assert Report("", "", 500, findings=findings).worst() == [*range(30), 200]


def test_a_store_without_damage_gets_a_sheet_that_says_so(tmp_path: Path) -> None:
    url, path = f"lmdb://{tmp_path}/a.lmdb", tmp_path / "sheet.png"
    write_damaged(url, {"whole": PICTURES["whole"]})
    path.write_bytes(b"an older one")
    storeds_command("show", url, "--damaged", "-o", path)
    with Image.open(path) as sheet:
        assert np.asarray(sheet).min() < 100
    assert sorted(os.listdir(tmp_path)) == ["a.lmdb", "sheet.png"]


@pytest.mark.parametrize("name", ["nowhere/sheet.png", "folder.png", "sheet.jpg"])
def test_what_cannot_be_a_sheet_is_refused_before_checking(tmp_path: Path, name: str) -> None:
    (tmp_path / "folder.png").mkdir()
    assert name in storeds_command("show", "/nowhere.lmdb", "--damaged", "-o", tmp_path / name, code=2)
    for choice in (("--worst",), ("--where", "image=1"), ("--keys-file", tmp_path / "a.txt")):
        said = storeds_command("show", "/nowhere.lmdb", "--damaged", *choice, "-o", tmp_path / "a.png", code=2)
        assert "leave out the other choices" in said
    assert os.listdir(tmp_path) == ["folder.png"]
