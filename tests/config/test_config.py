"""Configs: one training from TOML, YAML, JSON, a mapping or OmegaConf; strict about keys; silent about secrets."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml

import storeds
from make_store import make_store
from photographs import jpeg
from storeds import build_dataset, build_loader, errors, load_config

TOML = """
[dataset]
url = "{url}"
fields = ["image", "label", "index"]
mode = "L"
seed = 5
transform = [{{ name = "Resize", size = [8, 8] }}, "ToTensor"]

[loader]
batch_size = 4
num_workers = 0

[splits.train.dataset]
where = {{ split = "train" }}

[splits.train.loader]
shuffle = true
drop_last = true

[splits.val.dataset]
where = {{ split = "val" }}
"""

# Aliases that multiply to 9^29 values.
BOMB = "y0: &a0 [x, x, x]\n" + "".join(f"y{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]\n" for n in range(1, 30))


@pytest.fixture
def url(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv("STOREDS_CACHE", str(tmp_path / "cache"))
    url = f"lmdb://{tmp_path}/all.lmdb"
    records = ({"image": jpeg(n), "label": n, "split": "train" if n % 3 else "val"} for n in range(12))
    return make_store({"image": "image", "label": "int", "split": "str"}, records, url)


def write(path: Path, text: str) -> Path:
    path.write_text(text)
    return path


@pytest.fixture
def config_file(url: str, tmp_path: Path) -> Path:
    return write(tmp_path / "config.toml", TOML.format(url=url))


def test_toml_yaml_json_and_a_mapping_give_the_same_config(config_file: Path, tmp_path: Path) -> None:
    mapping, of_toml = tomllib.loads(config_file.read_text()), load_config(config_file)
    for suffix, dump in ((".yaml", yaml.safe_dump), (".yml", yaml.safe_dump), (".json", json.dumps)):
        assert load_config(write(tmp_path / f"config{suffix}", dump(mapping))) == of_toml
    assert load_config(mapping) == of_toml


def test_a_split_overrides_dataset_and_loader(config_file: Path) -> None:
    config = load_config(config_file)
    train, again, val = (build_loader(config, split) for split in ("train", "train", "val"))
    order = labels_in(train)
    assert sorted(order[0] + order[1]) == [1, 2, 4, 5, 7, 8, 10, 11]
    assert order == labels_in(again)  # the seed's
    assert labels_in(val) == [[0, 3, 6, 9]]
    assert next(iter(val))[0].shape == (4, 1, 8, 8)
    assert train.drop_last
    with pytest.raises(errors.ConfigError, match="'vla'; did you mean 'val'"):
        build_loader(config, "vla")


def test_without_a_splits_table_a_split_is_a_part_of_the_url_or_a_column(url: str) -> None:
    by_column = load_config({"dataset": {"url": url, "fields": ["label"]}})
    assert [label for (label,) in build_dataset(by_column, "val")[:]] == [0, 3, 6, 9]
    by_url = load_config({"dataset": {"url": url.replace("all", "{split}"), "fields": ["label"]}})
    assert len(build_dataset(by_url, "all")) == 12
    with pytest.raises(errors.ConfigError, match="name a split"):
        build_dataset(by_url)
    in_table = load_config({"dataset": {"url": url}, "splits": {"vla": {"dataset": {"where": {"split": "vla"}}}}})
    for config, build in ((by_column, build_dataset), (by_column, build_loader), (in_table, build_dataset)):
        with pytest.raises(errors.ConfigError, match="has the split 'vla'; did you mean 'val'. The values of split"):
            build(config, "vla")


def test_a_function_of_the_loader_is_named_by_its_path(url: str) -> None:
    def loader(collate: str) -> Any:
        config = {"dataset": {"url": url, "fields": ["label"]}, "loader": {"batch_size": 12, "collate": collate}}
        return build_loader(config)

    assert list(loader("builtins.len")) == [12]
    for collate, says in (("no_such.module", "cannot be imported"), ("string.digits", "not a function but a str")):
        with pytest.raises(errors.ConfigError, match=says):
            loader(collate)


DIGITS = "9" * 5000  # more than int() reads
TWICE = {"options": {"columns": 1}, "columns": 2}
X, MIXED = {"url": "x"}, {"sources": [{"url": "x"}, {"url": "y"}]}
# Settings of a split that has other sources or other settings of its mixture, and words of the error.
WRONG_SOURCES: list[tuple[dict[str, Any], str]] = [
    ({"sources": []}, "sources: expected a list of length >= 1"),
    ({"sources": 5}, "sources: expected a list"),
    ({"sources": [{"name": "c"}]}, "source 'c' of the mixture: .*url is needed"),
    ({"sources": [{"url": "x", "sed": 1}]}, "source '0' of the mixture: .*unknown key 'sed'; did you mean 'seed'"),
    ({"sources": [{"url": "x"}, {"url": "y", "name": "0"}]}, "different names"),
    ({"seed": "x"}, r"\[splits.val.dataset\]: seed: expected an integer"),
]
# A mapping, and words of the error.
WRONG_MAPPINGS: list[tuple[Any, str]] = [
    ({"dataset": {"url": "x", "trnsform": []}}, "'trnsform'; did you mean 'transform'"),
    (
        {"dataset": {"trnsform": [], "sources": [X]}},
        "config: dataset: unknown key 'trnsform'; did you mean 'transform'",
    ),
    ({"dataset": X, "laoder": {}}, "'laoder'; did you mean 'loader'"),
    ({"dataset": X, "loader": {"bach_size": 4}}, "'loader.bach_size'; did you mean 'batch_size'"),
    ({"dataset": X, "splits": {"a": {"dataste": {}}}}, "did you mean 'dataset'"),
    ({"dataset": X, "splits": {"train": {"loader": {"shufle": True}}}}, "did you mean 'shuffle'"),
    ({"dataset": X, "loader": {"batch_size": 0}}, "loader.batch_size: expected an integer >= 1"),
    ({"dataset": {"url": "x", "fields": "image"}}, "fields: expected a table or a list"),
    ({"dataset": {"url": "x", "on_error": "secret"}}, "on_error"),
    ({"dataset": {"url": "mongodb://u:secret@h/d/c", "seed": "secret"}}, "seed"),
    ({"dataset": "mongodb://u:secret@h/d/c"}, "dataset"),
    ({"dataset": {"options": {"password": "secret"}}}, "dataset: url is needed"),
    ({}, "dataset is needed"),
    ({"dataset": {"url": "x", "where": {"label": 10**5000}}}, "where"),
    ({"dataset": {"url": "x", "seed": "${DIGITS}"}}, "seed"),
    ({"dataset": {**X, **TWICE}}, "the option 'columns' is given twice"),
    ({"dataset": X, "splits": {"val": {"dataset": TWICE}}}, "the option 'columns' is given twice"),
    ({"dataset": {"sources": [{**X, **TWICE}]}}, "the option 'columns' is given twice"),
    (
        {"dataset": X, "splits": {"val": {"dataset": {"stop": "first"}}}},
        r"\[splits.val.dataset\]: stop is for a mixture",
    ),
    (
        {"dataset": MIXED, "splits": {"val": {"dataset": {"stop": "no"}}}},
        r"\[splits.val.dataset\]: stop: expected 'first'",
    ),
    ({"dataset": MIXED, "splits": {"val": {"dataset": {"temperature": 0}}}}, r"temperature: expected a number > 0"),
    *(
        ({"dataset": dataset, "splits": {"val": {"dataset": table}}}, words)
        for dataset in (X, MIXED)
        for table, words in WRONG_SOURCES
    ),
]
# The name of a file, its text, and words of the error.
WRONG_FILES = [
    ("config.toml", "[dataset\n", "line 1"),
    ("config.toml", "[dataset]\nurl = mongodb://user:secret@h/d/c", "line 2"),
    ("config.json", '{"dataset": {"url": secret}}', "line 1"),
    ("config.json", '{"dataset": {"url": "x", "url": "y"}}', "the key 'url' appears twice"),
    ("config.ini", "", "ends in .toml"),
    ("config.yaml", "- a\n- b\n", "expected tables"),
    ("config.yaml", "dataset: !!python/object/apply:os.system ['true']", "could not determine a constructor"),
    ("config.yaml", "dataset: {url: x}\ndataset: {url: y}", "line 2, column 1: this key appears twice"),
    ("config.yaml", BOMB, "more than 100,000 values"),
    ("config.yaml", "dataset: &a\n  url: *a\n", "more than 100,000 values"),
    ("config.yaml", "dataset:\n  url: mongodb://user:secret@localhost/photos/train, x: : ,", "line 2, column 55"),
    ("config.yaml", 'dataset:\n  password: "hush secret', "line 2, column 13"),
    ("config.yaml", "dataset:\n  password: *secret", "line 2, column 13: found undefined alias"),
    ("config.yaml", "dataset:\n  password: !secret", "line 2, column 13: could not determine"),
    ("config.yaml", "dataset:\n  seed: !!int secret", "line 2, column 9: this is not a valid int"),
    ("config.yaml", "a: 1\n---\nsecret: 1", "line 2, column 1: but found another document"),
    ("config.yaml", "password: \asecret", "position 10"),
]
# `overrides=`, and words of the error.
WRONG_OVERRIDES = [
    ("loader.batch_size", "must read table.key=value"),
    ("loader.batch_size=", "has no value"),
    ("loader.batch_size=[1", "neither TOML nor JSON"),
    ("splits.vla.loader.shuffle=true", "did you mean 'val'"),
    ("dataset.url.x=1", "not a table"),
    ("dataset.transform.7=null", "the list has 1 items"),
    ("mongodb://user:secret@h/d/c", "must read table.key=value"),
    (f"loader.batch_size={DIGITS}", "loader.batch_size"),
]


@pytest.mark.parametrize(("mapping", "message"), WRONG_MAPPINGS, ids=[words[:40] for _, words in WRONG_MAPPINGS])
def test_a_wrong_key_or_value_is_named_not_shown(mapping: Any, message: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DIGITS", DIGITS)
    with pytest.raises(errors.ConfigError, match=message) as raised:
        load_config(mapping)
    assert "secret" not in str(raised.value)


@pytest.mark.parametrize(("name", "text", "message"), WRONG_FILES, ids=lambda value: value[:40])
def test_a_file_that_cannot_be_parsed_is_not_quoted(tmp_path: Path, name: str, text: str, message: str) -> None:
    with pytest.raises(errors.ConfigError, match=f"(?s){name}.*{message}") as raised:
        load_config(write(tmp_path / name, text))
    assert raised.value.__context__ is None  # parsers quote the file
    assert "secret" not in str(raised.value)


@pytest.mark.parametrize(("override", "message"), WRONG_OVERRIDES, ids=lambda value: value[:40])
def test_a_wrong_override_is_named_without_its_value(override: str, message: str) -> None:
    config = {"dataset": {"url": "x", "transform": ["ToTensor"]}, "splits": {"val": {}}}
    with pytest.raises(errors.ConfigError, match=message) as raised:
        load_config(config, overrides=[override])
    assert "secret" not in str(raised.value)


def test_a_path_that_names_no_config_is_shown_without_a_password() -> None:
    with pytest.raises(errors.StoreNotFoundError, match=r"none\.toml"):
        load_config("none.toml")
    for path in ("mongodb://user:secret@h/a/b", Path("mongodb://user:secret@h/a/b.toml")):
        with pytest.raises((errors.ConfigError, errors.StoreNotFoundError)) as raised:
            load_config(path)
        assert "secret" not in str(raised.value)


def test_environment_variables_expand_once_and_a_missing_one_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PASSWORD", "a${HOME}b")
    config = load_config({"dataset": {"url": "mongodb://u:${PASSWORD}@h/{split}/c", "fields": ["${PASSWORD}"]}})
    assert config.source_for("x").url == "mongodb://u:a${HOME}b@h/x/c"
    assert config.dataset.fields == ("a${HOME}b",)
    with pytest.raises(errors.ConfigError, match="variable STORE_PORT is not set"):
        load_config({"dataset": {"url": "mongodb://h:${STORE_PORT}/db/c"}})


PATHS: dict[str, Callable[[Any], Any]] = {
    "a list": lambda path: {"dataset": {"url": [path]}},
    "a split": lambda path: {"dataset": {"url": "no"}, "splits": {"train": {"dataset": {"url": path}}}},
    "a part of the name": lambda path: {"dataset": {"url": path.with_name("{split}.lmdb")}},
    "a variable": lambda path: {"dataset": {"url": Path("${FOLDER}") / path.name}},
    "sources": lambda path: {"dataset": {"sources": [{"url": path}, {"url": str(path), "keys_file": None}]}},
    "settings": lambda path: storeds.config.Config(dataset=storeds.DatasetSettings(url=[path])),
    "keys_file": lambda path: {"dataset": {"url": path, "keys_file": path.with_name("keys.txt")}},
}


@pytest.mark.parametrize("form", PATHS)
def test_a_store_of_a_config_may_be_a_path(form: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FOLDER", str(tmp_path))
    (tmp_path / "keys.txt").write_text("a\nb\n")
    records = [{"image": jpeg(n), "key": name, "split": "train"} for n, name in enumerate("abc")]
    make_store({"image": "image", "key": "str", "split": "str"}, records, str(tmp_path / "train.lmdb"))
    dataset = build_dataset(PATHS[form](tmp_path / "train.lmdb"), "train")
    assert len(dataset) == {"keys_file": 2, "sources": 6}.get(form, 3)


# Splits that share records


def write_store(url: str, split: Sequence[str | int] = ()) -> str:
    """Write 30 records, each with a key and a fold, and perhaps with one of these splits in turn."""
    fields = {"key": "str", "fold": "int"} | ({"split": "int" if 0 in split else "str"} if split else {})
    records = [{"key": f"k{n}", "fold": n % 5} | ({"split": split[n % 3]} if split else {}) for n in range(30)]
    return make_store(fields, records, url)


def config_of(url: Any, splits: dict[str, Any], **more: Any) -> storeds.Config:
    dataset = {"url": url, "reader": "array", "fields": ["key"], **more.pop("dataset", {})}
    return load_config({"dataset": dataset, "splits": {k: {"dataset": v} for k, v in splits.items()}, **more})


def keys(config: storeds.Config, split: str | int | None) -> list[str]:
    return [key for (key,) in build_dataset(config, split)[:]]


def test_a_where_of_the_dataset_is_combined_with_the_split(tmp_path: Path) -> None:
    url = write_store(f"lmdb://{tmp_path}/x.lmdb", ["train", "val", "test"])
    config = config_of(url, {"train": {}, "val": {}}, dataset={"where": {"fold": [0, 1]}})
    assert keys(config, "train") == ["k0", "k6", "k15", "k21"]
    assert keys(config, "val") == ["k1", "k10", "k16", "k25"]
    with pytest.raises(errors.ConfigError, match="which leaves none for split 'val'"):
        config_of(url, {"train": {}, "val": {}}, dataset={"where": {"split": "train"}})


def test_a_split_of_numbers_is_named_by_a_number(tmp_path: Path) -> None:
    url = write_store(f"lmdb://{tmp_path}/x.lmdb", [0, 1, 2])
    config = load_config({"dataset": {"url": url, "reader": "array", "fields": ["key"]}, "splits": {0: {}, 1: {}}})
    assert keys(config, 0) == keys(config, "0") == [f"k{n}" for n in range(0, 30, 3)]
    config = config_of(url, {"0": {}, "1": {}}, dataset={"where": {"split": [0, 1], "fold": 1}})
    assert keys(config, 0) == ["k6", "k21"]
    with pytest.raises(errors.ConfigError, match="which leaves none for split '2'"):
        config_of(url, {"2": {}}, dataset={"where": {"split": [0, 1]}})
    with pytest.raises(errors.ConfigError, match="has the split 3; the values of split are 0, 1, 2"):
        build_dataset({"dataset": {"url": url, "reader": "array", "where": {"split": 3}}})
    with pytest.raises(errors.ConfigError, match="'split' holds integers, so it has no value 'val'"):
        build_dataset({"dataset": {"url": url}}, "val")


SHARED: list[tuple[dict[str, Any], dict[str, Any], str | None]] = [
    # The tables of two splits, and how many records they share.
    ({"where": {"fold": [0, 1, 2]}}, {"where": {"fold": [2, 3]}}, "6 records"),
    ({"where": {"fold": [0, 1, 2]}}, {"where": {"key": "k2"}}, "1 record "),
    ({"where": {"fold": [0, 1, 2]}}, {"where": {"fold": 3}}, None),
    ({"where": {"fold": [0, 1, 2]}}, {"where": {"key": "k3"}}, None),
    ({"where": {"fold": 0}}, {"where": None}, "6 records"),
    ({}, {"url": "{same}?readahead=true"}, "30 records"),
    ({}, {"url": "{converted}"}, "30 records"),
    ({}, {"url": ["{other}", "{link}"]}, "30 records"),
    ({"url": "{folder}/*.lmdb"}, {"url": "{same}"}, "30 records"),
    ({}, {"url": "{folder}/none.lmdb"}, None),
    ({"url": ["{same}", "{other}"]}, {"url": ["mongodb://127.0.0.1:1/db/c", "{other}"]}, "1 record "),
]


@pytest.mark.parametrize(("train", "val", "shared"), SHARED, ids=str)
def test_records_that_two_splits_share_are_found(tmp_path: Path, train: Any, val: Any, shared: str | None) -> None:
    same, other = write_store(f"lmdb://{tmp_path}/all.lmdb"), f"lmdb://{tmp_path}/other.lmdb"
    make_store({"key": "str", "fold": "int"}, [{"key": "k", "fold": 0}], other)
    (tmp_path / "link").symlink_to(tmp_path / "all.lmdb")
    converted = f"hdf5://{tmp_path}/elsewhere.h5"
    storeds.convert(same, converted)
    places = {"same": same, "other": other, "link": f"{tmp_path}/link", "folder": f"{tmp_path}", "converted": converted}

    def placed(table: dict[str, Any]) -> dict[str, Any]:
        url = table.get("url", same)
        return {
            **table,
            "url": url.format(**places) if isinstance(url, str) else [each.format(**places) for each in url],
        }

    tables = {"train": placed(train), "val": placed(val)}
    if shared is not None:
        with pytest.raises(errors.ConfigError, match=f"share {shared}.*position .*, key 'k.*allow_overlap = true"):
            build_dataset(config_of(same, tables), "train")
    build_dataset(config_of(same, tables, allow_overlap=shared is not None), "train")


def test_no_split_of_several_is_said_in_the_log(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    url = write_store(f"lmdb://{tmp_path}/x.lmdb", ["train", "val", "test"])
    assert len(keys(config_of(url, {"train": {}, "val": {}}), None)) == 30
    assert "all splits (train, val)" in caplog.text


def test_anchors_aliases_merge_keys_and_empty_splits_of_yaml_work(tmp_path: Path) -> None:
    text = """
    dataset: {url: "{split}.lmdb"}
    splits:
      train: &train
        loader: {batch_size: 8, shuffle: true}
        dataset: {where: {fold: 0}}
      more: *train
      val: {<<: *train, dataset: {where: {fold: 1}}}
      test:
    """
    config = load_config(write(tmp_path / "c.yaml", text))
    assert config.loader_for("val") == config.loader_for("more") == config.loader_for("train")
    assert config.source_for("val").where == {"fold": 1}
    assert (config.source_for("test").url, sorted(config.splits)) == ("test.lmdb", ["more", "test", "train", "val"])


# Secrets

URLS = [
    *(
        "mongodb://user:hush@h/d/c?serverSelectionTimeoutMS=50",
        "mongodb//user:hush@h/d/c",
        "mongodb:user:hush@h/d/c",
        "mongodb/user:hush@h/d/c",
    ),
    *("mongdb/user:hush?x@h/d/c", "mnogodb+srv/user:a/hush@h/d/c", "user:hush@h/d/c", "mongodb://user:hush y@h/d/c"),
    *("mongodb://h/d/c?password=hush", "mongodb://h/d/c?pasword=hush", "mongodb://h/d/c?w=1&tokn=hush"),
    *("mongodb://h/d/c?tlsCertificateKeyFilePasword=hush", "mongodb://h/d/c?secret:hush", "x.h5?api_key=hush"),
    *("x.h5?acces_key=hush&group=a", "mongodb://h/d/c?authMechansmProperties=AWS_SESSION_TOKEN:hush", "x?pwd==hush"),
]
PLACES: dict[str, Callable[[str], dict[Any, Any]]] = {
    "url": lambda url: {"dataset": {"url": url}},
    "a key of options": lambda url: {"dataset": {"url": "x", "options": {url: 1}}},
    "a key of where": lambda url: {"dataset": {"url": "x", "where": {url: ["a"]}}},
    "a key of fields": lambda url: {"dataset": {"url": "x", "fields": {url: url}}},
    "a wrong type below a key": lambda url: {"dataset": {"url": "x", "roles": {url: 1}}},
    "keys inside keys": lambda url: {"dataset": {"url": "x", "reader_options": {"a": {url: {url: [url]}}}}},
    "an unknown key": lambda url: {"dataset": {"url": "x", url: 1}},
    "an unknown table": lambda url: {url: {}, "dataset": {"url": "x"}},
    "a split": lambda url: {"dataset": {"url": "x"}, "splits": {url: {}}},
    "a setting of a split": lambda url: {"dataset": {"url": "x"}, "splits": {"val": {"dataset": {url: 1}}}},
    "a number that is too large below a key": lambda url: {"dataset": {"url": "x", "options": {url: 1 << 70}}},
}
SECRETS = [("url", url) for url in URLS] + [
    (place, url) for place in [*PLACES][1:] for url in (URLS[0], URLS[4], URLS[9])
]


@pytest.mark.parametrize(("place", "url"), SECRETS)
def test_neither_repr_nor_messages_show_a_password(url: str, place: str, caplog: pytest.LogCaptureFixture) -> None:
    mapping, shown = PLACES[place](url), []
    try:
        config = load_config(mapping)
    except errors.StoredsError as error:
        shown += [str(error), repr(error)]
    else:
        shown += [repr(config), str(config), repr(config.dataset), repr(config.splits)]
        with pytest.raises(errors.StoredsError) as raised:
            build_dataset(config)
        shown.append(str(raised.value))
    assert "hush" not in " ".join([*shown, caplog.text])


# Hydra and OmegaConf


def labels_in(loader: Iterable[Any]) -> list[list[int]]:
    return [batch[1].tolist() for batch in loader]


def test_a_config_of_omegaconf_is_one_of_mappings(config_file: Path) -> None:
    conf, mapping = pytest.importorskip("omegaconf").OmegaConf, tomllib.loads(config_file.read_text())
    config = conf.create(mapping)
    assert load_config(config) == load_config(mapping)
    merged = conf.merge(config, {"size": 2, "loader": {"batch_size": "${size}"}})
    with pytest.raises(errors.ConfigError, match="unknown key 'size'"):
        load_config(merged)
    assert labels_in(build_loader({name: merged[name] for name in mapping}, "val")) == [[0, 3], [6, 9]]
    config.dataset.url = "???"
    with pytest.raises(errors.ConfigError, match="url"):
        build_dataset({"dataset": config.dataset})


def test_single_values_are_overridden(config_file: Path) -> None:
    overrides = ["loader.batch_size=16", "dataset.transform.0.size=[4, 6]", "splits.val.dataset.transform=null"]
    config = load_config(config_file, overrides=overrides)
    assert config.loader.batch_size == 16
    assert config.dataset.transform == [{"name": "Resize", "size": [4, 6]}, "ToTensor"]
    assert config.source_for("val").transform is None


def test_hydra_instantiates_datasets_and_loaders(config_file: Path) -> None:
    instantiate = pytest.importorskip("hydra.utils").instantiate
    conf, mapping = pytest.importorskip("omegaconf").OmegaConf, tomllib.loads(config_file.read_text())
    whole = conf.create({"_target_": "storeds.build_loader", "split": "val", "config": mapping})
    assert labels_in(instantiate(whole)) == [[0, 3, 6, 9]]
    table = {"_target_": "storeds.StoreDataset", **mapping["dataset"]}
    for given in (table, conf.create(table)):
        dataset = instantiate(given, where={"split": ["val"]}, as_dict=True)
        assert dataset[1]["image"].shape == (1, 8, 8)
        assert dataset[1]["label"] == 3
