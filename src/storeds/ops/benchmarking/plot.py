"""Draws a benchmark as bar charts: rates by stage and workers, and where the time goes."""

from __future__ import annotations

import importlib
import io
import os
from contextlib import suppress
from pathlib import Path
from typing import Any

from storeds.errors import ConfigError, MissingDependencyError
from storeds.ops.benchmarking.report import PARTS, BenchReport

__all__ = ["BenchPlot"]

_COLD, _WARM = "#9ab8d8", "#2b5f94"
_PART_COLOURS = dict(zip(PARTS, ("#2b5f94", "#d9822b", "#5b9a55", "#b9a13a", "#9b5fa0"), strict=True))


class BenchPlot:
    """A PNG of a report.

    Parameters
    ----------
    path : str or path
        The file, ending in ``.png``. An existing file is replaced.

    Raises
    ------
    MissingDependencyError
        matplotlib is not installed.
    ConfigError
        The file cannot be written. This is checked before the benchmark runs.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path: Path = Path(path)
        if self.path.suffix.lower() != ".png":
            raise ConfigError(f"a plot is a PNG, but {os.fspath(path)!r} does not end in .png")
        try:
            self._figure: Any = importlib.import_module("matplotlib.figure").Figure
        except ImportError as error:
            raise MissingDependencyError(
                f"a plot needs matplotlib, which cannot be imported ({error}): pip install 'storeds[plot]'"
            ) from error
        self._check()

    def draw(self, report: BenchReport) -> None:
        """Draw a report; raises ConfigError if it cannot be written."""
        figure = self._figure(figsize=(11, 4.5), layout="constrained")
        rates, parts = figure.subplots(1, 2)
        _draw_rates(rates, report)
        _draw_parts(parts, report)
        figure.suptitle(report.url, fontsize=9)
        buffer = io.BytesIO()
        figure.savefig(buffer, format="png", dpi=120)
        try:
            self.path.write_bytes(buffer.getvalue())
        except OSError as error:
            raise self._write_error(error) from None

    def _check(self) -> None:
        is_new = not self.path.exists()
        try:
            with self.path.open("ab"):
                pass
        except OSError as error:
            raise self._write_error(error) from None
        if is_new:
            with suppress(OSError):
                self.path.unlink()

    def _write_error(self, error: OSError) -> ConfigError:
        return ConfigError(f"the plot {self.path} cannot be written: {error.strerror}")


def _draw_rates(axes: Any, report: BenchReport) -> None:
    bars = list(dict.fromkeys((m.stage, m.workers) for m in report.measurements))
    bars.sort(key=lambda bar: [m.stage for m in report.measurements].index(bar[0]))
    for cache, colour, shift in (("cold", _COLD, -0.2), ("warm", _WARM, 0.2)):
        found = [(at, report.find(*bar, cache)) for at, bar in enumerate(bars)]
        shown = [(at, m.rate) for at, m in found if m is not None]
        if shown:
            axes.bar([at + shift for at, _ in shown], [rate for _, rate in shown], 0.4, color=colour, label=cache)
    axes.set_xticks(range(len(bars)), [f"{stage}\n{workers}" for stage, workers in bars], fontsize=8)
    axes.set_xlabel("stage and workers")
    axes.set_yscale("log")
    axes.set_ylabel("samples per second")
    axes.legend()


def _draw_parts(axes: Any, report: BenchReport) -> None:
    full = [m for m in report.measurements if m.stage == "full"]
    below = [0.0] * len(full)
    for part in PARTS:
        heights = [1000 * m.parts[part] for m in full]
        axes.bar(range(len(full)), heights, 0.6, bottom=below, color=_PART_COLOURS[part], label=part)
        below = [base + height for base, height in zip(below, heights, strict=True)]
    axes.set_xticks(range(len(full)), [f"{m.cache}\n{m.workers}" for m in full], fontsize=8)
    axes.set_xlabel("full pipeline: cache and workers")
    axes.set_ylabel("ms of a worker's time per sample")
    axes.legend()
