"""A store in the cloud, on a mounted disk or in MongoDB is copied once a machine, verified, and read from the copy."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

import storeds
from _packing import storeds_command, storeds_json
from _writing import die_at_file_operation, fork, wait_for
from s3_server import BreakingProxy
from shares import FULL, SEED
from staged._stores import COUNT, numbers, upload, write
from storeds import StoreDataset, StoreLoader, errors, ops
from storeds.config import build_dataset
from storeds.testing import run_mongod


@pytest.mark.parametrize("suffix", ["h5", "lmdb"])
def test_a_file_in_the_cloud_is_copied_once_by_all_processes(
    bucket: Any, proxy: BreakingProxy, tmp_path: Path, suffix: str
) -> None:
    whole = Path(write(str(tmp_path / f"train.{suffix}")))
    size = upload(bucket, whole, f"once-{suffix}/train.{suffix}")
    url, cache = f"s3://bucket/once-{suffix}/train.{suffix}", tmp_path / "cache"

    code = f"import storeds; print(len(storeds.open_backend({url!r}, stage={str(cache)!r})))"
    readers = [subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE) for _ in range(8)]
    assert [int(reader.communicate(timeout=120)[0]) for reader in readers] == [COUNT] * 8
    assert size < proxy.received < 1.02 * size + 40_000  # headers
    before = proxy.received
    assert numbers(url, stage=cache) == [*range(COUNT)]
    assert proxy.received - before < 2_000  # asks whether it has changed
    assert [each.url for each in ops.staged(cache)] == [url]


def test_a_process_forked_after_the_cloud_was_read_refuses_to_read_it(
    bucket: Any, proxy: BreakingProxy, tmp_path: Path
) -> None:
    upload(bucket, Path(write(str(tmp_path / "a.h5"))), "forked/a.h5")
    assert len(numbers("s3://bucket/forked/a.h5", stage=tmp_path / "cache")) == COUNT

    def read() -> None:
        with pytest.raises(errors.UnavailableError, match="forked from one that had read from the cloud"):
            storeds.open_backend("s3://bucket/forked/a.h5", stage=tmp_path / "other")

    assert wait_for(fork(read)) == 0


def test_a_versioned_store_copies_what_is_new(bucket: Any, proxy: BreakingProxy, tmp_path: Path) -> None:
    local, cache, url = f"lmdb://{tmp_path}/local/", tmp_path / "cache", "s3://bucket/versions/"
    storeds.append(local, write(f"hdf5://{tmp_path}/a.h5"))
    upload(bucket, tmp_path / "local", "versions")
    assert numbers(url, stage=cache) == [*range(COUNT)]
    storeds.append(local, write(f"hdf5://{tmp_path}/b.h5", COUNT, 5))
    storeds.edit(local, drop=["k0"], set={"k1": {"n": 77}})
    upload(bucket, tmp_path / "local", "versions")
    before = proxy.received
    dataset = StoreDataset(url, reader="array", stage=str(cache))
    assert dataset.column("n").tolist() == [77, *range(2, COUNT + 5)]
    assert proxy.received - before < 200_000  # of the new member and its columns, and nothing of the old one
    assert numbers(f"{url}?version=1", stage=cache) == [*range(COUNT)]
    assert dataset.backend.meta.id == storeds.info(local).id
    config = {
        "dataset": {"url": url, "reader": "array", "fields": ["n"], "stage": {"path": str(cache), "limit": "1GB"}}
    }
    loader = StoreLoader(build_dataset(config), batch_size=8, num_workers=2, start_method="spawn")
    assert sorted(int(n) for (batch,) in loader for n in batch) == sorted(dataset.column("n").tolist())


def test_broken_answers_are_asked_again_and_give_no_other_data(
    bucket: Any, proxy: BreakingProxy, tmp_path: Path
) -> None:
    upload(bucket, Path(write(str(tmp_path / "broken.h5"))), "broken.h5")
    rounds = 12 if FULL else 3
    for number in range(rounds):
        cut = (SEED + number * 7919) % 1_000_000
        proxy.fault = lambda at, first=proxy.connections, cut=cut: cut if at <= first + 3 else None  # type: ignore[misc]
        assert numbers("s3://bucket/broken.h5", stage=tmp_path / f"cache{number}") == [*range(COUNT)]


def test_without_the_network_a_complete_copy_serves_and_nothing_else(
    bucket: Any, proxy: BreakingProxy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from storeds.backends.staged import remote

    monkeypatch.setattr(remote, "_DEADLINE", 0.0)
    upload(bucket, Path(write(str(tmp_path / "a.h5"))), "offline/a.h5")
    assert numbers("s3://bucket/offline/a.h5", stage=tmp_path / "cache") == [*range(COUNT)]
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")
    assert numbers("s3://bucket/offline/a.h5", stage=tmp_path / "cache") == [*range(COUNT)]
    assert not ops.stage("s3://bucket/offline/a.h5", tmp_path / "cache").is_current
    with pytest.raises(errors.UnavailableError, match="s3://bucket/offline/b.h5 cannot be read after") as caught:
        storeds.open_backend("s3://bucket/offline/b.h5", stage=tmp_path / "cache")
    assert "never-shown" not in str(caught.value)


def test_what_is_not_there_and_where_to_put_it_are_errors(
    proxy: BreakingProxy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("STOREDS_STAGE", raising=False)
    with pytest.raises(errors.ConfigError, match="say where, stage='/local/cache', or set STOREDS_STAGE") as caught:
        storeds.open_backend("s3://key:hunter2@bucket/nothing.h5?token=hunter3")
    assert "hunter" not in str(caught.value)
    for url in ("s3://bucket/nothing.h5", "s3://bucket/nothing/"):
        with pytest.raises(errors.StoreNotFoundError, match=r"nothing"):
            storeds.open_backend(url, stage=tmp_path / "cache")
    wrong: list[Any] = [{"path": str(tmp_path), "limit": "many"}, {"pth": "x"}, 7]
    for stage in wrong:
        with pytest.raises(errors.ConfigError, match="stage"):
            storeds.open_backend("s3://bucket/nothing.h5", stage=stage)
    with pytest.raises(errors.ConfigError, match="stores of memory are not staged"):
        storeds.open_backend("memory://x", stage=tmp_path)


def test_the_limit_is_checked_before_anything_is_copied(tmp_path: Path) -> None:
    path = write(str(tmp_path / "mounted.h5"))
    with pytest.raises(errors.StoredsError, match=r"needs 1.2 MB .*are missing. Raise the limit, or remove copies"):
        storeds.open_backend(path, stage={"path": tmp_path / "cache", "limit": "1MB"})
    assert not [each for each in (tmp_path / "cache").rglob("*") if each.is_file() and each.name != "lock"]


@pytest.mark.parametrize("kind", ["file", "versions"])
def test_a_death_at_any_file_operation_leaves_nothing_that_is_taken_for_whole(kind: str, tmp_path: Path) -> None:
    source, cache = tmp_path / "mounted", tmp_path / "cache"
    url = f"lmdb://{source}/" if kind == "versions" else f"{source}/a.h5"
    source.mkdir()
    if kind == "versions":
        storeds.append(url, write(f"hdf5://{tmp_path}/a.h5"))
        storeds.edit(url, drop=["k3"])
    else:
        write(url)
    expected = numbers(url)
    status, number, step = -signal.SIGKILL, SEED % 4, 1 if FULL else 4
    while status == -signal.SIGKILL:
        number += step
        status = die_at_file_operation(lambda: ops.stage(url, cache), "cache", number)
        for name in [each.name for each in ops.staged(cache) if each.is_complete]:
            assert ops.verify_staged(cache)[name]
        assert numbers(url, stage=cache) == expected
        for each in ops.staged(cache):
            ops.remove_staged(each.name, cache)
        assert not any(cache.iterdir())
    assert status == 0


def test_damage_on_the_way_is_copied_again_or_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from storeds.backends.staged.remote import Disk

    path, copy, left = write(str(tmp_path / "a.lmdb")), Disk.copy, 1

    def damaging(self: Disk, name: str, target: Path, moved: Any) -> Any:
        nonlocal left
        state = copy(self, name, target, moved)
        if left:
            left -= 1
            with open(target, "r+b") as file:
                file.seek(state.size // 2)
                file.write(b"damage!")
        return state

    monkeypatch.setattr(Disk, "copy", damaging)
    assert numbers(path, stage=tmp_path / "one") == [*range(COUNT)]
    left = 2
    with pytest.raises(errors.FormatError, match="what was copied is damaged"):
        storeds.open_backend(path, stage=tmp_path / "two")
    assert not ops.staged(tmp_path / "two")


def test_a_store_that_was_replaced_is_copied_again(tmp_path: Path) -> None:
    path = write(str(tmp_path / "a.h5"))
    assert len(numbers(path, stage=tmp_path / "cache")) == COUNT
    os.remove(path)
    write(path, 100, 7)
    assert numbers(path, stage=tmp_path / "cache") == [*range(100, 107)]
    assert len([*(tmp_path / "cache").rglob("*.h5")]) == 1


def test_mongodb_is_staged_as_lmdb_with_the_same_id(tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    with run_mongod(tmp_path) as uri:
        url = write(f"{uri}/db/train")
        found = ops.stage(url, cache)
        assert (storeds.info(found.local).id, found.local.endswith(".lmdb")) == (storeds.info(url).id, True)
        assert ops.stage(url, cache).moved == 0
    short = f"{url}?serverSelectionTimeoutMS=200&timeoutMS=1000"
    assert numbers(found.local) == [*range(COUNT)]
    with pytest.raises(errors.UnavailableError):
        storeds.open_backend(short, stage=tmp_path / "other")


def test_the_command_stages_lists_verifies_and_removes(tmp_path: Path) -> None:
    path, cache = write(str(tmp_path / "a.lmdb")), tmp_path / "cache"
    assert "1.3 MB" in storeds_command("stage", path, "--path", cache)
    (row,) = storeds_json("stage", "--list", "--path", cache)
    assert (row["url"], row["is_complete"]) == (path, True)
    assert storeds_json("stage", "--verify", "--path", cache) == {row["name"]: True}
    (copy,) = (cache / row["name"]).glob("*.lmdb")
    data = bytearray(copy.read_bytes())
    at = data.rindex(bytes([59]) * 1000)
    data[at] ^= 1
    copy.write_bytes(data)
    assert "damaged" in storeds_command("stage", "--verify", "--path", cache, code=1)
    (cache / "mine").mkdir()
    storeds_command("stage", "--remove", row["name"], "--path", cache)
    assert [each.name for each in cache.iterdir()] == ["mine"]
    assert "error" in storeds_command("stage", "--remove", "mine", "--path", cache, code=2)


def test_a_web_server_gives_files_and_named_versions(tmp_path: Path) -> None:
    root = tmp_path / "site"
    storeds.append(f"lmdb://{root}/train/", write(f"hdf5://{tmp_path}/a.h5"))
    write(str(root / "plain.h5"))

    class Quiet(SimpleHTTPRequestHandler):
        def log_message(self, *_: Any) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=str(root))) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        place = f"http://127.0.0.1:{server.server_port}"
        assert numbers(f"{place}/plain.h5", stage=tmp_path / "cache") == [*range(COUNT)]
        assert numbers(f"{place}/train/?version=1", stage=tmp_path / "cache") == [*range(COUNT)]
        server.shutdown()
