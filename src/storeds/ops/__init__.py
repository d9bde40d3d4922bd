"""Operations on whole stores: pack, convert, export, verify, repair, info, bench.

Each has its own module or package, named with a gerund because `storeds.ops.verify` is the function. Read `common`
first, which they share. Each name loads its module on first use, so that `storeds --help` is quick.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from storeds.ops.benchmarking import BenchReport as BenchReport
    from storeds.ops.benchmarking import Measurement as Measurement
    from storeds.ops.benchmarking import bench as bench
    from storeds.ops.common import Progress as Progress
    from storeds.ops.common import ProgressHook as ProgressHook
    from storeds.ops.copying import Converted as Converted
    from storeds.ops.copying import RepairReport as RepairReport
    from storeds.ops.copying import convert as convert
    from storeds.ops.copying import repair as repair
    from storeds.ops.exporting import Exported as Exported
    from storeds.ops.exporting import export as export
    from storeds.ops.inspecting import Info as Info
    from storeds.ops.inspecting import info as info
    from storeds.ops.packing import Packed as Packed
    from storeds.ops.packing import pack as pack
    from storeds.ops.verifying import Finding as Finding
    from storeds.ops.verifying import Report as Report
    from storeds.ops.verifying import verify as verify
    from storeds.ops.verifying.contact_sheet import ContactSheet as ContactSheet

_LAZY = {
    "BenchReport": "storeds.ops.benchmarking",
    "Measurement": "storeds.ops.benchmarking",
    "bench": "storeds.ops.benchmarking",
    "Progress": "storeds.ops.common",
    "ProgressHook": "storeds.ops.common",
    "Converted": "storeds.ops.copying",
    "RepairReport": "storeds.ops.copying",
    "convert": "storeds.ops.copying",
    "repair": "storeds.ops.copying",
    "Exported": "storeds.ops.exporting",
    "export": "storeds.ops.exporting",
    "Info": "storeds.ops.inspecting",
    "info": "storeds.ops.inspecting",
    "Packed": "storeds.ops.packing",
    "pack": "storeds.ops.packing",
    "Finding": "storeds.ops.verifying",
    "Report": "storeds.ops.verifying",
    "verify": "storeds.ops.verifying",
    "ContactSheet": "storeds.ops.verifying.contact_sheet",
}

__all__ = [
    "BenchReport",
    "ContactSheet",
    "Converted",
    "Exported",
    "Finding",
    "Info",
    "Measurement",
    "Packed",
    "Progress",
    "ProgressHook",
    "RepairReport",
    "Report",
    "bench",
    "convert",
    "export",
    "info",
    "pack",
    "repair",
    "verify",
]


def __getattr__(name: str) -> Any:
    if name not in _LAZY:
        raise AttributeError(f"module 'storeds.ops' has no attribute {name!r}")
    value = getattr(importlib.import_module(_LAZY[name]), name)
    globals()[name] = value
    return value
