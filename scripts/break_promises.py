"""Break each promise on purpose, and require that a test notices.

Each row of mistakes.toml is a plausible mistake: a check removed, an order changed, a lock dropped. The script copies the tree,
makes one mistake at a time in the copy, and runs the tests that the row names. It exits with 1 if they still pass, or if
the text to replace is not there (update the row then). ::

    .venv/bin/python scripts/break_promises.py                 # all: about 7 minutes
    .venv/bin/python scripts/break_promises.py --only seal     # rows whose text contains "seal"
    .venv/bin/python scripts/break_promises.py --check         # only whether each text is there, in a second
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import itertools
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import tomllib
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple
from xml.etree import ElementTree

ROOT = Path(__file__).parent.parent
COPIED = ("src", "tests", "examples", "scripts", "docs", "benchmarks", "pyproject.toml", "README.md", "CHANGELOG.md")
PRELOADED = ("h5py", "lmdb", "mongomock", "PIL.Image", "pymongo", "pytest", "torch.utils.data", "typer.testing")
HANGS = ["-o", "timeout=120", "-o", "faulthandler_timeout=130"]  # the second ends what no signal does
OPTIONS = ["-x", "-q", "-p", "no:cacheprovider", *HANGS, "-W", "ignore::pytest.PytestAssertRewriteWarning"]
LIMIT = 400  # seconds for the tests of one row


class Break(NamedTuple):
    """A mistake, and the tests that must fail of it.

    Attributes
    ----------
    promise : str
        What the mistake breaks.
    tests : str
        Arguments of pytest; files are relative to ``tests``.
    file : str
        In ``src/storeds``.
    old, new : str
        The text, which must be there exactly once, and what replaces it.
    """

    promise: str
    tests: str
    file: str
    old: str
    new: str


MISTAKES = Path(__file__).with_name("mistakes.toml")
BREAKS = [Break(**each) for each in tomllib.loads(MISTAKES.read_text("utf-8"))["mistake"]]


def main() -> int:
    """Run the rows that the command line selects; return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--only", default="", help="a regular expression; runs rows whose text contains it")
    parser.add_argument("--jobs", type=int, default=len(os.sched_getaffinity(0)), help="rows that run at once")
    parser.add_argument("--check", action="store_true", help="only look for the texts to replace")
    options = parser.parse_args()
    rows = [each for each in BREAKS if re.search(options.only, " ".join(each), re.IGNORECASE)]
    missing = [each for each in rows if (ROOT / "src/storeds" / each.file).read_text().count(each.old) != 1]
    for each in missing:
        print(f"the text is not there once: {each.promise} ({each.file})")
    if options.check or missing:
        return bool(missing)
    for name in PRELOADED:  # children of a fork need not import them
        importlib.import_module(name)
    begin, survivors = time.monotonic(), 0
    with contextlib.ExitStack() as stack:
        trees = [Path(stack.enter_context(tempfile.TemporaryDirectory())) for _ in range(options.jobs)]
        for name, tree in itertools.product(COPIED, trees):
            (shutil.copytree if (ROOT / name).is_dir() else shutil.copy)(ROOT / name, tree / name)
        os.environ["STOREDS_TEST_MONGODB_URI"] = stack.enter_context(running_server())
        for row, verdict, seconds in tried(rows, trees):
            survivors += not verdict.startswith("fails")
            print(f"{row.promise:<70} {seconds:4.0f} s  {verdict}", flush=True)
    print(f"{len(rows)} mistakes, {survivors} of which no test notices, {time.monotonic() - begin:.0f} s")
    return bool(survivors)


@contextlib.contextmanager
def running_server() -> Iterator[str]:
    """Yield the URI of one MongoDB server for all rows: starting one takes seconds. It ends with this process."""
    program = "import pathlib, sys\nfrom storeds.testing import run_mongod\n"
    program += "with run_mongod(pathlib.Path(sys.argv[1])) as uri:\n    print(uri, flush=True)\n    sys.stdin.read()"
    with tempfile.TemporaryDirectory() as folder:
        command, pipe = [sys.executable, "-c", program, folder], subprocess.PIPE
        with subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True) as server:  # noqa: S603
            assert server.stdin is not None
            assert server.stdout is not None
            yield server.stdout.readline().strip()
            server.stdin.close()


def tried(rows: list[Break], trees: list[Path]) -> Iterator[tuple[Break, str, float]]:
    """Run the tests of each row in a child, as many at once as there are trees; yield what they say, and the seconds."""
    waiting, running = rows[::-1], dict[int, tuple[Break, Path, str, float]]()
    while waiting or running:
        while waiting and trees:
            row, tree = waiting.pop(), trees.pop()
            file = tree / "src/storeds" / row.file
            text = file.read_text()
            file.write_text(text.replace(row.old, row.new))
            (tree / "report.xml").unlink(missing_ok=True)
            child = os.fork()
            if not child:
                run_tests(row, tree)
            running[child] = row, tree, text, time.monotonic()
        time.sleep(0.1)
        for child, (row, tree, text, begin) in list(running.items()):
            ended, status = os.waitpid(child, os.WNOHANG)
            seconds = time.monotonic() - begin
            if not ended and seconds < LIMIT:
                continue
            with contextlib.suppress(ProcessLookupError):
                os.killpg(child, signal.SIGKILL)
            if not ended:
                os.waitpid(child, 0)
            del running[child]
            (tree / "src/storeds" / row.file).write_text(text)
            yield row, outcome(tree, status) if ended else f"fails: does not end within {LIMIT} s", seconds
            trees.append(tree)


def run_tests(row: Break, tree: Path) -> None:
    """Run the tests of a row in this forked child, which ends with pytest's exit code."""
    code = 99
    try:
        os.setsid()
        log = os.open(tree / "log", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        os.dup2(log, 1)
        os.dup2(log, 2)
        os.chdir(tree)
        sys.path[:0] = [str(tree / "src")]
        os.environ |= {"PYTHONPATH": str(tree / "src"), "STOREDS_TEST_SEED": "3", "STOREDS_CACHE": str(tree / "cache")}
        os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
        tests = [f"tests/{each}" if ".py" in each else each for each in shlex.split(row.tests)]
        files = [f"--junitxml={tree / 'report.xml'}", f"--basetemp={tree / 'files'}"]
        code = sys.modules["pytest"].main([*OPTIONS, *files, *tests])
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(code)


def outcome(tree: Path, status: int) -> str:
    """Return ``fails: NAME: REASON``, or how the tests of a row fail to notice the mistake."""
    code, report = os.waitstatus_to_exitcode(status), tree / "report.xml"
    if code == 0:
        return "SURVIVES"
    if code == 1 and not report.exists():
        return "fails: a test does not end"  # pytest-timeout has ended pytest
    if code == 1:
        for case in ElementTree.parse(report).iter("testcase"):  # noqa: S314  # pytest wrote it
            for failure in case.findall("failure"):
                reason = (failure.get("message") or "").replace("\n", " ")[:60]
                wrong = reason.startswith(("ImportError", "ModuleNotFoundError", "SyntaxError", "NameError"))
                return f"{'BROKEN' if wrong else 'fails'}: {case.get('name')}: {reason}"
    return f"BROKEN: {code}: {(tree / 'log').read_text().strip().splitlines()[-1:]}"


if __name__ == "__main__":
    sys.exit(main())
