"""Checks the documentation: links and named files exist, and its examples run.

Checked are README.md, CHANGELOG.md, and every page under docs/ and benchmarks/. The blocks of one page run in order as one
program, in an empty folder of its own:

- one marked exactly ``python`` as it stands;
- one marked with a language and a file's name (``toml config.toml``) is written to that file. Its first line must
  name the file (``# config.toml``), because neither Sphinx nor GitHub shows the mark;
- under docs/, one marked exactly ``console``: what follows ``$`` is run by bash, and fails when its status is not 0.

The folder also holds the programs of ``examples/``, and torchvision can be imported.

Others, for example ``python notest``, do not run. A file's name behind ``notest`` says where the block is from.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
BIN = Path(sys.executable).parent  # where the command `storeds` is
VISION = ROOT / "scripts" / "torchvision"  # its sitecustomize.py makes torchvision importable
SECONDS = 600  # a page that trains takes a minute on a machine with nothing else to do

_FENCE = re.compile(r"^ *(`{3,}|~{3,})(.*)$")
_LINK = re.compile(r"!?\[[^\]]*\]\(<?([^)\s>]+)>?[^)]*\)")
_FILE = re.compile(r"\w+ (\S+\.\w+)")
_NAMED = re.compile(r"`((?:[\w<>.-]+/)+\w+\.py)`")
_QUOTE = re.compile(r"^```python notest (\S+)\n(.*?)^```", re.MULTILINE | re.DOTALL)
_RUN = "__import__('subprocess').run(['bash', '-o', 'pipefail', '-c', {!r}], check=True)"
_HEADING = re.compile(r"^#{1,6} +(.*?) *#*$")


def pages() -> list[Path]:
    """Return the pages to check."""
    found = [ROOT / "README.md", ROOT / "CHANGELOG.md"]
    for folder in ("docs", "benchmarks"):
        found += sorted((ROOT / folder).rglob("*.md"))
    return [page for page in found if page.exists()]


def prose_and_code(page: Path) -> tuple[list[str], list[str]]:
    """Return the lines of `page` outside fences, and its examples as Python; each keeps its line number."""
    lines = page.read_text().splitlines()
    prose, code = list(lines), [""] * len(lines)
    fence, opened = "", 0
    for number, line in enumerate(lines):
        match = _FENCE.match(line)
        if fence or match:
            prose[number] = ""
        if not fence and match is not None:
            fence, opened = match[1], number
        elif fence and match is not None and match[1].startswith(fence) and not match[2].strip():
            info = lines[opened].strip().strip("`~").strip()
            code[opened:number] = program(info, lines[opened + 1 : number], shell=page.is_relative_to(ROOT / "docs"))
            fence = ""
    return prose, code


def program(info: str, block: list[str], *, shell: bool) -> list[str]:
    """Return a block as Python: one line for its fence, one for each of its own."""
    if info == "python":
        return ["", *block]
    if named := _FILE.fullmatch(info):
        if not block or named[1] not in block[0]:
            return [
                f"raise SystemExit('this block must name its file, {named[1]}, in its first line')",
                *([""] * len(block)),
            ]
        text = "\n".join(block) + "\n"
        return [f"__import__('pathlib').Path({named[1]!r}).write_text({text!r})", *([""] * len(block))]
    if info == "console" and shell:
        return ["", *(_RUN.format(line[2:]) if line.startswith("$ ") else "" for line in block)]
    return [""] * (len(block) + 1)


def anchors(page: Path) -> set[str]:
    """Return the anchors of the headings of `page`, as GitHub makes them."""
    found: set[str] = set()
    for line in prose_and_code(page)[0]:
        if heading := _HEADING.match(line):
            text = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading[1]).lower()
            anchor = re.sub(r"[^\w\- ]", "", text).replace(" ", "-")
            number = next(n for n in range(1000) if (f"{anchor}-{n}" if n else anchor) not in found)
            found.add(f"{anchor}-{number}" if number else anchor)
    return found


def dead_links(page: Path) -> Iterator[str]:
    """Yield a message for each link of `page` into this repository that leads nowhere."""
    text = "\n".join(prose_and_code(page)[0])
    text = re.sub(r"`[^`]*`", lambda code: "\n" * code[0].count("\n"), text)  # keeps the line numbers
    for link in _LINK.finditer(text):
        target = link[1]
        if re.match(r"[a-z][a-z0-9+.-]*:", target):
            continue
        path, _, anchor = target.partition("#")
        linked = (page.parent / path).resolve() if path else page
        where = f"{page.relative_to(ROOT)}:{text.count(chr(10), 0, link.end()) + 1}"
        if not linked.exists():
            yield f"{where}: {target} does not exist"
        elif anchor and linked.suffix == ".md" and anchor not in anchors(linked):
            yield f"{where}: {linked.name} has no heading #{anchor}"


def missing_files(page: Path) -> Iterator[str]:
    """Yield a message for each `folder/file.py` that `page` names, and neither the repository nor the package has."""
    for number, line in enumerate(prose_and_code(page)[0], 1):
        for name in _NAMED.findall(line):
            path = name.replace("<engine>", "lmdb")
            if not any((folder / path).exists() for folder in (ROOT, ROOT / "src" / "storeds")):
                yield f"{page.relative_to(ROOT)}:{number}: there is no file {name}"


def wrong_quotes(page: Path) -> Iterator[str]:
    """Yield a message for each block marked ``python notest PATH`` whose parts, divided by ``...``, PATH does not hold."""
    for name, block in _QUOTE.findall(page.read_text()):
        if (source := ROOT / name).exists():
            text = source.read_text()
            if not all(part.strip("\n") in text for part in block.split("...\n")):
                yield f"{page.relative_to(ROOT)}: {name} does not hold:\n{block}"


def failed_examples(page: Path) -> str | None:
    """Run the examples of `page`; return what went wrong, or None."""
    lines = prose_and_code(page)[1]
    if not any(lines):
        return None
    with tempfile.TemporaryDirectory(prefix="storeds-docs-") as folder:
        # Blank lines stand for the prose, so that a traceback names lines of the page.
        program = Path(folder, "program", page.name)
        program.parent.mkdir()
        program.write_text("\n".join(lines) + "\n")
        work = Path(folder, "work")
        work.mkdir()
        for example in (ROOT / "examples").glob("*.py"):
            shutil.copy(example, work)
        try:
            done = subprocess.run(  # noqa: S603  # it runs what this repository's own pages say
                [sys.executable, "-W", "error", program],
                cwd=work,
                env={
                    **os.environ,
                    "PYTHONPATH": f"{ROOT}{os.pathsep}{ROOT / 'src'}{os.pathsep}{VISION}",
                    "PATH": f"{BIN}{os.pathsep}{os.environ['PATH']}",
                },
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                timeout=SECONDS,
                check=False,
            )
        except subprocess.TimeoutExpired:
            return f"{page.relative_to(ROOT)}: its examples ran longer than {SECONDS} s"
    return f"{page.relative_to(ROOT)}: its examples failed\n{done.stdout}" if done.returncode else None


def main() -> int:
    """Check the pages, print what is wrong, and return the exit status."""
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("pages", nargs="*", type=Path, help="pages to check; all by default")
    chosen = [page.resolve() for page in options.parse_args().pages] or pages()
    wrong: list[str] = []
    examples = 0
    for page in chosen:
        wrong += [*dead_links(page), *missing_files(page), *wrong_quotes(page)]
        examples += any(prose_and_code(page)[1])
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        wrong += filter(None, pool.map(failed_examples, chosen))
    sys.stderr.writelines(f"{message}\n" for message in wrong)
    sys.stdout.write(f"{len(chosen)} pages, {examples} with examples: {len(wrong)} problems\n")
    return 1 if wrong else 0


if __name__ == "__main__":
    raise SystemExit(main())
