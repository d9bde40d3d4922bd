"""Configs: the same training from TOML, YAML, JSON or a mapping; strict about keys; silent about secrets."""

from __future__ import annotations

import json
import math
import os
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from msgspec import structs

import storeds
from photographs import jpeg
from storeds import build_dataset, build_loader, errors, load_config
from storeds.backends.lmdb import LmdbBackend
from storeds.config import config_schema

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

# Aliases that multiply to 9^29 values, as values and as merged keys.
BOMB = "y0: &a0 [x, x, x]\n" + "".join(f"y{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]\n" for n in range(1, 30))
MERGE_BOMB = "y0: &a0 {x: 1}\n" + "".join(
    f"y{n}: &a{n} {{<<: [{', '.join([f'*a{n - 1}'] * 9)}]}}\n" for n in range(1, 30)
)
NESTED = "[" * 50_000 + "]" * 50_000


@pytest.fixture
def url(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv("STOREDS_CACHE", str(tmp_path / "cache"))
    url = f"lmdb://{tmp_path}/all.lmdb"
    with storeds.open_writer(url, {"image": "image", "label": "int", "split": "str"}) as writer:
        writer.append({"image": jpeg(n), "label": n, "split": "val" if n % 3 == 0 else "train"} for n in range(12))
    return url


def write(path: Path, text: str) -> Path:
    path.write_text(text)
    return path


@pytest.fixture
def config_file(url: str, tmp_path: Path) -> Path:
    return write(tmp_path / "config.toml", TOML.format(url=url))


def test_toml_yaml_json_and_a_mapping_give_the_same_config(config_file: Path, tmp_path: Path) -> None:
    from_toml = load_config(config_file)
    import tomllib

    mapping = tomllib.loads(config_file.read_text())
    for suffix, text in (
        (".yaml", yaml.safe_dump(mapping)),
        (".yml", yaml.safe_dump(mapping)),
        (".json", json.dumps(mapping)),
    ):
        assert load_config(write(tmp_path / f"config{suffix}", text)) == from_toml
    assert load_config(mapping) == from_toml


def test_a_dataset_is_built_as_the_config_says(config_file: Path) -> None:
    dataset = build_dataset(load_config(config_file))
    image, label, index = dataset[11]
    assert image.shape == (1, 8, 8)
    assert (label, index, dataset.seed, len(dataset)) == (11, 11, 5, 12)


def test_a_split_overrides_dataset_and_loader(config_file: Path) -> None:
    config = load_config(config_file)
    train, val = build_loader(config, "train"), build_loader(config, "val")
    assert sorted(label for batch in train for label in batch[1].tolist()) == [1, 2, 4, 5, 7, 8, 10, 11]
    assert [batch[1].tolist() for batch in val] == [[0, 3, 6, 9]]
    assert train.drop_last
    with pytest.raises(errors.ConfigError, match="unknown split 'vla'; did you mean 'val'"):
        build_loader(config, "vla")


@pytest.mark.parametrize("splits", [{}, {"vla": {"dataset": {"where": {"split": "vla"}}}}], ids=["column", "table"])
def test_a_split_of_which_there_is_no_record_is_an_error(url: str, splits: dict[str, Any]) -> None:
    config = load_config({"dataset": {"url": url, "fields": ["label"]}, "splits": splits})
    for build in (build_dataset, build_loader):
        with pytest.raises(
            errors.ConfigError, match="has the split 'vla'; did you mean 'val'. The values of split are train, val"
        ):
            build(config, "vla")


def test_without_a_splits_table_a_split_is_a_part_of_the_url_or_a_column(url: str) -> None:
    by_column = load_config({"dataset": {"url": url, "fields": ["label"]}})
    assert [label for (label,) in build_dataset(by_column, "val")[:]] == [0, 3, 6, 9]
    by_url = load_config({"dataset": {"url": url.replace("all", "{split}"), "fields": ["label"]}})
    assert len(build_dataset(by_url, "all")) == 12
    with pytest.raises(errors.StoreNotFoundError, match="val.lmdb"):
        build_dataset(by_url, "val")


def test_a_seeded_shuffle_is_the_same_in_every_run(config_file: Path) -> None:
    config = load_config(config_file)
    orders = [[batch[2].tolist() for batch in build_loader(config, "train")] for _ in range(2)]
    assert orders[0] == orders[1]


def test_pad_names_what_is_padded_in_every_batch(config_file: Path) -> None:
    config = load_config(config_file)
    made = {"dataset": structs.asdict(config.dataset), "loader": {"batch_size": 2, "pad": [0], "num_workers": 1}}
    images, labels, _ = next(iter(build_loader(load_config(made))))
    assert images.values.shape == (2, 1, 8, 8)
    assert images.mask.all()
    assert labels.shape == (2,)


@pytest.mark.parametrize(
    ("loader", "reported"),
    [
        ({"collate": "default"}, "collate = 'default'"),
        ({"collate": "storeds.collate"}, "collate = 'storeds.collate'"),
        ({"batch_size": None}, "batch_size = null"),
    ],
)
def test_pad_without_our_batches_is_refused(url: str, loader: dict[str, Any], reported: str) -> None:
    config = load_config({"dataset": {"url": url}, "loader": {**loader, "pad": ["image"]}})
    with pytest.raises(errors.ConfigError, match=f"pad is for batches that storeds.collate makes, .* {reported}"):
        build_loader(config)


@pytest.mark.parametrize(
    ("mapping", "message"),
    [
        ({"dataset": {"url": "x", "trnsform": []}}, "dataset: unknown key 'trnsform'; did you mean 'transform'"),
        ({"dataset": {"url": "x"}, "laoder": {}}, "unknown key 'laoder'; did you mean 'loader'"),
        (
            {"dataset": {"url": "x"}, "loader": {"bach_size": 4}},
            "unknown key 'loader.bach_size'; did you mean 'batch_size'",
        ),
        ({"dataset": {"url": "x"}, "splits": {"a": {"dataste": {}}}}, "did you mean 'dataset'"),
        ({"dataset": {"url": "x"}, "loader": {"batch_size": 0}}, "loader.batch_size: expected an integer >= 1"),
        ({"dataset": {"url": "x"}, "loader": {"batch_size": "many"}}, "batch_size"),
        ({"dataset": {}}, "dataset: url is needed"),
        ({}, "dataset is needed"),
        ({"dataset": {"url": "x", "on_error": "ignore"}}, "on_error"),
        ({"dataset": {"url": "x"}, "splits": {"train": {"dataset": {"wher": {}}}}}, "did you mean 'where'"),
        ({"dataset": {"url": "x"}, "splits": {"train": {"loader": {"shufle": True}}}}, "did you mean 'shuffle'"),
        ([], "expected a mapping"),
    ],
)
def test_a_wrong_key_or_value_is_named(mapping: Any, message: str) -> None:
    with pytest.raises(errors.ConfigError, match=message):
        load_config(mapping) if mapping != [] else storeds.Config.parse(mapping)


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("config.toml", "[dataset\n", "line 1"),
        ("config.yaml", "dataset: [", "line 1"),
        ("config.json", "{", "line 1"),
        ("config.yaml", "- a\n- b\n", "expected tables"),
        ("config.ini", "", "ends in .toml"),
        ("config.yaml", "dataset: !!python/object/apply:os.system ['true']", "could not determine a constructor"),
        ("config.yaml", "dataset: {url: x}\ndataset: {url: y}", "line 2, column 1: this key appears twice"),
        ("config.json", '{"dataset": {"url": "x", "url": "y"}}', "the key 'url' appears twice"),
        ("config.toml", '[dataset]\nurl = "x"\nurl = "y"', "Cannot overwrite a value"),
        ("config.yaml", BOMB, "more than 100,000 values, aliases written out"),
        ("config.yaml", MERGE_BOMB, "more than 100,000 values, aliases written out"),
        ("config.yaml", "dataset: &a\n  url: *a\n", "more than 100,000 values, aliases written out"),
        ("config.yaml", f"dataset: {NESTED}", "nested too deep"),
        ("config.toml", f"dataset = {NESTED}", "nested too deep"),
        ("config.json", f'{{"dataset": {NESTED}}}', "nested too deep"),
    ],
    ids=lambda value: value[:40],
)
def test_a_file_that_cannot_be_parsed_is_named(tmp_path: Path, name: str, text: str, message: str) -> None:
    with pytest.raises(errors.ConfigError, match=f"{name}.*{message}"):
        load_config(write(tmp_path / name, text))


@pytest.mark.parametrize("make", [str, Path])
@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("none.toml", "no config at none.toml"),
        ("mongodb://user:secret@h/a/b", r"user:\*\*\*@h.* is a URL; expected the path of a config"),
        ("mongodb:/user:secret@h/a/b.toml", r"user:\*\*\*@h.* is a URL; expected the path of a config"),
        ("https://user:secret@h/x.toml", r"user:\*\*\*@h.* is a URL; expected the path of a config"),
        ("user:secret@h/a/b.toml", r"no config at user:\*\*\*@h/a/b"),
        ("user:secret@h/a/b", r"user:\*\*\*@h/a/b: a config ends in"),
    ],
)
def test_a_path_that_names_no_config_is_shown_without_a_password(make: Any, path: str, message: str) -> None:
    with pytest.raises(errors.StoredsError, match=message) as raised:
        load_config(make(path))
    assert "secret" not in str(raised.value)


@pytest.mark.parametrize(
    ("text", "reported"),
    [
        (
            "dataset:\n  url: mongodb://user:secret@localhost/photos/train, x: : ,",
            ["line 2, column 55: mapping values are not allowed here"],
        ),
        (
            'dataset:\n  password: "hush secret',
            ["line 2, column 13: while scanning a quoted scalar", "line 2, column 25: found unexpected end of stream"],
        ),
        ("dataset:\n  password: @secret", ["line 2, column 13", "found character '@'"]),
        ("dataset:\n  password: *secret", ["line 2, column 13: found undefined alias"]),
        ("dataset:\n  password: !secret", ["line 2, column 13: could not determine a constructor for the tag"]),
        ("dataset:\n  password: !secret!x y", ["line 2, column 13: found undefined tag handle"]),
        ("&secret a: 1\n&secret b: 2", ["line 1, column 1: found duplicate anchor", "line 2, column 1: second"]),
        ("{secret: 1}: 2", ["line 1, column 1: found unhashable key"]),
        ("dataset:\n  seed: !!int secret", ["line 2, column 9: this is not a valid int"]),
        ("dataset:\n  seed: !!timestamp secret", ["line 2, column 9: this is not a valid timestamp"]),
        ("a: 1\n---\nsecret: 1", ["line 2, column 1: but found another document"]),
        ("password: \asecret", ["unacceptable character", "position 10"]),
    ],
)
def test_errors_in_yaml_are_reported_without_what_the_file_holds(
    tmp_path: Path, text: str, reported: list[str]
) -> None:
    with pytest.raises(errors.ConfigError, match="config.yaml: ") as raised:
        load_config(write(tmp_path / "config.yaml", text))
    assert raised.value.__context__ is None  # PyYAML's error quotes the file
    for each in reported:
        assert each in str(raised.value)
    assert "cret" not in str(raised.value)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("config.toml", "[dataset]\nurl = mongodb://user:secret@h/d/c"),
        ("config.toml", '[dataset]\nurl = "mongodb://user:secret@h/d/c'),
        ("config.toml", '[dataset]\nurl = "a" secret'),
        ("config.json", '{"dataset": {"url": "secret'),
        ("config.json", '{"dataset": {"url": secret}}'),
    ],
)
def test_errors_in_toml_and_json_are_reported_without_what_the_file_holds(tmp_path: Path, name: str, text: str) -> None:
    with pytest.raises(errors.ConfigError, match=rf"{name}: .*(line .*column|at end of document)") as raised:
        load_config(write(tmp_path / name, text))
    assert "secret" not in str(raised.value)


@pytest.mark.parametrize(
    "mapping",
    [
        {"dataset": {"url": "mongodb://u:secret@h/d/c", "seed": "secret"}},
        {"dataset": "mongodb://u:secret@h/d/c"},
        {"dataset": {"options": {"password": "secret"}}},
        {"dataset": {"url": "x", "on_error": "secret"}},
    ],
)
def test_a_wrong_value_is_never_shown(mapping: dict[str, Any]) -> None:
    with pytest.raises(errors.ConfigError) as ours:
        load_config(mapping)
    assert "secret" not in str(ours.value)


def test_a_missing_key_is_named_without_a_value() -> None:
    with pytest.raises(errors.ConfigError, match="dataset: url is needed") as raised:
        load_config({"dataset": {"options": {"password": "secret"}}})
    assert "secret" not in str(raised.value)


def test_environment_variables_expand_and_a_missing_one_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STORE_HOST", "db.example")
    config = load_config({"dataset": {"url": "mongodb://${STORE_HOST}/db/c", "fields": ["${STORE_HOST}"]}})
    assert config.dataset.url == "mongodb://db.example/db/c"
    assert config.dataset.fields == ("db.example",)
    with pytest.raises(errors.ConfigError, match="variable STORE_PORT is not set"):
        load_config({"dataset": {"url": "mongodb://h:${STORE_PORT}/db/c"}})


def test_a_secret_that_looks_like_a_variable_is_not_expanded_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PASSWORD", "a${HOME}b")
    config = load_config({"dataset": {"url": "mongodb://u:${PASSWORD}@h/{split}/c"}})
    assert config.source_for("x").url == "mongodb://u:a${HOME}b@h/x/c"


def test_no_repr_shows_a_secret(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PASSWORD", "hunter2secret")
    config = load_config(
        {
            "dataset": {
                "url": "mongodb://user:${PASSWORD}@host/db/c?tlsCertificateKeyFilePassword=${PASSWORD}",
                "options": {"password": "${PASSWORD}", "nested": ["mongodb://u:${PASSWORD}@h/d/c"]},
            }
        }
    )
    for shown in (repr(config), str(config), repr(config.dataset), repr(config.source_for(None))):
        assert "hunter2secret" not in shown
    with pytest.raises(errors.ConfigError) as raised:
        load_config({"dataset": {"url": "mongodb://u:${PASSWORD}@h/d/c", "mdoe": "${PASSWORD}"}})
    assert "hunter2secret" not in str(raised.value)


def test_a_config_is_frozen(config_file: Path) -> None:
    with pytest.raises(AttributeError, match="immutable"):
        load_config(config_file).dataset.url = "other"  # type: ignore[misc]  # the point of the test


def test_the_schema_names_every_key_of_dataset_and_loader() -> None:
    schema = config_schema()
    assert set(schema["properties"]) == {"dataset", "loader", "splits", "allow_overlap"}
    keys = set(schema["$defs"]["Source"]["properties"])
    assert {"url", "reader", "decode", "transform", "where", "seed"} <= keys
    assert not schema["$defs"]["Source"]["additionalProperties"]
    json.dumps(schema)


def test_a_dataset_needs_a_url() -> None:
    with pytest.raises(errors.ConfigError, match="url is needed"):
        load_config({"dataset": {"source": "a.h5"}})


def test_a_where_of_no_values_selects_nothing(tmp_path: Path) -> None:
    url = f"lmdb://{tmp_path}/x.lmdb"
    with storeds.open_writer(url, {"x": "int"}) as writer:
        writer.append([{"x": 1}])
    config = load_config({"dataset": {"url": url, "reader": "array", "where": {"x": []}}})
    assert len(storeds.build_dataset(config)) == 0


def test_an_error_says_that_a_list_belongs_where_a_text_is() -> None:
    with pytest.raises(errors.ConfigError, match="fields: expected a table or a list"):
        load_config({"dataset": {"url": "x.lmdb", "fields": "image"}})


def test_errors_shorten_many_and_long_values(tmp_path: Path) -> None:
    url = f"lmdb://{tmp_path}/x.lmdb"
    with storeds.open_writer(url, {"text": "str", "share": "float"}) as writer:
        writer.append({"text": f"{number:05}" * 400, "share": math.nan} for number in range(1500))
    for where, says in (({"text": "0" * 3000}, "and 1480 more"), ({"share": 0.5}, "there are no values of share")):
        config = load_config({"dataset": {"url": url, "reader": "array", "where": where}})
        with pytest.raises(errors.ConfigError, match=says) as raised:
            storeds.build_dataset(config)
        assert len(str(raised.value)) < 2500


# Splits that share records


def write_store(url: str, **more: Any) -> str:
    with storeds.open_writer(url, {"key": "str", "fold": "int"} | more, overwrite=True) as writer:
        own = {"split": lambda n: n % 3 if more.get("split") == "int" else ("train", "val", "test")[n % 3]}
        writer.append({"key": f"k{n}", "fold": n % 5} | {name: own[name](n) for name in more} for n in range(30))
    return url


def config_of(url: Any, splits: dict[str, Any], **more: Any) -> storeds.Config:
    dataset = {"url": url, "reader": "array", "fields": ["key"], **more.pop("dataset", {})}
    return load_config({"dataset": dataset, "splits": {k: {"dataset": v} for k, v in splits.items()}, **more})


def keys(config: storeds.Config, split: str | int | None) -> list[str]:
    return [key for (key,) in build_dataset(config, split)[:]]


def test_a_where_of_the_dataset_is_combined_with_the_split(tmp_path: Path) -> None:
    url = write_store(f"lmdb://{tmp_path}/x.lmdb", split="str")
    config = config_of(url, {"train": {}, "val": {}}, dataset={"where": {"fold": [0, 1]}})
    assert keys(config, "train") == ["k0", "k6", "k15", "k21"]
    assert keys(config, "val") == ["k1", "k10", "k16", "k25"]
    with pytest.raises(errors.ConfigError, match="which leaves none for split 'val'"):
        config_of(url, {"train": {}, "val": {}}, dataset={"where": {"split": "train"}})


def test_a_split_of_numbers_is_named_by_a_number(tmp_path: Path) -> None:
    url = write_store(f"lmdb://{tmp_path}/x.lmdb", split="int")
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


def test_a_single_table_takes_all_records_of_a_store_without_splits(tmp_path: Path) -> None:
    url = write_store(f"lmdb://{tmp_path}/x.lmdb")
    assert len(keys(config_of(url, {"train": {}}), "train")) == 30
    with pytest.raises(errors.ConfigError, match="nothing says which records are split 'train'"):
        build_dataset(config_of(url, {}), "train")


@pytest.mark.parametrize(
    ("train", "val", "shared"),
    [
        ({}, {}, "30 records"),
        ({"where": {"fold": [0, 1, 2]}}, {"where": {"fold": [2, 3]}}, "6 records"),
        ({"where": {"fold": [0, 1, 2]}}, {"where": {"key": "k2"}}, "1 record "),
        ({"where": {"fold": [0, 1, 2]}}, {"where": {"fold": 3}}, None),
        ({"where": {"fold": [0, 1, 2]}}, {"where": {"key": "k3"}}, None),
        ({"where": {"fold": 0}}, {"where": None}, "6 records"),
        ({"where": {"fold": 0}}, {"url": "{other}"}, None),
        ({}, {"url": "{same}"}, "30 records"),
        ({}, {"url": "{same}?readahead=true"}, "30 records"),
        ({}, {"url": "{link}"}, "30 records"),
        ({}, {"url": "{copy}"}, "30 records"),
        ({}, {"url": "{converted}"}, "30 records"),
        ({}, {"url": ["{other}", "{link}"]}, "30 records"),
        ({"url": "{folder}/*.lmdb"}, {"url": "{same}"}, "30 records"),
        ({}, {"url": "{folder}/none.lmdb"}, None),
        ({}, {"where": {"no_such_field": 1}}, None),
        ({}, {"url": "mongodb://127.0.0.1:1/db/c"}, None),
        ({"url": ["{same}", "{other}"]}, {"url": ["mongodb://127.0.0.1:1/db/c", "{other}"]}, "1 record "),
    ],
)
def test_records_that_two_splits_share_are_found(tmp_path: Path, train: Any, val: Any, shared: str | None) -> None:
    same, other = write_store(f"lmdb://{tmp_path}/all.lmdb"), f"lmdb://{tmp_path}/other.lmdb"
    with storeds.open_writer(other, {"key": "str", "fold": "int"}) as writer:
        writer.append([{"key": "k", "fold": 0}])
    (tmp_path / "link").symlink_to(tmp_path / "all.lmdb")
    (tmp_path / "elsewhere").mkdir()
    shutil.copy(tmp_path / "all.lmdb", tmp_path / "elsewhere" / "copy.lmdb")
    storeds.convert(same, f"hdf5://{tmp_path}/elsewhere/all.h5")
    places = {"same": same, "other": other, "link": f"{tmp_path}/link", "folder": str(tmp_path)}
    places |= {"copy": f"{tmp_path}/elsewhere/copy.lmdb", "converted": f"hdf5://{tmp_path}/elsewhere/all.h5"}
    tables = json.loads(json.dumps({"train": train, "val": val}))
    for table in (table for table in tables.values() if "url" in table):
        url = table["url"]
        table["url"] = url.format(**places) if isinstance(url, str) else [each.format(**places) for each in url]
    config = config_of(same, tables)
    if shared is None:
        build_dataset(config, "train")
        return
    with pytest.raises(errors.ConfigError, match=f"share {shared}.*position .*, key 'k.*allow_overlap = true"):
        build_dataset(config, "train")
    build_dataset(config_of(same, tables, allow_overlap=True), "train")


def test_a_list_of_which_only_a_part_has_a_placeholder_shares_the_rest(tmp_path: Path) -> None:
    for name in ("train", "val"):
        with storeds.open_writer(f"lmdb://{tmp_path}/{name}.lmdb", {"key": "str"}) as writer:
            writer.append([{"key": name}])
    with storeds.open_writer(f"lmdb://{tmp_path}/extra.lmdb", {"key": "str"}) as writer:
        writer.append([{"key": "extra"}])
    urls = [f"{tmp_path}/{{split}}.lmdb", f"{tmp_path}/extra.lmdb"]
    assert keys(config_of(urls[0], {"train": {}, "val": {}}), "val") == ["val"]
    with pytest.raises(errors.ConfigError, match="splits 'val' and 'train' of the config share 1 record .*'extra'"):
        build_dataset(config_of(urls, {"train": {}, "val": {}}), "val")


def test_splits_of_a_store_in_memory_share_records_too() -> None:
    write_store("memory://config-shared")
    with pytest.raises(errors.ConfigError, match="share 30 records of memory://config-shared"):
        build_dataset(config_of("memory://config-shared", {"train": {}, "val": {}}), "val")


def test_looking_for_shared_records_reads_no_column_where_wheres_exclude_each_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = write_store(f"lmdb://{tmp_path}/x.lmdb", split="str")
    read: list[str] = []
    column = LmdbBackend.column

    def counted(backend: LmdbBackend, name: str) -> Any:
        read.append(name)
        return column(backend, name)

    monkeypatch.setattr(LmdbBackend, "column", counted)
    monkeypatch.setenv("STOREDS_CACHE", str(tmp_path / "fresh"))
    build_dataset(config_of(url, {name: {} for name in ("train", "val", "test")}), "train")
    assert read == ["split"]  # for the selection itself


def test_no_split_of_several_is_said_in_the_log(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    url = write_store(f"lmdb://{tmp_path}/x.lmdb", split="str")
    assert len(keys(config_of(url, {"train": {}, "val": {}}), None)) == 30
    assert "the records of all splits (train, val) are taken together" in caplog.text
    with pytest.raises(errors.ConfigError, match=r"url has \{split\}, so name a split"):
        build_dataset(config_of(f"{tmp_path}/{{split}}.lmdb", {}))


def test_anchors_aliases_and_merge_keys_work(tmp_path: Path) -> None:
    text = """
    dataset: {url: x.lmdb}
    splits:
      train: &train
        loader: {batch_size: 8, shuffle: true}
        dataset: {where: {fold: 0}}
      more: *train
      val: {<<: *train, dataset: {where: {fold: 1}}}
    """
    config = load_config(write(tmp_path / "c.yaml", text))
    assert config.loader_for("val") == config.loader_for("more") == config.loader_for("train")
    assert config.source_for("val").where == {"fold": 1}


@pytest.mark.parametrize(
    ("override", "says"),
    [
        ("loader.batch_size", "must read table.key=value"),
        ("loader..x=1", "must read table.key=value"),
        ("loader.batch_size=", "has no value"),
        ("loader.batch_size=[1", "neither TOML nor JSON"),
        ("splits.vla.loader.shuffle=true", "unknown split 'vla'; did you mean 'val'"),
        ("dataset.url.x=1", "its parent is a str, not a table"),
        ("dataset.transform.7=null", "the list has 1 items, counted from 0, and no item .7"),
        ("datset.url=x", "unknown key 'datset'; did you mean 'dataset'"),
        ("mongodb://user:secret@h/d/c", "must read table.key=value"),
        ("loader.batch_size=secret: [", "batch_size: expected an integer"),
    ],
)
def test_a_wrong_override_is_named_without_its_value(override: str, says: str) -> None:
    config = {"dataset": {"url": "x", "transform": ["ToTensor"]}, "splits": {"val": {}}}
    with pytest.raises(errors.ConfigError, match=says) as raised:
        load_config(config, overrides=[override])
    assert "secret" not in str(raised.value)


def test_a_yaml_file_without_pyyaml_names_the_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "storeds.config.yaml_text", None)
    with pytest.raises(errors.MissingDependencyError, match=r"pip install 'storeds\[yaml\]'"):
        load_config(write(tmp_path / "c.yaml", "dataset: {url: x}"))


@pytest.mark.timeout(20)
def test_a_pipe_is_no_config(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.toml")
    with pytest.raises(errors.ConfigError, match=r"pipe\.toml: it is not a regular file"):
        load_config(tmp_path / "pipe.toml")
