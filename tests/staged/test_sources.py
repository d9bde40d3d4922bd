"""Sources of pack that lie elsewhere: their files are copied first, and the store is that of the files on this machine."""

from __future__ import annotations

import io
import tarfile
import threading
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

import storeds
from mask_files import write as write_files
from photographs import jpeg
from s3_server import BreakingProxy
from staged._stores import upload, write
from storeds import errors, ops

FILES = {f"class{n % 3}/{n:02d}.jpg": jpeg(n % 12) + bytes([n]) for n in range(30)}


@pytest.fixture
def photographs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("STOREDS_STAGE", str(tmp_path / "cache"))
    return write_files(tmp_path / "photographs", FILES)


@pytest.fixture
def site(tmp_path: Path) -> Iterator[str]:
    """URL of a web server with the folder ``site``."""

    class Quiet(SimpleHTTPRequestHandler):
        def log_message(self, *_: Any) -> None:
            pass

    (tmp_path / "site").mkdir()
    with ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=str(tmp_path / "site"))) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


def test_a_folder_of_photographs_in_the_cloud(
    bucket: Any, proxy: BreakingProxy, photographs: Path, tmp_path: Path
) -> None:
    import obstore

    size = upload(bucket, photographs, "photographs")
    local = storeds.pack(photographs, f"lmdb://{tmp_path}/local.lmdb")
    before = proxy.received
    packed = storeds.pack("s3://bucket/photographs/", f"lmdb://{tmp_path}/remote.lmdb")
    assert (packed.id, packed.columns) == (local.id, local.columns)
    assert size < proxy.received - before < 1.02 * size + 40_000
    before = proxy.received
    obstore.delete(bucket, "photographs/class0/00.jpg")
    obstore.put(bucket, "photographs/class1/new.jpg", jpeg(3))
    again = storeds.pack("s3://bucket/photographs/", f"lmdb://{tmp_path}/again.lmdb")
    (photographs / "class0/00.jpg").unlink()
    (photographs / "class1/new.jpg").write_bytes(jpeg(3))
    assert again.id == storeds.pack(photographs, f"hdf5://{tmp_path}/local.h5").id
    assert proxy.received - before < len(jpeg(3)) + 40_000
    with storeds.open_backend(f"lmdb://{tmp_path}/again.lmdb") as backend:
        assert "class1/new.jpg" in backend.column("key").tolist()  # type: ignore[attr-defined]
    (copy,) = ops.staged(tmp_path / "cache")
    ops.remove_staged(copy.name, tmp_path / "cache")
    storeds.append("s3://bucket/packed/", "s3://bucket/photographs/")
    assert storeds.info("s3://bucket/packed/").id == again.id


def test_what_is_removed_is_a_file_that_was_copied(
    bucket: Any, proxy: BreakingProxy, photographs: Path, tmp_path: Path
) -> None:
    import obstore

    upload(bucket, photographs, "removed")
    obstore.put(bucket, "removed/class0/more.jpg", jpeg(1))
    storeds.pack("s3://bucket/removed/", f"lmdb://{tmp_path}/first.lmdb")
    (copied,) = (tmp_path / "cache").glob("*/copied.jsonl")
    (tmp_path / "cache/mine.txt").write_text("not of storeds")
    with copied.open("a") as lines:  # as after damage of the list
        lines.write('["../../mine.txt", 1, "x"]\n["/etc/nothing", 1, "x"]\n[7, 1, "x"]\n7\n["torn')
    obstore.delete(bucket, "removed/class0/more.jpg")
    obstore.put(bucket, "removed/class0/more.jpg/inside.jpg", jpeg(2))
    for number in range(2):
        storeds.pack("s3://bucket/removed/", f"lmdb://{tmp_path}/{number}.lmdb", kind="imagefolder")
    assert (copied.parent / "files/class0/more.jpg/inside.jpg").read_bytes() == jpeg(2)
    assert (tmp_path / "cache/mine.txt").read_text() == "not of storeds"


def test_tar_shards_of_a_web_server(site: str, photographs: Path, tmp_path: Path) -> None:
    for number in range(3):
        with tarfile.open(tmp_path / f"site/train-{number:03}.tar", "w") as tar:
            for at in range(number * 4, number * 4 + 4):
                for suffix, data in (("jpg", jpeg(at)), ("cls", str(at % 2).encode())):
                    member = tarfile.TarInfo(f"{at:05}.{suffix}")
                    member.size = len(data)
                    tar.addfile(member, io.BytesIO(data))
    local = storeds.pack(f"{tmp_path}/site/train-{{000..002}}.tar", f"lmdb://{tmp_path}/local.lmdb")
    assert local.count == 12
    for name, source in {
        "range": f"{site}/train-{{000..002}}.tar",
        "list": [f"{site}/train-{number:03}.tar" for number in range(3)],
    }.items():
        assert storeds.pack(source, f"lmdb://{tmp_path}/{name}.lmdb").id == local.id
    one = storeds.pack(f"{site}/train-001.tar", f"lmdb://{tmp_path}/one.lmdb")
    assert one.count == 4
    with pytest.raises(errors.StoreNotFoundError, match=r"train-003.tar"):
        storeds.pack(f"{site}/train-{{000..003}}.tar", f"lmdb://{tmp_path}/missing.lmdb")
    with pytest.raises(errors.UnavailableError, match="web servers list no files"):
        storeds.pack(f"{site}/", f"lmdb://{tmp_path}/missing.lmdb")


def test_a_store_in_the_cloud_is_a_source_too(
    bucket: Any, proxy: BreakingProxy, photographs: Path, tmp_path: Path
) -> None:
    local = write(f"lmdb://{tmp_path}/a.lmdb")
    upload(bucket, tmp_path / "a.lmdb", "source/a.lmdb")
    storeds.append("s3://bucket/copied/", "s3://bucket/source/a.lmdb")
    assert storeds.info("s3://bucket/copied/").id == storeds.info(local).id
    for source in ("s3://bucket/copied/", "s3://bucket/copied/?version=1"):
        target = f"hdf5://{tmp_path}/{len(source)}.h5"
        assert storeds.pack(source, target).id == storeds.info(local).id
    assert storeds.convert("s3://bucket/copied/", f"lmdb://{tmp_path}/c.lmdb").id == storeds.info(local).id


@pytest.mark.parametrize("key", ["../../escaped.jpg", "a//b.jpg", "./c.jpg"])
def test_names_that_would_leave_the_folder_are_refused(
    key: str, bucket: Any, proxy: BreakingProxy, photographs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from storeds.backends.staged.remote import Objects

    walked = [(key, Objects("s3://bucket/x").state)]  # servers and clients clean such names up today
    monkeypatch.setattr(Objects, "walk", lambda self: iter(walked))
    with pytest.raises(errors.ConfigError, match="is no path below a folder"):
        storeds.pack("s3://bucket/x/", f"lmdb://{tmp_path}/x.lmdb")
    assert not [*tmp_path.rglob("*escaped*")]
