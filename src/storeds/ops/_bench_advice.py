"""Turns what a benchmark found into what to do about it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from storeds._url import split_scheme
from storeds.ops._bench_report import Bottleneck, Measurement

__all__ = ["advise"]

_WHAT_TO_DO = {
    "transform": (
        "the transform takes most of the time: shrink images first (storeds pack --max-side), or do what works on whole "
        "batches on the accelerator"
    ),
    "collate": "making batches takes most of the time: hand out uint8 and scale on the accelerator, or fewer elements a sample",
    "transport": (
        "handing batches from the workers to this process takes most of the time: hand out uint8 and scale on the "
        "accelerator, or use fewer workers"
    ),
}


def advise(
    url: str,
    measurements: Sequence[Measurement],
    workers: int | None,
    bottlenecks: tuple[Bottleneck | None, Bottleneck | None],
    decode: str | None,
) -> list[str]:
    """Return what to do.

    Parameters
    ----------
    url : str
    measurements : sequence of Measurement
    workers : int or None
        Recommended.
    bottlenecks : (Bottleneck or None, Bottleneck or None)
        Warm, and cold.
    decode : str or None
        The decoder that was used; None for the reader's choice.
    """
    return [
        *_about_workers(measurements, workers),
        *_about_parts(url, *bottlenecks, decode),
        *_about_bad(url, measurements),
    ]


def _about_workers(measurements: Sequence[Measurement], workers: int | None) -> Iterator[str]:
    rates = {m.workers: m.rate for m in measurements if m.stage == "full" and m.cache == "warm"}
    if workers is None:
        return
    text = f"num_workers = {workers} gives {rates[workers]:,.0f} samples/s"
    if workers and 0 in rates:
        text += f", {rates[workers] / rates[0]:.1f} times what this process does alone"
    if any(more > workers for more in rates):
        text += "; more workers add little or nothing"
    elif len(rates) > 1:
        text += "; these are the most that were tried"
    yield text
    # A worker has one thread of torch's; this process has one for each CPU, which pays for large tensors alone.
    if rates.get(1, 0.0) > 2 * rates.get(0, float("inf")):
        yield "this process alone is far slower than one worker: torch's threads may hinder it, so try OMP_NUM_THREADS=1"


def _about_parts(url: str, warm: Bottleneck | None, cold: Bottleneck | None, decode: str | None) -> Iterator[str]:
    if warm is not None and warm.part == "transport" and not warm.workers:
        yield (
            "most of the time is the loader's own, calls for each batch and sample, as samples are so small: larger batches "
            "have fewer of them"
        )
    elif warm is not None:
        yield _WHAT_TO_DO.get(warm.part) or (
            _faster_decoding(decode) if warm.part == "decode" else _faster_reading(url)
        )
    if cold is not None and cold.part == "storage":
        yield (
            "a first epoch waits for the disk: block_size in [loader] reads neighbours together, and a file that fits into "
            "memory can be read once before"
        )


def _faster_reading(url: str) -> str:
    less = "fields=[…] with only what the training uses, or smaller records (of images: storeds pack --max-side)"
    if (split_scheme(url)[0] or "").startswith("mongodb"):
        return f"reading takes most of the time: a server nearer by, a copy in a file (storeds convert), {less}"
    return f"reading takes most of the time, though the files are in memory, so there is little else to save: {less}"


def _faster_decoding(decode: str | None) -> str:
    smaller = "pack smaller images (storeds pack --max-side)"
    if decode not in (None, "pil"):
        return f"decoding takes most of the time: {smaller}, or use more CPUs"
    return f"decoding takes most of the time: decode = 'tensor' is faster than Pillow images; or {smaller}"


def _about_bad(url: str, measurements: Sequence[Measurement]) -> Iterator[str]:
    worst = max(measurements, key=lambda m: m.bad / max(m.samples, 1), default=None)
    if worst is not None and worst.bad:
        yield (
            f"{100 * worst.bad / worst.samples:.3g} % of the samples were bad, and are in no rate: storeds verify {url} says which "
            "and why"
        )
