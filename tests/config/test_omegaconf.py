"""Configs of Hydra and OmegaConf, beside those that are files and mappings."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
import yaml

import storeds
from photographs import jpeg
from storeds import errors

omegaconf = pytest.importorskip("omegaconf")
VAL = [[0, 3], [6, 9]]


@pytest.fixture
def config_file(tmp_path: Path) -> Path:
    with storeds.open_writer(tmp_path / "all.lmdb", {"image": "image", "label": "int", "split": "str"}) as writer:
        writer.append({"image": jpeg(n), "label": n, "split": "train" if n % 3 else "val"} for n in range(12))
    file = tmp_path / "config.yaml"
    file.write_text(
        f"dataset: {{url: 'lmdb://{tmp_path}/all.lmdb', transform: [{{name: Resize, size: [8, 8]}}, ToTensor]}}\n"
        "loader: {batch_size: 2, num_workers: 0}\n"
    )
    return file


def labels_in(loader: Iterable[Any]) -> list[list[int]]:
    return [labels.tolist() for _, labels in loader]


def test_a_config_is_a_path_a_mapping_or_of_omegaconf(config_file: Path) -> None:
    config = omegaconf.OmegaConf.load(config_file)
    for each in (config_file, str(config_file), yaml.safe_load(config_file.read_text()), config):
        assert labels_in(storeds.build_loader(each, "val")) == VAL
    merged = omegaconf.OmegaConf.merge(config, {"size": 4, "loader": {"batch_size": "${size}"}})
    with pytest.raises(errors.ConfigError, match="unknown key 'size'"):
        storeds.load_config(merged)
    loader = storeds.build_loader({"dataset": merged.dataset, "loader": merged.loader}, "val")
    assert labels_in(loader) == [VAL[0] + VAL[1]]
    config.dataset.url = "???"
    with pytest.raises(errors.ConfigError, match="url"):
        storeds.build_dataset({"dataset": config.dataset})


def test_single_values_are_overridden(config_file: Path) -> None:
    overrides = ["loader.batch_size=16", "dataset.transform.0.size=[4, 6]", "splits.val.dataset.transform=null"]
    config = storeds.load_config(config_file, overrides=overrides)
    assert config.loader.batch_size == 16
    assert config.dataset.transform == [{"name": "Resize", "size": [4, 6]}, "ToTensor"]
    assert config.source_for("val").transform is None


def test_hydra_instantiates_datasets_and_loaders(config_file: Path) -> None:
    instantiate = pytest.importorskip("hydra.utils").instantiate
    conf = omegaconf.OmegaConf
    whole = conf.create({"_target_": "storeds.build_loader", "split": "val", "config": conf.load(config_file)})
    assert labels_in(instantiate(whole)) == VAL
    table = {"_target_": "storeds.StoreDataset", **yaml.safe_load(config_file.read_text())["dataset"]}
    for given in (table, conf.create(table)):
        dataset = instantiate(given, where={"split": ["val"]}, as_dict=True)
        assert dataset[1]["image"].shape == (3, 8, 8)
        assert dataset[1]["label"] == 3


def test_numbers_of_5000_digits_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    digits = "9" * 5000
    monkeypatch.setenv("SEED", digits)
    table = {"url": f"lmdb://{tmp_path}/x.lmdb"}
    for refused in (
        lambda: storeds.load_config({"dataset": {**table, "seed": "${SEED}"}}),
        lambda: storeds.load_config({"dataset": {**table, "where": {"label": 10**5000}}}),
        lambda: storeds.load_config({"dataset": table}, overrides=[f"loader.batch_size={digits}"]),
        lambda: storeds.open_backend(f"hdf5://{tmp_path}/x.h5?cache_bytes={digits}"),
        lambda: storeds.open_backend(f"mongodb://host.invalid/db/c?timeoutMS={digits}"),
        lambda: storeds.open_backend(f"mongodb://host.invalid:{digits}/db/c"),
    ):
        with pytest.raises(errors.ConfigError):
            refused()
