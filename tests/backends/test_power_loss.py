"""A loss of power at any moment: the target is as before or whole, and going on gives the same store.

The stores lie on a file system of their own, on a loop device. A copy of the device, taken while nothing is written to it,
is what a loss of power would leave: what the kernel still holds back is lost.
"""

from __future__ import annotations

import os
import random
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

import storeds
from _writing import content, fork
from photographs import jpeg
from shares import FULL, SEED

MOMENTS = 150 if FULL else 5
SIZE = 48 << 20
COUNT = 240
FIELDS = {"image": "image", "label": "int", "key": "str"}


def records(label: int) -> Iterator[dict[str, Any]]:
    for number in range(COUNT):
        yield {"image": jpeg(number % 12) + bytes([number]) * 9000, "label": label, "key": f"{label}/{number}"}


def write(url: str, label: int, *, overwrite: bool, resume: bool = False) -> str:
    with storeds.open_writer(url, FIELDS, overwrite=overwrite, resume=resume, commit_every=8) as writer:
        everything = list(records(label))
        for first in range(writer.count, COUNT, 8):
            writer.append(everything[first : first + 8])
        return writer.publish().id


@contextmanager
def mounted(image: Path, folder: Path) -> Iterator[str]:
    """Mount a file system at `folder`; yield the folder of its loop device's counters."""
    done = subprocess.run(["losetup", "--find", "--show", str(image)], capture_output=True, text=True)
    if done.returncode:
        pytest.skip(f"no loop device: {done.stderr.strip()}")
    device = done.stdout.strip()
    try:
        if subprocess.run(["mount", "-o", "commit=1", device, str(folder)], capture_output=True).returncode:
            pytest.skip("this process may not mount")
        try:
            yield f"/sys/block/{Path(device).name}"
        finally:
            subprocess.run(["umount", str(folder)], check=True)
    finally:
        subprocess.run(["losetup", "--detach", device], check=True)


def copy_at_rest(image: Path, to: Path, counters: str) -> None:
    """Copy a device in a moment in which nothing is written to it."""
    while True:
        before = Path(counters, "stat").read_text()
        if Path(counters, "inflight").read_text().split() == ["0", "0"]:
            subprocess.run(["cp", "--sparse=always", str(image), str(to)], check=True)
            if Path(counters, "stat").read_text() == before:
                return


@pytest.fixture
def device(tmp_path: Path) -> tuple[Path, Path]:
    """Return an image of a new file system, and the folder where to mount it."""
    if os.geteuid() != 0 or shutil.which("mkfs.ext4") is None or shutil.which("losetup") is None:
        pytest.skip("needs root, mkfs.ext4 and losetup")
    image, folder = tmp_path / "disk", tmp_path / "mounted"
    folder.mkdir()
    with image.open("wb") as file:
        file.truncate(SIZE)
    subprocess.run(["mkfs.ext4", "-q", str(image)], check=True)
    return image, folder


@pytest.mark.slow
@pytest.mark.parametrize(("engine", "before"), [("lmdb", True), ("hdf5", False)], ids=["lmdb-overwrite", "hdf5-new"])
def test_what_is_left_is_the_old_store_or_the_new_one(
    device: tuple[Path, Path], tmp_path: Path, engine: str, before: bool
) -> None:
    image, folder = device
    url, chance = f"{engine}://{folder}/store", random.Random(SEED)
    copies: list[Path] = []
    want = write(f"{engine}://{tmp_path}/want", 2, overwrite=False)
    with mounted(image, folder) as counters:
        old = write(url, 1, overwrite=False) if before else None
        os.sync()
        start = time.perf_counter()
        whole = tmp_path / "whole"
        write(f"{engine}://{whole}", 2, overwrite=False)
        pause = (time.perf_counter() - start) * 2 / MOMENTS
        child = fork(lambda: write(url, 2, overwrite=before))
        ended = False
        while not ended:
            time.sleep(chance.random() * pause)
            ended = os.waitpid(child, os.WNOHANG)[0] == child
            if not ended:
                os.kill(child, signal.SIGSTOP)
            copies.append(tmp_path / f"copy{len(copies)}")
            copy_at_rest(image, copies[-1], counters)
            if not ended:
                os.kill(child, signal.SIGCONT)
    found = []
    for copy in copies:
        with mounted(copy, folder):
            found.append(content(url))
            if found[-1] != want:
                assert write(url, 2, overwrite=before, resume=True) == want
            assert content(url) == want
        copy.unlink()
    assert set(found) <= {old, want}
    assert found[-1] == want
    assert found == sorted(found, key=lambda each: each == want)
