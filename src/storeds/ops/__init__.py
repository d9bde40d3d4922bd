"""Operations on whole stores: pack, convert, export, verify, repair, info, bench.

Each has its own module or package, named with a gerund because `storeds.ops.verify` is the function. Read `common`
first, which they share.
"""

from storeds.ops.benchmarking import BenchReport, Measurement, bench
from storeds.ops.common import Progress, ProgressHook
from storeds.ops.copying import Converted, RepairReport, convert, repair
from storeds.ops.exporting import Exported, export
from storeds.ops.inspecting import Info, info
from storeds.ops.packing import Packed, pack
from storeds.ops.verifying import Finding, Report, verify
from storeds.ops.verifying.contact_sheet import ContactSheet

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
