"""Write the outputs that the pages show anew: what the code on each page prints today.

    python docs/outputs.py                 # every page
    python docs/outputs.py README.md ...   # these

Blocks run as `tests/contracts/test_docs.py` runs them. A ```text block right below a ```python
block and the lines below each command of a ```console block are replaced where they are not what
comes out; "..." goes on standing for anything where it still does. On the quick start the lines of
`metacal demo` are renewed as well.
"""

from __future__ import annotations

import argparse
import contextlib
import difflib
import os
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "tests" / "contracts"))

import test_docs as pages  # noqa: E402


def renewed(page: Path) -> str:
    """The page with what its code prints."""
    text = page.read_text(encoding="utf-8")
    names: dict[str, object] = {"__name__": "__main__"}
    exec(pages.GIVEN.get(page.name, ""), names)
    printed, pieces, end = None, [], 0
    for found, block in zip(pages.FENCE.finditer(text), pages.blocks(text), strict=True):
        where = f"{page.name}:{block.line}"
        code = block.code
        if block.language == "text" and block.follows and printed is not None:
            code = kept_or(code, printed)
        printed = pages.run_python(block, names, where) if block.language == "python" else None
        if block.language == "console":
            code = "".join(console(block))
        if page.name == "quick-start.md" and "rows to fit" in code:  # compared with the demo
            printed_by_demo = pages.answer_of("metacal demo").split("\n")
            code = "".join(
                f"{likest(line, printed_by_demo)}\n" for line in code.rstrip("\n").split("\n")
            )
        pieces += [text[end : found.start(2)], code]
        end = found.end(2)
    return "".join([*pieces, text[end:]])


def console(block: pages.Block) -> list[str]:
    """The commands of a block, each with what it answers."""
    first, *parts = pages.re.split(r"^\$ ", block.code, flags=pages.re.MULTILINE)
    found = [first]
    for part in parts:
        command, _, expected = part.partition("\n")
        found.append(f"$ {command}\n{kept_or(expected, pages.answer_of(command))}")
    return found


def kept_or(shown: str, printed: str) -> str:
    """What is shown where it is still true; else what is printed, with as many blank lines around
    it.
    """
    if pages.same(shown, printed):
        return shown
    body = abridged(shown, printed.strip("\n"))
    tail = shown[len(shown.rstrip("\n")) :]
    return f"{body}{tail or chr(10)}" if body else tail


def abridged(shown: str, printed: str) -> str:
    """What is printed, with the same lines left out: each line that is shown, as the likest one
    below is now.
    """
    lines, rest = shown.strip("\n").split("\n"), printed.split("\n")
    if "..." not in [line.strip() for line in lines]:
        return printed
    found = []
    for line in lines:
        if line.strip() == "...":
            found.append(line)
            continue
        alike = [1.5 if pages.same(line, other) else likeness(line, other) for other in rest]
        if not alike or max(alike) < 0.5:
            return printed
        at = alike.index(max(alike))
        found.append(line if alike[at] > 1.0 else rest[at])
        rest = rest[at + 1 :]
    text = "\n".join(found)
    return text if pages.same(text, printed) else printed


def likest(line: str, printed: list[str]) -> str:
    """The line that is printed now in place of this one."""
    return max(printed, key=lambda other: likeness(line, other)) if line.strip() else line


def likeness(one: str, other: str) -> float:
    """Between 0 and 1."""
    return difflib.SequenceMatcher(None, one, other).ratio()


def main() -> None:
    """Renew the pages named, or all."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("pages", nargs="*", metavar="PAGE", help="page to renew; default: all")
    chosen = [Path(page).resolve() for page in parser.parse_args().pages] or pages.PAGES
    for page in chosen:
        with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):
            Path("benchmarks").symlink_to(ROOT / "benchmarks")
            text = renewed(page)
        if text != page.read_text(encoding="utf-8"):
            page.write_text(text, encoding="utf-8")
            sys.stderr.write(f"{page.relative_to(ROOT)} changed\n")


if __name__ == "__main__":
    os.environ.setdefault("COLUMNS", "80")
    main()
