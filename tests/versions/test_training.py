"""Training, splits, folds, `show` and `verify` on a version; a run keeps the version that it began with."""

from __future__ import annotations

import logging
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import storeds
from mask_files import write
from storeds import StoreDataset, StoreLoader, errors, ops


@pytest.fixture(params=["lmdb", "hdf5"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """A store of two versions: 12 photographs of two classes, then four more with a class of their own, and two dropped."""
    url = f"{request.param}://{tmp_path}/store/"
    storeds.append(url, write(tmp_path / "a", {f"{'ant' if n % 2 else 'cow'}/{n:02}.jpg": n for n in range(12)}))
    storeds.append(url, write(tmp_path / "b", {f"{'bee' if n % 2 else 'cow'}/{n:02}.jpg": n for n in range(20, 24)}))
    storeds.edit(url, drop=["ant/01.jpg", "cow/20.jpg"], set={"cow/00.jpg": {"label": "bee"}})
    return url


def seen(loader: Any) -> list[int]:
    return [int(label) for _, labels in loader for label in labels]


def dataset(url: str, **how: Any) -> StoreDataset:
    return StoreDataset(url, decode="tensor", transform=["ToTensor", {"name": "Resize", "size": 8}], seed=3, **how)


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("start_method", ["fork", "spawn"])
def test_an_epoch_has_the_records_of_the_version_in_every_mode(url: str, workers: int, start_method: str) -> None:
    data = dataset(url)
    how: Any = {"start_method": start_method} if workers else {}
    loader = StoreLoader(data, batch_size=4, shuffle=True, num_workers=workers, **how)
    storeds.edit(url, drop=["cow/02.jpg"])  # a reader keeps its version
    assert sorted(seen(loader)) == sorted(data.targets)
    assert data.classes == ["ant", "cow", "bee"]
    assert np.bincount(data.targets).tolist() == [5, 6, 3]
    again = pickle.loads(pickle.dumps(data))  # what a spawned worker gets
    assert again.targets == data.targets


def test_conditions_folds_and_keys_select_records_of_a_version(url: str, tmp_path: Path) -> None:
    assert dataset(url, where='label == "bee" and key startswith "cow/"').targets == [2]
    assert dataset(url, where={"label": "bee"}).targets == [2, 2, 2]
    folds = [dataset(url, fold={"of": 3, "take": at}).column("key").tolist() for at in range(3)]
    assert sorted(key for fold in folds for key in fold) == sorted(dataset(url).column("key").tolist())
    (tmp_path / "keys.txt").write_text("bee/21.jpg\ncow/00.jpg\n")
    assert dataset(url, keys_file=tmp_path / "keys.txt").targets == [2, 2]


def test_a_run_that_resumes_keeps_its_version(url: str, caplog: pytest.LogCaptureFixture) -> None:
    loader = StoreLoader(dataset(url), batch_size=4, shuffle=True)
    expected = seen(loader)
    loader = StoreLoader(dataset(url), batch_size=4, shuffle=True)
    batches = iter(loader)
    first = [int(label) for label in next(batches)[1]]
    state = loader.state_dict()
    storeds.edit(url, drop=["cow/02.jpg"])
    with pytest.raises(errors.ConfigError, match=r"another version of the store: open .*/store/\?version=3 to go on"):
        StoreLoader(dataset(url), batch_size=4, shuffle=True).load_state_dict(state)
    with caplog.at_level(logging.INFO, "storeds"):
        resumed = StoreLoader(dataset(f"{url}?version=3"), batch_size=4, shuffle=True)
    assert "version 3 is open, and the last is 4" in caplog.text
    resumed.load_state_dict(state)
    assert first + seen(resumed) == expected


def test_the_commands_work_on_a_version(url: str, tmp_path: Path) -> None:
    assert (storeds.info(url).count, storeds.info(f"{url}?version=1").count) == (14, 12)
    assert storeds.verify(url, workers=0).ok
    assert storeds.stats(url).classes
    assert "cow/02.jpg" in storeds.show(url, where='key == "cow/02.jpg"').html
    exported = tmp_path / "out"
    storeds.export(url, exported, format="folder")
    assert storeds.pack(exported, tmp_path / "again.lmdb").id == storeds.info(url).id
    assert storeds.convert(url, tmp_path / "copy.h5").id == ops.log(url)[0].id
    with storeds.open_backend([url, f"{url}?version=1"]) as both:
        assert len(both) == 26
        assert storeds.errors.RecordError not in map(type, both.get_many(range(26)))


def test_a_source_without_an_added_field_is_appended_by_way_of_another_store(url: str, tmp_path: Path) -> None:
    keys = dataset(url).column("key").tolist()
    storeds.edit(url, set={key: {"site": f"s{at % 2}"} for at, key in enumerate(keys)})
    source = write(tmp_path / "c", {"ant/90.jpg": 90, "elk/91.jpg": 91})
    with pytest.raises(errors.ConfigError, match="the source lacks site, which .* has: pack the source into another"):
        storeds.append(url, source)
    other = f"{url.partition(':')[0]}://{tmp_path}/other/"
    storeds.append(other, source)
    storeds.edit(other, set={"ant/90.jpg": {"site": "s9"}, "elk/91.jpg": {"site": "s9"}})
    storeds.append(url, other)
    assert dataset(url, where='site == "s9"').targets == [0, 3]
    assert storeds.convert(url, tmp_path / "copy.lmdb").id == ops.log(url)[0].id


def test_a_new_field_needs_a_name_that_a_store_can_have(url: str) -> None:
    keys = dataset(url).column("key").tolist()
    with pytest.raises(errors.ConfigError, match="field name 'My site' must match"):
        storeds.edit(url, set={key: {"My site": 1} for key in keys})
    assert dataset(url).targets
    assert len(ops.log(url)) == 3
