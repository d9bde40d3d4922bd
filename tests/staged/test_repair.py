"""A local copy that decays is copied again, once, and counted; what is wrong on both sides is an error, never other data."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import storeds
from s3_server import BreakingProxy
from shares import FULL, SEED
from staged._stores import COUNT, numbers, upload, write
from storeds import StoreDataset, StoreLoader, errors, ops
from storeds.testing import run_mongod

FAULTS = 200 if FULL else 12


def damage(path: Path, number: int) -> None:
    """Change a byte of the blob of a record."""
    data = bytearray(path.read_bytes())
    data[data.rindex(bytes([number]) * 1000) + 500] ^= 16
    path.write_bytes(data)


def copies(cache: Path) -> list[Path]:
    return [path for pattern in ("*.lmdb", "*.h5", "store/members/*") for path in cache.glob(f"*/{pattern}")]


@pytest.mark.parametrize("kind", ["versions", "hdf5", "lmdb"])
def test_a_damaged_copy_is_copied_again_and_counted(kind: str, tmp_path: Path) -> None:
    cache, source = tmp_path / "cache", tmp_path / "mounted"
    source.mkdir()
    url = f"lmdb://{source}/" if kind == "versions" else f"{source}/a.{kind}".replace(".hdf5", ".h5")
    if kind == "versions":
        storeds.append(url, write(f"hdf5://{tmp_path}/a.h5"))
    else:
        write(url)
    ops.stage(url, cache)
    with storeds.open_backend(url, stage=cache) as backend:
        backend.get_many([3])
        (path,) = copies(cache)
        before = path.read_bytes()
        damage(path, 7)
        expected = [{"blob": bytes([n]) * 20_000, "n": n, "key": f"k{n}"} for n in range(COUNT)]
        assert backend.get_many(range(COUNT)) == expected
        assert copies(cache) == [path]
        assert path.read_bytes() == before
        assert [each.repaired for each in ops.staged(cache)] == [1]


def test_a_damaged_copy_of_mongodb_says_what_to_do(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with run_mongod(tmp_path) as uri:
        url, cache = write(f"{uri}/db/train"), tmp_path / "cache"
        with storeds.open_backend(url, stage=cache) as backend:
            damage(copies(cache)[0], 7)
            assert isinstance(backend.get_many([7])[0], errors.RecordError)
        (name,) = [each.name for each in ops.staged(cache)]
        assert f"remove it, storeds stage --remove {name}" in caplog.text
        ops.remove_staged(name, cache)
        assert numbers(url, stage=cache) == [*range(COUNT)]


def test_a_damaged_column_is_copied_again_and_counted(tmp_path: Path) -> None:
    url, cache = f"lmdb://{tmp_path}/mounted/", tmp_path / "cache"
    storeds.append(url, write(f"hdf5://{tmp_path}/a.h5"))
    storeds.edit(url, set={f"k{n}": {"n": -n} for n in range(COUNT)}, drop=["k5"])
    expected = numbers(url)
    ops.stage(url, cache)
    columns = [*cache.glob("*/store/columns/*")]
    assert len(columns) == 3
    for path in columns:
        data = bytearray(path.read_bytes())
        data[-3] ^= 4
        path.write_bytes(data)
    assert numbers(url, stage=cache) == expected
    assert [each.repaired for each in ops.staged(cache)] == [2]  # one is checksums, which reading does not need


def test_many_workers_that_meet_the_damage_copy_once(bucket: Any, proxy: BreakingProxy, tmp_path: Path) -> None:
    size = upload(bucket, Path(write(str(tmp_path / "a.h5"))), "decayed/a.h5")
    dataset = StoreDataset("s3://bucket/decayed/a.h5", reader="array", fields=["n", "blob"], stage=tmp_path / "cache")
    (path,) = copies(tmp_path / "cache")
    damage(path, 7)
    before = proxy.received
    loader = StoreLoader(dataset, batch_size=4, num_workers=2)
    assert sorted(int(n) for batch in loader for n in batch[0]) == [*range(COUNT)]
    assert size <= proxy.received - before < 1.1 * size
    assert [each.repaired for each in ops.staged(tmp_path / "cache")] == [1]


def test_a_member_that_somebody_removed_is_copied_again(tmp_path: Path) -> None:
    url, cache = f"lmdb://{tmp_path}/mounted/", tmp_path / "cache"
    storeds.append(url, write(f"hdf5://{tmp_path}/a.h5"))
    ops.stage(url, cache)
    (member,) = copies(cache)
    member.unlink()
    assert numbers(url, stage=cache) == [*range(COUNT)]


def test_another_store_at_the_same_place_replaces_the_copy(tmp_path: Path) -> None:
    url, cache, old = f"lmdb://{tmp_path}/mounted/", tmp_path / "cache", tmp_path / "old"
    source = write(f"hdf5://{tmp_path}/a.h5")
    storeds.append(url, source)
    assert numbers(url, stage=cache) == [*range(COUNT)]
    (tmp_path / "mounted").rename(old)
    storeds.append(url, source)  # the same names, other builds
    damage(next((old / "members").iterdir()), 7)
    with storeds.open_backend(url, stage=cache) as backend:
        assert [record["n"] for record in backend.get_many(range(COUNT))] == [*range(COUNT)]  # type: ignore[index]  # none is bad
        assert backend.meta.build == storeds.open_backend(url).meta.build


def test_damage_on_both_sides_is_a_bad_record_and_the_rest_is_read(tmp_path: Path) -> None:
    path, cache = write(str(tmp_path / "a.h5")), tmp_path / "cache"
    with storeds.open_backend(path, stage=cache) as backend:
        (copy,) = copies(cache)
        for each in (Path(path), copy):
            status = each.stat()
            damage(each, 7)
            os.utime(each, ns=(status.st_atime_ns, status.st_mtime_ns))
        found = backend.get_many(range(COUNT), ["n", "blob"])
        assert [at for at, record in enumerate(found) if isinstance(record, errors.RecordError)] == [7]
        assert backend.get_many([8], ["n"]) == [{"n": 8}]
    assert [each.repaired for each in ops.staged(cache)] == [0]


def test_a_disk_that_is_full_is_an_error_at_once(
    bucket: Any, proxy: BreakingProxy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("STOREDS_STAGE", str(tmp_path / "cache"))
    upload(bucket, Path(write(str(tmp_path / "a.h5"))), "full/a.h5")
    code = "import resource as r; r.setrlimit(r.RLIMIT_FSIZE, (500_000, 500_000)); import storeds; "
    status, _, err = run(code + "storeds.open_backend('s3://bucket/full/a.h5')", None)
    assert status == 1
    assert "UnavailableError: s3://bucket/full/a.h5 cannot be staged in" in err.splitlines()[-1]
    assert "File too large" in err.splitlines()[-1]
    assert numbers("s3://bucket/full/a.h5") == [*range(COUNT)]


def test_random_faults_give_the_same_records_or_an_error(
    bucket: Any, proxy: BreakingProxy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Deaths, a full disk, decay here, other bytes there, broken answers, no server for a moment: in any order."""
    import obstore

    chance, cache, local = random.Random(SEED), tmp_path / "cache", tmp_path / "local"
    monkeypatch.setenv("STOREDS_STAGE", str(cache))
    own = cache / "mine" / "notes.txt"
    own.parent.mkdir(parents=True)
    own.write_text("not of storeds")
    for number in range(3):
        storeds.append(f"lmdb://{local}/", write(f"hdf5://{tmp_path}/{number}.h5", number * COUNT))
    upload(bucket, local, "faults")
    members = sorted((local / "members").iterdir())
    code = "import storeds; b = storeds.open_backend('s3://bucket/faults/'); print(*(r['n'] for r in b.get_many(range(len(b)))))"
    outcomes = set[tuple[str, int]]()
    for number in range(FAULTS):
        fault = chance.choice(["kill", "decay", "remote", "cut", "restart", "disk", "elsewhere", "remove"])
        if fault == "remote":
            member = chance.choice(members)
            obstore.put(bucket, f"faults/members/{member.name}", flipped(member, chance))
        elif fault == "cut":
            cut = chance.randrange(1_000_000)
            proxy.fault = lambda at, first=proxy.connections, cut=cut: cut if at <= first + 3 else None  # type: ignore[misc]
        elif fault == "restart":
            proxy.fault = lambda at, first=proxy.connections: 0 if at <= first + 12 else None  # type: ignore[misc]
        elif fault == "elsewhere":
            monkeypatch.setenv("STOREDS_STAGE", str(tmp_path / f"other{number}"))
        else:
            harm_copy(fault, cache, chance)
        limit = "import resource as r; r.setrlimit(r.RLIMIT_FSIZE, (500_000, 500_000)); " if fault == "disk" else ""
        status, out, err = run(limit + code, chance.uniform(0.2, 1.5) if fault == "kill" else None)
        proxy.fault = lambda _: None
        monkeypatch.setenv("STOREDS_STAGE", str(cache))
        upload(bucket, local, "faults")
        if status == 0:
            assert [int(n) for n in out.split()] == [*range(3 * COUNT)]
        elif fault != "kill":
            assert fault in ("remote", "disk")
            assert "storeds.errors." in err.splitlines()[-1]
        outcomes.add((fault, status))
        assert own.read_text() == "not of storeds"
    assert len(outcomes) > 3
    assert numbers("s3://bucket/faults/") == [*range(3 * COUNT)]
    assert all(ops.verify_staged(cache).values())


def harm_copy(fault: str, cache: Path, chance: random.Random) -> None:
    if fault == "decay" and copies(cache):
        path = chance.choice(copies(cache))
        path.write_bytes(flipped(path, chance))
    elif fault == "remove":
        for each in ops.staged(cache):
            ops.remove_staged(each.name, cache)


def flipped(path: Path, chance: random.Random) -> bytes:
    """Return the bytes of a file with one bit changed."""
    data = bytearray(path.read_bytes())
    data[chance.randrange(len(data))] ^= 1 << chance.randrange(8)
    return bytes(data)


def run(code: str, killed_after: float | None) -> tuple[int, str, str]:
    """Run a program, and return its status and what it wrote; it may be killed, with the process that copies for it."""
    running = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    if killed_after is not None:
        with contextlib.suppress(subprocess.TimeoutExpired):
            running.wait(killed_after)
        with contextlib.suppress(OSError):
            for child in Path(f"/proc/{running.pid}/task/{running.pid}/children").read_text().split():
                os.kill(int(child), signal.SIGKILL)
        running.kill()
    out, err = running.communicate(timeout=120)
    return running.returncode, out, err
