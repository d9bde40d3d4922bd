"""Operations on whole stores: pack, convert, export, verify, repair, info, stats, show, bench.

Each has its own module or package, named with a gerund because `storeds.ops.verify` is the function. Those that make a
store share `copy`. Each name loads its module on first use, so that `storeds --help` is quick.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, TypeAlias

from storeds.registry import export_lazily

if TYPE_CHECKING:
    from storeds.ops.benchmarking import BenchReport, Measurement, bench
    from storeds.ops.copying import Converted, RepairReport, convert, repair
    from storeds.ops.exporting import Exported, export
    from storeds.ops.inspecting import Info, info
    from storeds.ops.packing import Packed, pack
    from storeds.ops.progress import Progress, ProgressHook
    from storeds.ops.showing import Page, show
    from storeds.ops.statistics import Stats, stats
    from storeds.ops.verifying import Finding, Report, verify

__all__ = [
    "BenchReport",
    "Converted",
    "Exported",
    "Finding",
    "Info",
    "Measurement",
    "Packed",
    "Page",
    "Progress",
    "ProgressHook",
    "RepairReport",
    "Report",
    "Stats",
    "bench",
    "convert",
    "export",
    "info",
    "pack",
    "repair",
    "show",
    "stats",
    "verify",
]

# What the command line needs to know before it runs anything.
OnBad: TypeAlias = Literal["raise", "skip", "keep"]
OnBadRecord: TypeAlias = Literal["raise", "skip"]
SplitBy: TypeAlias = Literal["label", "key"]

__getattr__ = export_lazily(
    __name__,
    {
        "benchmarking": ("BenchReport", "Measurement", "bench"),
        "progress": ("Progress", "ProgressHook"),
        "copying": ("Converted", "RepairReport", "convert", "repair"),
        "exporting": ("Exported", "export"),
        "inspecting": ("Info", "info"),
        "packing": ("Packed", "pack"),
        "showing": ("Page", "show"),
        "statistics": ("Stats", "stats"),
        "verifying": ("Finding", "Report", "verify"),
    },
)
