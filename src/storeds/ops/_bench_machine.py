"""Says what the figures of a benchmark depend on: the machine, and the versions of what does the work."""

from __future__ import annotations

import os
import platform
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, version

from storeds.protocols import JSON

__all__ = ["machine", "versions"]

_PACKAGES = ("storeds", "torch", "numpy", "Pillow", "simplejpeg", "av", "lmdb", "h5py", "pymongo")


def machine() -> dict[str, JSON]:
    """Return what the machine is, and how busy; the threads are torch's in this process, since a worker has one."""
    found: dict[str, JSON] = {
        "cpu": _processor(),
        "cpus": len(os.sched_getaffinity(0)),
        "memory_gib": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30, 1),
        "load_average": round(os.getloadavg()[0], 2),
        "kernel": platform.release(),
    }
    import torch

    found["torch_threads"] = torch.get_num_threads()
    if torch.cuda.is_available():
        found["accelerator"] = torch.cuda.get_device_name()
    return found


def _processor() -> str:
    with suppress(OSError), open("/proc/cpuinfo", encoding="utf-8") as file:
        for line in file:
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def versions() -> dict[str, str]:
    """Return the versions of Python and of those packages that are installed."""
    found = {"python": platform.python_version()}
    for package in _PACKAGES:
        with suppress(PackageNotFoundError):
            found[package] = version(package)
    return found
