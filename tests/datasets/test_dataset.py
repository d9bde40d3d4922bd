"""StoreDataset: samples, indices, one storage call a batch, transforms, selection, errors."""

from __future__ import annotations

import math
import pickle
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, Subset

import storeds
from make_store import make_store
from photographs import jpeg
from storeds import SampleContext, Skipped, StoreDataset, StoreLoader, errors
from storeds.readers import array
from wrapped_reader import WrappedReader

COUNT = 24
FIELDS = {"image": "image", "label": "int", "key": "str", "split": "str", "weight": "float"}


def record(number: int) -> dict[str, Any]:
    split = "val" if number % 4 == 0 else "train"
    return {"image": jpeg(number), "label": number % 3, "key": f"p/{number}", "split": split, "weight": number / 7}


@pytest.fixture(autouse=True)
def _cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STOREDS_CACHE", str(tmp_path / "cache"))


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> str:
    url = f"lmdb://{tmp_path_factory.mktemp('dataset')}/photos.lmdb"
    return make_store(FIELDS, map(record, range(COUNT)), url, attrs={"classes": ["cat", "cup", "moon"]})


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Return a list that grows by the size of each storage call."""
    from storeds.backends import Store

    sizes: list[int] = []
    original = Store.get_many

    def counted(self: Any, positions: Sequence[int], /, fields: Sequence[str] | None = None) -> Any:
        sizes.append(len(positions))
        return original(self, positions, fields)

    monkeypatch.setattr(Store, "get_many", counted)
    return sizes


def ids(samples: Sequence[Any]) -> list[int]:
    return [sample[-1] for sample in samples]


def test_a_sample_is_the_pil_image_and_the_label_as_in_torchvision(url: str) -> None:
    dataset = StoreDataset(url)
    image, label = dataset[5]
    assert image.size == (96, 64)
    assert image.mode == "RGB"
    assert label == 2
    assert dataset.classes == ["cat", "cup", "moon"]
    assert dataset.class_to_idx == {"cat": 0, "cup": 1, "moon": 2}
    assert dataset.targets == [number % 3 for number in range(COUNT)]
    assert len(dataset) == COUNT


@pytest.mark.parametrize(
    ("index", "expected"),
    [
        ([3, 1, 3], [3, 1, 3]),
        (slice(2, 20, 5), [2, 7, 12, 17]),
        (slice(None, None, -8), [23, 15, 7]),
        (np.array([4, 0]), [4, 0]),
        (torch.tensor([4, -1]), [4, COUNT - 1]),
        (range(3), [0, 1, 2]),
        ([], []),
    ],
)
def test_slices_and_sequences_give_a_list_in_one_storage_call(
    url: str, calls: list[int], index: Any, expected: list[int]
) -> None:
    samples = StoreDataset(url, fields=["index"], reader="array")[index]
    assert ids(samples) == expected
    assert len(calls) == bool(expected)


NO_INDEX = [1.0, "1", None, [1.5], torch.ones(COUNT, dtype=torch.bool), np.ones(COUNT, bool)]
NO_NUMBERS = [torch.tensor(1.0), np.float64(1), True, torch.tensor(True), np.bool_(True), [True, False], [0, True]]


def test_what_is_no_index_is_a_type_error(url: str) -> None:
    dataset, wrong = StoreDataset(url), [*NO_INDEX, *NO_NUMBERS, [torch.tensor(True)], [np.bool_(True)]]
    for index in wrong:
        with pytest.raises(TypeError):
            dataset[index]


def test_nested_subsets_give_the_right_rows_in_one_storage_call(url: str, calls: list[int]) -> None:
    dataset = StoreDataset(url, fields=["index"])
    inner = Subset(Subset(dataset, [5, 6, 7, 8, 9]), [4, 0, 0, 2])
    batch = next(iter(DataLoader(inner, batch_size=4, collate_fn=list)))
    assert ids(batch) == [9, 5, 5, 7]
    assert [indices.tolist() for (indices,) in StoreLoader(inner, batch_size=4)] == [[9, 5, 5, 7]]
    assert calls == [4, 4]


def test_where_takes_only_matching_records_in_their_order(url: str) -> None:
    dataset = StoreDataset(url, fields=["index", "key"], where={"split": "val", "label": [0, 1]})
    expected = [f"p/{number}" for number in range(COUNT) if number % 4 == 0 and number % 3 in (0, 1)]
    assert [key for _, key in dataset[:]] == expected
    assert [index for index, _ in dataset[:]] == list(range(len(expected)))
    copy = pickle.loads(pickle.dumps(dataset))
    assert copy[:] == dataset[:]


def test_where_keeps_its_positions_in_a_mapped_file_that_any_process_finds(
    url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    dataset = StoreDataset(url, reader="array", fields=["key"], where={"split": "train"})
    (file,) = (tmp_path / "cache" / "storeds").iterdir()
    positions = [number for number in range(COUNT) if number % 4]
    assert np.load(file).tolist() == positions
    assert [key for (key,) in dataset[:]] == [f"p/{at}" for at in positions]
    assert str(file) in Path("/proc/self/maps").read_text()
    whole = file.read_bytes()
    flipped = whole[:-10] + bytes((whole[-10] ^ 1,)) + whole[-9:]
    for damaged in (b"damaged", b"", whole[:128] + bytes(len(whole) - 128), whole[:-8], flipped, whole + b"\0"):
        file.write_bytes(damaged)
        assert StoreDataset(url, fields=["key"], where={"split": "train"})[:] == [(f"p/{at}",) for at in positions]
        assert file.read_bytes() == whole
    monkeypatch.setenv("STOREDS_CACHE", "/dev/null/cache")  # which cannot be written
    assert StoreDataset(url, fields=["key"], where={"split": "train"})[-1] == (f"p/{positions[-1]}",)


def test_a_pickle_holds_no_selected_positions() -> None:
    url = make_store({"label": "int"}, ({"label": at % 2} for at in range(20_000)))
    dataset = StoreDataset(url, reader="array", where={"label": 1})
    assert dataset[9_999] == (1,)
    assert len(pickle.dumps(dataset)) < 8192


@pytest.mark.parametrize(
    ("where", "message"),
    [
        ({"splt": "val"}, "did you mean 'split'"),
        ({"image": b""}, "kind image"),
        ({"label": "1"}, "'label' has no class '1'"),
        ({"label": True}, "never equals True"),
        ({"split": 10**5000}, "'split' is str, so it never equals <int>"),
        ({}, "selects nothing"),
    ],
)
def test_a_where_that_cannot_match_is_refused(url: str, where: dict[str, Any], message: str) -> None:
    with pytest.raises(errors.ConfigError, match=message):
        StoreDataset(url, where=where)


@pytest.mark.parametrize("number", [2**63, -(10**400), 10**5000], ids=["64 bits", "10**400", "10**5000"])
def test_what_no_store_holds_equals_no_record(url: str, number: int) -> None:
    assert len(StoreDataset(url, where={"label": number})) == 0
    assert len(StoreDataset(url, where={"split": "\ud800"})) == 0
    among = StoreDataset(url, fields=["index"], where={"label": [number, 1], "split": ["\udfff", "val"]})
    assert len(among) == len(StoreDataset(url, fields=["index"], where={"label": 1, "split": "val"})) > 0


def test_a_selection_of_nothing_is_an_empty_dataset_and_a_warning(url: str, caplog: pytest.LogCaptureFixture) -> None:
    dataset = StoreDataset(url, where={"split": "test"})
    assert len(dataset) == 0
    assert "where={'split': ['test']} selects none of the " in caplog.text
    assert dataset[:] == []
    assert list(DataLoader(dataset)) == []


def brightest(image: Any) -> int:
    return int(np.asarray(image).max())


def test_transforms_apply_to_the_image_and_to_the_label(url: str) -> None:
    changed: dict[str, Any] = {"transform": brightest, "target_transform": lambda label: label * 10}
    dataset = StoreDataset(url, fields=["label", "image"], **changed)
    assert dataset[4] == (10, brightest(StoreDataset(url)[4][0]))
    keyed = StoreDataset(url, fields=["image", "key"])
    assert StoreDataset(url, fields=["image", "key"], target_transform=len)[4][1] == len(keyed[4][1])


AUGMENT: list[Any] = [{"name": "RandomResizedCrop", "size": 16}, "RandomHorizontalFlip", "ToTensor"]


def test_a_seed_makes_randomness_a_function_of_seed_epoch_and_index(url: str) -> None:
    dataset = StoreDataset(url, transform=AUGMENT, seed=3)
    first = torch.stack([image for image, _ in dataset[:]])
    torch.manual_seed(0)
    shuffled = torch.stack([dataset[index][0] for index in reversed(range(COUNT))]).flip(0)
    assert torch.equal(first, shuffled)
    dataset.set_epoch(1)
    assert dataset.epoch == 1
    assert not torch.equal(first, torch.stack([image for image, _ in dataset[:]]))
    dataset.set_epoch(0)
    assert torch.equal(first, torch.stack([image for image, _ in dataset[:]]))
    assert not torch.equal(first, torch.stack([i for i, _ in StoreDataset(url, transform=AUGMENT, seed=4)[:]]))

    def draw(image: Any, generator: torch.Generator) -> torch.Tensor:
        return torch.rand(1, generator=generator)

    assert len({float(number) for number, _ in StoreDataset(url, transform=draw, seed=3)[:]}) == COUNT


@dataclass(frozen=True)
class Picky(WrappedReader):
    """A reader of a plug-in's, which does not expect what it finds in one record."""

    spec: Any = field(default_factory=lambda: array(("index", "label")))
    error: Exception | None = None

    def build(self, records: Sequence[Any], context: SampleContext) -> Any:
        if context.index == 1 and self.error is not None:
            raise self.error
        return super().build(records, context)


class NoColourError(errors.RecordError):
    """A plug-in's own word for a bad record."""

    def __init__(self, what: str, colour: str) -> None:
        super().__init__(f"{what} {colour}")


@pytest.mark.parametrize(
    ("error", "kind"), [(errors.DecodeError("no colour"), "decode"), (NoColourError("no", "colour"), "record")]
)
def test_an_error_locates_a_record_that_a_reader_refuses_and_the_policy_applies(
    url: str, error: errors.RecordError, kind: str
) -> None:
    with pytest.raises(errors.RecordError, match=rf"record 4 \(key 'p/4'\) of {url}: no colour") as raised:
        StoreDataset(url, reader=Picky(error=error), where={"split": "val"})[:3]
    assert (raised.value.position, raised.value.kind) == (4, kind)
    dataset = StoreDataset(url, reader=Picky(error=error), where={"split": "val"}, on_error="skip")
    assert isinstance(dataset[1], Skipped)
    assert [index for index, _ in dataset[[0, 2]]] == [0, 2]
    assert dataset.report().bad == {kind: 1}


@pytest.mark.parametrize("error", [KeyError("a bug"), MemoryError(), errors.UnavailableError("gone")])
def test_what_is_not_the_records_fault_escapes_from_a_reader_with_its_place_noted(url: str, error: Exception) -> None:
    with pytest.raises(type(error)) as raised:
        StoreDataset(url, reader=Picky(error=error), on_error="skip", where={"split": "val"})[:3]
    assert raised.value is error
    assert raised.value.__notes__ == [f"Picky was given record 4 of {url}"]


def test_a_source_stands_for_every_argument_left_at_its_default(url: str) -> None:
    source = storeds.DatasetSettings(url=url, fields=("index",), where={"split": "val"}, seed=1)
    assert StoreDataset(source)[:] == [(number,) for number in range(6)]
    assert StoreDataset(source, fields=["key"])[0] == ("p/0",)


def test_an_open_backend_is_taken_as_it_is(url: str) -> None:
    backend = storeds.open_backend(url)
    dataset = StoreDataset(backend, fields=["key"])
    assert dataset[2] == ("p/2",)
    dataset.close()
    with pytest.raises(errors.ClosedError, match="was closed"):
        dataset[2]
    with pytest.raises(errors.ConfigError, match="not int"):
        StoreDataset(7)  # type: ignore[arg-type]
    with pytest.raises(errors.ConfigError, match="open already"):
        StoreDataset(backend, options={"readahead": True})


class EverySecond:
    """A reader of a user's own: sample i is records 2i and 2i+1."""

    fields = ("pair",)
    stored = ("label",)
    data, target = "pair", None

    def __init__(self, count: int = 0) -> None:
        self.count = count

    def bind(self, backend: storeds.Backend) -> EverySecond:
        return EverySecond(len(backend) // 2)

    def __len__(self) -> int:
        return self.count

    def locate(self, index: int, context: SampleContext) -> Sequence[int]:
        return (2 * index, 2 * index + 1)

    def build(self, records: Sequence[storeds.Record], context: SampleContext) -> dict[str, Any]:
        return {"pair": [record["label"] for record in records]}


def test_a_reader_may_make_a_sample_of_several_records_still_in_one_storage_call(url: str, calls: list[int]) -> None:
    dataset = StoreDataset(url, reader=EverySecond())
    assert len(dataset) == COUNT // 2
    assert dataset[[3, 0]] == [([0, 1],), ([0, 1],)]
    assert calls == [4]


def test_repr_and_length_do_no_io(url: str, tmp_path: Path) -> None:
    copy = tmp_path / "copy.lmdb"
    copy.write_bytes(Path(url.removeprefix("lmdb://")).read_bytes())
    dataset = StoreDataset(str(copy), where={"split": "val"})
    copy.unlink()
    assert repr(dataset).startswith(f"StoreDataset('lmdb://{copy}', where={{'split': ['val']}}, count=6")
    assert len(dataset) == 6


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"reader": "imaeg"}, "did you mean 'image'"),
        ({"fields": ["image", "lable"]}, "did you mean 'label'"),
        ({"fields": "image"}, "sequence of names"),
        ({"decode": "pli"}, "did you mean 'pil'"),
        ({"mode": "rgb"}, "Pillow mode"),
        ({"transform": ["Resise"]}, "Resize"),
        ({"seed": "7"}, "seed must be"),
        ({"layout": "orc"}, "layout 'lmdb/orc'.*'lmdb/ocr'"),
        ({"options": {"readahed": True}}, "did you mean 'readahead'"),
        (
            {"reader_options": {"speed": 1}},
            "no option 'speed'; .*he options are decode, mode, channels, repair, min_recovered, orient",
        ),
        ({"reader_options": {"mode": "L"}, "mode": "RGBA"}, "mode is given twice with different values"),
        ({"reader_options": {"kinds": 1}}, "no option 'kinds'"),
        ({"reader_options": {"fields": ["label"]}}, "fields is an argument of StoreDataset"),
        ({"target_transform": ["Resise"]}, r"^target_transform\[0\]: .*Resize"),
        ({"fields": ["index"], "transform": brightest}, "no element"),
    ],
)
def test_a_wrong_argument_is_a_config_error_that_says_what_exists(
    url: str, arguments: dict[str, Any], message: str
) -> None:
    with pytest.raises(errors.ConfigError, match=message):
        StoreDataset(url, **arguments)


def test_a_field_called_index_is_read_as_it_is_stored(tmp_path: Path) -> None:
    records = ({"index": 10 - at, "image": jpeg(at), "label": at} for at in range(4))
    url = make_store({"index": "int", "image": "image", "label": "int"}, records, f"lmdb://{tmp_path}/x.lmdb")
    arrays = StoreDataset(url, reader="array", fields=["label", "index"])
    for dataset in (arrays, StoreDataset(url, fields=["label", "index"])):
        assert dataset[[2, 0]] == [(2, 8), (0, 10)]
    assert next(iter(DataLoader(arrays, batch_size=4)))[1].tolist() == [10, 9, 8, 7]
    assert StoreDataset(url, fields=["index"], where={"index": 9})[0] == (9,)


def test_where_takes_class_names_and_infinities() -> None:
    scores = [0.0, math.inf, -math.inf, math.nan]
    records = [{"label": at % 3, "n": at, "score": scores[at % 4]} for at in range(9)]
    url = make_store({"label": "int", "n": "int", "score": "float"}, records, attrs={"classes": ["cat", "dog", "owl"]})
    for where, expected in (
        ({"label": "dog"}, [1, 4, 7]),
        ({"label": ["cat", 2], "n": [0, 5, 7]}, [0, 5]),
        ({"score": math.inf}, [1, 5]),
        ({"score": -math.inf}, [2, 6]),
    ):
        dataset = StoreDataset(url, reader="array", fields=["n"], where=where)
        assert [n for (n,) in dataset[:]] == expected
    for wrong, message in (
        ({"label": "cta"}, "no class 'cta'; did you mean 'cat'"),
        ({"label": lambda label: label > 0}, "not a function"),
        ({"labl": 1}, "did you mean 'label'"),
    ):
        with pytest.raises(errors.ConfigError, match=message):
            StoreDataset(url, reader="array", where=wrong)
