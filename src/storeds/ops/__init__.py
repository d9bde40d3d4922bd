"""Operations on whole stores: pack, convert, export, verify, repair, info, stats, show, bench; those that make stores grow.

Each has its own module or package, named with a gerund because `storeds.ops.verify` is the function. Those that make a
store share `copy`. Each name loads its module on first use, so that `storeds --help` is quick.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, TypeAlias

from storeds.registry import export_lazily

if TYPE_CHECKING:
    from storeds.ops.benchmarking import BenchReport, Measurement, bench
    from storeds.ops.copying import Converted, RepairReport, convert, repair
    from storeds.ops.editing import edit, log, rollback
    from storeds.ops.exporting import Exported, export
    from storeds.ops.inspecting import Info, info
    from storeds.ops.members import Cleaned, clean, commit, compact, merge
    from storeds.ops.packing import Packed, append, pack
    from storeds.ops.progress import Progress, ProgressHook
    from storeds.ops.showing import Page, show
    from storeds.ops.staging import Staged, remove_staged, stage, staged, verify_staged
    from storeds.ops.statistics import Stats, stats
    from storeds.ops.verifying import Finding, Report, verify

__all__ = [
    "BenchReport",
    "Cleaned",
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
    "Staged",
    "Stats",
    "append",
    "bench",
    "clean",
    "commit",
    "compact",
    "convert",
    "edit",
    "export",
    "info",
    "log",
    "merge",
    "pack",
    "remove_staged",
    "repair",
    "rollback",
    "show",
    "stage",
    "staged",
    "stats",
    "verify",
    "verify_staged",
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
        "editing": ("edit", "log", "rollback"),
        "exporting": ("Exported", "export"),
        "inspecting": ("Info", "info"),
        "members": ("Cleaned", "clean", "commit", "compact", "merge"),
        "packing": ("Packed", "append", "pack"),
        "showing": ("Page", "show"),
        "staging": ("Staged", "remove_staged", "stage", "staged", "verify_staged"),
        "statistics": ("Stats", "stats"),
        "verifying": ("Finding", "Report", "verify"),
    },
)
