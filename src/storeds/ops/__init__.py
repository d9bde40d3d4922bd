"""What is done to whole stores: pack, convert, verify, repair, info, bench."""

from storeds.ops.benchmarking import BenchPlot, BenchReport, Bottleneck, Measurement, bench
from storeds.ops.converting import convert
from storeds.ops.inspecting import Info, info
from storeds.ops.packing import pack
from storeds.ops.packing.result import Packed
from storeds.ops.progress import Progress, ProgressHook
from storeds.ops.repairing import RepairReport, repair
from storeds.ops.verifying import Finding, Report, verify
from storeds.ops.verifying.contact_sheet import ContactSheet

__all__ = [
    "BenchPlot",
    "BenchReport",
    "Bottleneck",
    "ContactSheet",
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
    "info",
    "pack",
    "repair",
    "verify",
]
