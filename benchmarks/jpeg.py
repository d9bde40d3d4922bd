"""The cost of `triage` for whole JPEGs, and the success of `repair` compared with appending an end marker.

Run as ``python -m benchmarks.jpeg``. It times `triage` and Pillow's decode of the same bytes in turn. Then it repairs every
case of the corpus in ``tests``, and compares this with appending ``FF D9`` to files that do not end with it.
"""

from __future__ import annotations

import collections
import importlib.util
import io
import sys
import warnings
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from benchmarks._common import Result, Spread, compare, parser, report
from storeds.jpeg import repair, triage

_ROOT = Path(__file__).resolve().parents[1]
EOI = b"\xff\xd9"
CUT = ("missing_eoi", "truncated_scan")
_ENCODINGS: dict[str, tuple[dict[str, Any], float]] = {
    "one scan, 4:2:0": ({}, 0.05),
    "one scan, 4:4:4": ({"subsampling": "4:4:4"}, 0.05),
    "one scan, optimised": ({"optimize": True}, 0.05),
    "one scan, restart markers": ({"restart_marker_rows": 1}, 0.05),
    "progressive": ({"progressive": True}, 0.15),
}


def photograph(size: int, **options: Any) -> bytes:
    """Return a photograph from scikit-learn, at the quality that gives about `size` bytes."""
    found = importlib.util.find_spec("sklearn")
    assert found is not None
    assert found.origin is not None
    with Image.open(Path(found.origin).parent / "datasets" / "images" / "flower.jpg") as image:
        blobs = []
        for quality in range(20, 96):
            buffer = io.BytesIO()
            image.save(buffer, "JPEG", quality=quality, **options)
            blobs.append(buffer.getvalue())
    return min(blobs, key=lambda blob: abs(len(blob) - size))


def decode(blob: bytes) -> np.ndarray | None:
    """Return the pixels, or None if Pillow raises."""
    try:
        with Image.open(io.BytesIO(blob)) as image:
            return np.asarray(image)
    except (OSError, SyntaxError, ValueError):
        return None


def measure(size: int, rounds: int, seconds: float) -> list[Result]:
    """Time `triage` against a decode to pixels."""
    results = []
    for name, (options, target) in _ENCODINGS.items():
        blob = photograph(size, **options)
        assert triage(blob).kind == "intact"
        ratio, mine, theirs = compare(bound(triage, blob), bound(decode, blob), rounds=rounds, seconds=seconds)
        cost = Spread(1 / ratio.max, 1 / ratio.median, 1 / ratio.min)
        detail = f"{1e6 * mine.median:,.0f} against {1e6 * theirs.median:,.0f} µs, {len(blob):,} bytes"
        name = f"triage ÷ decode, {name}"
        results.append(Result(name, "ratio", cost, f"≤ {target:g}", cost.median <= target, detail))
    return results


def bound(function: Callable[[bytes], object], blob: bytes) -> Callable[[], object]:
    return lambda: function(blob)


def is_same(pixels: np.ndarray | None, whole: bytes) -> bool:
    return pixels is not None and np.array_equal(pixels, decode(whole))


def count_results(cases: Iterable[Any]) -> tuple[collections.Counter[str], collections.Counter[str]]:
    """Return the outcomes of `repair` and of the simple method."""
    ours: collections.Counter[str] = collections.Counter()
    simple: collections.Counter[str] = collections.Counter()
    for case in cases:
        ours.update(judge(case))
        simple.update(judge_simple(case))
    return ours, simple


def judge(case: Any) -> list[str]:
    finding = triage(case.blob)
    repaired = repair(case.blob, finding)
    kind = finding.kind
    # A file that was cut, or cut and filled with zeros, must decode. A flipped bit may prevent it.
    if kind in CUT and not case.damage.startswith(("cut", "zero-filled")):
        kind += ", by other damage"
    seen = [kind] if finding.kind in case.admitted else [kind, "wrong class"]
    pixels = decode(repaired)
    if pixels is not None:
        seen.append(f"{kind} decodes")
    if case.admitted <= {"intact", "trailing_data"} and repaired is not case.blob:
        seen.append("good, rewritten")
    if pixels is not None and not finding.is_damaged and finding.kind != "not_jpeg" and not is_same(pixels, case.whole):
        seen.append("silently wrong")
        seen.append(f"silently wrong after {'a cut' if case.damage.startswith('cut') else case.damage}")
    return seen


def judge_simple(case: Any) -> list[str]:
    """Return the outcome of appending FF D9 to files that do not end with it."""
    flagged = not case.blob.endswith(EOI)
    seen = []
    if case.admitted <= {"intact", "trailing_data"}:
        seen = ["good", "good, rewritten"] if flagged else ["good"]
    cut = next((kind for kind in (*CUT, "truncated_header") if case.admitted == {kind}), None)
    if cut:
        seen = [cut] if flagged else [cut, f"{cut}, not flagged"]
    if case.admitted == {"not_jpeg"}:
        return seen
    pixels = decode(case.blob + EOI if flagged else case.blob)
    if pixels is None:
        return [*seen, f"{cut} fails"] if cut in CUT else seen
    return seen if is_same(pixels, case.whole) else [*seen, "silently wrong"]


def corpus() -> list[Any]:
    """Return the cases of the tests, except for frames too large to decode."""
    sys.path.insert(0, str(_ROOT / "tests" / "support"))
    from jpeg_corpus import cases, groups

    return [case for group in groups() if group[1] != "a huge frame" for case in cases(*group)]


def outcome(cases: list[Any]) -> list[Result]:
    """Format the counts of both methods side by side."""
    ours, simple = count_results(cases)
    kinds = ("intact", "trailing_data", *CUT, *(f"{kind}, by other damage" for kind in CUT), "truncated_header")
    kinds += ("corrupt_data", "not_jpeg")
    results = []
    for kind in kinds:
        share = ours[f"{kind} decodes"] / max(ours[kind], 1)
        figure = Spread.of([share])
        met = share == 1 if kind in CUT else True
        detail = f"{ours[f'{kind} decodes']:,} of {ours[kind]:,}"
        results.append(
            Result(f"decodes after repair: {kind}", "share", figure, "1" if kind in CUT else "", met, detail)
        )

    def count(name: str, of: str, key: str, *, target: str = "", against: collections.Counter[str] = simple) -> None:
        number = against[key]
        results.append(Result(name, "cases", Spread.of([number]), target, not target or number == 0, of))

    count("class not admitted", f"of {len(cases):,}", "wrong class", target="0", against=ours)
    count("good file rewritten", f"of {simple['good']:,}", "good, rewritten", target="0", against=ours)
    places = {key: number for key, number in ours.items() if key.startswith("silently wrong after")}
    where = ", ".join(f"{key.partition('after ')[2]} {number:,}" for key, number in places.items())
    count("other pixels, found no damage", where, "silently wrong", against=ours)
    count("simple way: good file rewritten", f"of {simple['good']:,}", "good, rewritten")
    for kind in (*CUT, "truncated_header"):
        count(f"simple way: {kind} not flagged", f"of {simple[kind]:,}", f"{kind}, not flagged")
    for kind in CUT:
        count(f"simple way: {kind} fails after appending", f"of {simple[kind]:,}", f"{kind} fails")
    count("simple way: other pixels, nothing said", f"of {len(cases):,}", "silently wrong")
    return results


def main() -> int:
    options = parser(__doc__ or "", "jpeg.json")
    options.add_argument("--size", type=int, default=40 * 1024, help="bytes of the pictures that are timed, about")
    options.add_argument("--seconds", type=float, default=0.3, help="least time of each measurement")
    given = options.parse_args()
    warnings.filterwarnings("ignore", module=r"PIL\.")  # about damaged metadata
    results = measure(given.size, given.rounds, given.seconds)
    cases = corpus()
    results += outcome(cases)
    setup = {
        "pictures": "scikit-learn's flower.jpg, 640 × 427, at the quality that comes nearest to the size",
        "size": given.size,
        "rounds": given.rounds,
        "decode": "Pillow, to an array in the file's own mode",
        "cases": len(cases),
    }
    met = report("JPEG triage and repair", results, setup, given.out)
    return 1 if given.check and not met else 0


if __name__ == "__main__":
    raise SystemExit(main())
