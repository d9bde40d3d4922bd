"""Computes rates from the seconds of epochs, and ratios of entrants that ran in the same rounds; plots the rates."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from benchmarks._common import Result, Spread
from benchmarks.peers._entrants import Entrant, Ratio

Rates = Mapping[Entrant, Sequence[float]]


def fastest(rates: Rates, wanted: frozenset[str]) -> Entrant | None:
    """Return the entrant with all of these tags whose median is the highest, of those that ran."""
    found = [entrant for entrant in rates if wanted <= entrant.tags]
    return max(found, key=lambda entrant: statistics.median(rates[entrant]), default=None)


def rate_rows(rates: Rates, order: Iterable[Entrant], processor: Mapping[str, Sequence[float]]) -> list[Result]:
    """Return each entrant's images a second; beside it the processor time per photo, which varies less on a busy machine."""
    return [
        Result(
            one.name,
            "images/s",
            Spread.of(rates[one]),
            "",
            True,
            f"{statistics.median(processor[one.name]):.2f} ms of processor time a photo",
        )
        for one in order
        if one in rates
    ]


def ratio_rows(rates: Rates, ratios: Iterable[Ratio]) -> list[Result]:
    """Return the ratios, each the median of those of the rounds; leave out ratios that lack a rate."""
    rows = []
    for ratio in ratios:
        over, under = fastest(rates, ratio.over), fastest(rates, ratio.under)
        if over is None or under is None:
            continue
        figure = Spread.of([mine / theirs for mine, theirs in zip(rates[over], rates[under], strict=True)])
        target = "" if ratio.target is None else f"≥ {ratio.target:g}"
        met = ratio.target is None or figure.median >= ratio.target
        rows.append(Result(ratio.name, "ratio", figure, target, met, f"{over.name} ÷ {under.name}"))
    return rows


def against_each(rates: Rates, ours: frozenset[str]) -> list[Ratio]:
    """Return the ratios of our best way with these tags to each peer that ran."""
    return [
        Ratio(f"best way, exact pixels ÷ {entrant.name}", ours, entrant.tags)
        for entrant in rates
        if "peer" in entrant.tags and "ffcv" not in entrant.tags  # which has a ratio of its own
    ]


def equal_engines(rates: Rates, engines: Sequence[str], wanted: frozenset[str], name: str) -> list[Result]:
    """Return the slowest of the engines by the fastest, all else the same."""
    found = [entrant for engine in engines if (entrant := fastest(rates, wanted | {engine})) is not None]
    if len(found) < 2:
        return []
    found.sort(key=lambda entrant: statistics.median(rates[entrant]))
    figure = Spread.of([slow / fast for slow, fast in zip(rates[found[0]], rates[found[-1]], strict=True)])
    detail = f"{found[0].name} ÷ {found[-1].name}"
    return [Result(f"slowest ÷ fastest engine, {name}", "ratio", figure, "≥ 0.9", figure.median >= 0.9, detail)]


def plot(rows: Sequence[Result], title: str, path: Path) -> bool:
    """Draw the rates as bars with their minimum and maximum; False where there is no matplotlib."""
    try:
        from matplotlib.figure import Figure
    except ImportError:
        return False
    rows = sorted(rows, key=lambda row: row.figure.median)
    medians = [row.figure.median for row in rows]
    errors = [
        [row.figure.median - row.figure.min for row in rows],
        [row.figure.max - row.figure.median for row in rows],
    ]
    colours = ["tab:blue" if row.name.startswith("storeds") else "tab:gray" for row in rows]
    figure = Figure(figsize=(9, 1 + 0.32 * len(rows)), layout="constrained")
    axes = figure.add_subplot()
    axes.barh([row.name for row in rows], medians, xerr=errors, color=colours, ecolor="black", capsize=2)
    axes.set(title=title, xlabel="images/s (median, minimum, maximum)")
    figure.savefig(path, dpi=120)
    return True
