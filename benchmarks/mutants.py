"""Change one operator or number of the source at a time, and ask whether the tests notice.

    pytest --cov=metacal.promises --cov=metacal.gate --cov-context=test --cov-report=      # which test runs which line
    python benchmarks/mutants.py --contexts .coverage

Mutants are drawn with a seed from every comparison, sum, product, number, `and`, `or` and `not` of `promises/` and
`gate/` that no message holds. A mutant is tried on the tests that run its line until one fails: those of
`pytest -m "not slow"` first, then the slow ones, the shortest of each first; `--seconds` of CPU each. One
whose line no test runs is not tried: it lives. In the end every test that killed one is run on the source as it is,
where it must pass. Results go to benchmarks/results/mutants.json.
"""

from __future__ import annotations

import argparse
import ast
import compileall
import importlib
import json
import multiprocessing
import os
import random
import re
import resource
import shutil
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "benchmarks" / "results" / "mutants.json"
ROOMS = ("promises", "gate")
FIRST = 40

#: What an operator becomes.
OTHER = {
    ast.Lt: ("<", "<="),
    ast.LtE: ("<=", "<"),
    ast.Gt: (">", ">="),
    ast.GtE: (">=", ">"),
    ast.Eq: ("==", "!="),
    ast.NotEq: ("!=", "=="),
    ast.Add: ("+", "-"),
    ast.Sub: ("-", "+"),
    ast.Mult: ("*", "/"),
    ast.Div: ("/", "*"),
    ast.And: ("and", "or"),
    ast.Or: ("or", "and"),
}


@dataclass(frozen=True)
class Mutant:
    """One change: in `file` (below src/metacal), from byte `start` to `end` of `line`, `old`
    becomes `new`.
    """

    file: str
    line: int
    start: int
    end: int
    old: str
    new: str

    def applied(self, text: bytes) -> bytes:
        """The source with the change in it."""
        lines = text.splitlines(keepends=True)
        line = lines[self.line - 1]
        assert line[self.start : self.end].decode() == self.old
        lines[self.line - 1] = line[: self.start] + self.new.encode() + line[self.end :]
        return b"".join(lines)


def operator_between(
    left: ast.expr, right: ast.expr, old: str, lines: list[bytes]
) -> tuple[int, int, int] | None:
    """Line, start and end of the operator between two operands on one line."""
    line, start = left.end_lineno, left.end_col_offset
    if line is None or start is None or right.lineno != line:
        return None
    between = lines[line - 1][start : right.col_offset].decode()
    match = re.search(rf"(?<![<>=!*/+-]){re.escape(old)}(?![<>=*/])", between)
    return None if match is None else (line, start + match.start(), start + match.end())


def is_text(node: ast.expr) -> bool:
    """Whether an operand of + is plainly a string or a tuple, where - would be no mutant but
    nonsense.
    """
    return isinstance(node, ast.JoinedStr | ast.Tuple | ast.List) or (
        isinstance(node, ast.Constant) and isinstance(node.value, str)
    )


def mutants_of(file: str, text: bytes) -> Iterator[Mutant]:
    """Every mutant of a file, in order."""
    lines = text.splitlines(keepends=True)
    tree = ast.parse(text)
    nodes: list[ast.AST] = [tree]
    while nodes:
        node = nodes.pop()
        if isinstance(node, ast.Raise | ast.JoinedStr):  # what is said, not what is done
            continue
        nodes.extend(ast.iter_child_nodes(node))
        pairs: list[tuple[ast.expr, ast.expr, Any]] = []
        if isinstance(node, ast.Compare):
            pairs = list(zip([node.left, *node.comparators], node.comparators, node.ops))
        elif isinstance(node, ast.BinOp) and not (is_text(node.left) or is_text(node.right)):
            pairs = [(node.left, node.right, node.op)]
        elif isinstance(node, ast.BoolOp):
            pairs = [(node.values[0], node.values[1], node.op)]
        for left, right, op in pairs:
            old, new = OTHER.get(type(op), ("", ""))
            if old and (place := operator_between(left, right, old, lines)):
                yield Mutant(file, *place, old, new)
        if (
            isinstance(node, ast.Constant)
            and (change := changed_number(node.value))
            and node.end_col_offset
        ):
            old = lines[node.lineno - 1][node.col_offset : node.end_col_offset].decode()
            yield Mutant(file, node.lineno, node.col_offset, node.end_col_offset, old, change)
        if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
            yield Mutant(file, node.lineno, node.col_offset, node.col_offset + 4, "not ", "")


def changed_number(value: object) -> str | None:
    """Another number, or truth value, in a constant's place; None where it is neither."""
    if isinstance(value, bool):
        return str(not value)
    if isinstance(value, int):
        return str(value + 1)
    if isinstance(value, float):
        return repr(2.0 * value if value else 1.0)
    return None


def drawn(n: int, seed: int) -> list[Mutant]:
    """As many mutants of the rooms, each equally likely."""
    known = [
        mutant
        for room in ROOMS
        for path in sorted((ROOT / "src" / "metacal" / room).glob("*.py"))
        for mutant in mutants_of(f"{room}/{path.name}", path.read_bytes())
    ]
    return random.Random(seed).sample(
        sorted(set(known), key=lambda m: (m.file, m.line, m.start, m.new)), n
    )


def tests_by_line(path: Path) -> dict[tuple[str, int], set[str]]:
    """The tests that run each line, out of coverage.py's data; of a line run by importing, those
    that run the file.
    """
    from coverage import CoverageData

    data = CoverageData(str(path))
    data.read()
    tests: dict[tuple[str, int], set[str]] = {}
    for file in data.measured_files():
        name = "/".join(Path(file).parts[-2:])
        lines = {
            n: {each.rsplit("|", 1)[0] for each in by if each}
            for n, by in data.contexts_by_lineno(file).items()
        }
        whole = set().union(*lines.values())
        tests |= {(name, line): by or whole for line, by in lines.items()}
    return tests


@dataclass(frozen=True)
class Outcome:
    """What became of a mutant: killed by a `fast` test or a `slow` one; `lived`, `no test` or `out
    of time`.
    """

    verdict: str
    by: str
    tests: int
    seconds: float


class Chosen:
    """A pytest plugin: the wanted tests of those collected, fast before slow; notes the first that
    fails.
    """

    def __init__(self, wanted: list[str], slow: bool) -> None:
        self.order = {test: k for k, test in enumerate(wanted)}
        self.slow, self.marked = slow, set[str]()
        self.failed, self.ran = "", list[str]()

    def pytest_collection_modifyitems(self, items: list[Any]) -> None:
        """Keep and sort."""
        self.marked = {item.nodeid for item in items if item.get_closest_marker("slow")}
        kept = (
            item
            for item in items
            if item.nodeid in self.order and (self.slow or item.nodeid not in self.marked)
        )
        items[:] = sorted(
            kept, key=lambda item: (item.nodeid in self.marked, self.order[item.nodeid])
        )

    def pytest_runtest_logreport(self, report: Any) -> None:
        """Count, and note a failure."""
        if report.when == "call":
            self.ran.append(report.nodeid)
        self.failed = self.failed or (report.nodeid if report.failed else "")

    def pytest_collectreport(self, report: Any) -> None:
        """A module that cannot be imported any more has noticed, too."""
        self.failed = self.failed or (report.nodeid if report.failed else "")


def child(tests: list[str], slow: bool, folder: Path, pipe: Any, seconds: int) -> None:
    """In a process of its own: run the tests against the copy of the source, and send what came of
    it.
    """
    import pytest

    resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds))
    quiet = os.open(os.devnull, os.O_WRONLY)
    os.dup2(quiet, 1)
    os.dup2(quiet, 2)
    os.chdir(folder)  # doctests are those of the copy, too
    sys.path.insert(0, str(folder / "src"))
    os.environ["PYTHONPATH"] = str(folder / "src")
    sys.dont_write_bytecode = True
    plugin = Chosen(tests, slow)
    files = list(dict.fromkeys(test.split("::")[0] for test in tests))
    options = [
        "-x",
        "-q",
        "-n0",
        "-p",
        "no:randomly",
        "-p",
        "no:cacheprovider",
        f"--basetemp={folder / 'tmp'}",
    ]
    code = pytest.main([*options, *files], plugins=[plugin])
    failed = plugin.failed or ("collection" if code in (2, 3, 4) else "")
    pipe.send((failed, failed in plugin.marked, plugin.ran))


def called(
    tests: list[str], slow: bool, folder: Path, seconds: int
) -> tuple[str, bool, list[str]] | None:
    """The first of the tests that fails, whether it is slow, and those that ran; None when time is
    up.
    """
    ours, theirs = multiprocessing.get_context("fork").Pipe(duplex=False)
    process = multiprocessing.get_context("fork").Process(
        target=child, args=(tests, slow, folder, theirs, seconds)
    )
    process.start()
    theirs.close()
    answer: tuple[str, bool, list[str]] | None = None
    try:
        if ours.poll(20 * seconds):  # one that sleeps uses no CPU
            answer = ours.recv()
    except EOFError:
        process.join()
        if process.exitcode not in (-signal.SIGXCPU, -signal.SIGKILL):
            answer = "the process died", False, []
    process.kill()
    process.join()
    return answer


def tried(mutant: Mutant, tests: list[str], folder: Path, limit: int) -> Outcome:
    """The mutant in a copy of the source, its tests run until one fails."""
    path = folder / "src" / "metacal" / mutant.file
    original = path.read_bytes()
    path.write_bytes(mutant.applied(original))
    for compiled in path.parent.glob(f"__pycache__/{path.stem}.*"):
        compiled.unlink()
    start, ran, verdict, failed = time.monotonic(), list[str](), "lived" if tests else "no test", ""
    try:
        for slow in (
            False,
            True,
        ):  # a few of the fast first: to collect them all takes longer than most mutants live
            some = tests if slow else tests[:FIRST]
            left = [test for test in some if test not in ran]
            answer = called(left, slow, folder, limit) if left else ("", False, [])
            if answer is None:
                verdict = "out of time"
                break
            ran += answer[2]
            if failed := answer[0]:
                verdict = "slow" if answer[1] else "fast"
                break
    finally:
        path.write_bytes(original)
    return Outcome(verdict, failed, len(ran), round(time.monotonic() - start, 1))


def prepared(folder: Path) -> None:
    """A copy of source and tests, for the source to change; and what every child would import,
    imported once.
    """
    for name, value in (
        ("SCIPY_ARRAY_API", "1"),
        ("OPENBLAS_NUM_THREADS", "1"),
        ("OMP_NUM_THREADS", "1"),
    ):
        os.environ.setdefault(name, value)
    os.environ.setdefault("METACAL_DATA", str(ROOT.parent / "shared" / "data"))
    for name in ("src", "tests"):
        shutil.copytree(
            ROOT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__", "*.egg-info")
        )
    for path in ROOT.iterdir():
        if path.name not in ("src", "tests", ".git"):
            (folder / path.name).symlink_to(path)
    compileall.compile_dir(folder / "src", quiet=2)
    for name in (
        "numpy",
        "scipy.stats",
        "scipy.optimize",
        "scipy.special",
        "sklearn.linear_model",
        "click.testing",
    ):
        importlib.import_module(name)
    for name in (
        "hypothesis.strategies",
        "hypothesis.extra.numpy",
        "pandas",
        "_pytest.assertion.rewrite",
    ):
        importlib.import_module(name)


def main() -> None:
    """Draw, try, write."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--contexts",
        type=Path,
        required=True,
        help="coverage.py's data, with the tests as contexts",
    )
    parser.add_argument(
        "--durations", type=Path, help='JSON: {"test": seconds}, for shortest first'
    )
    parser.add_argument("--mutants", type=int, default=150)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument(
        "--seconds", type=int, default=60, help="of CPU, for the fast tests and again for the slow"
    )
    parser.add_argument(
        "--resume", action="store_true", help="keep what --out has killed; try the rest"
    )
    parser.add_argument("--out", type=Path, default=RESULTS)
    options = parser.parse_args()
    former = json.loads(options.out.read_text())["mutants"] if options.resume else []
    done = {
        (e["file"], e["line"], e["start"], e["new"]): e
        for e in former
        if e["verdict"] in ("fast", "slow")
    }
    reached = tests_by_line(options.contexts)
    seconds = json.loads(options.durations.read_text()) if options.durations else {}
    tried_so_far: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as name:
        prepared(Path(name))
        for mutant in drawn(options.mutants, options.seed):
            tests = sorted(
                reached.get((mutant.file, mutant.line), ()),
                key=lambda test: (seconds.get(test, 9.0), test),
            )
            known = done.get((mutant.file, mutant.line, mutant.start, mutant.new))
            entry = known or asdict(mutant) | asdict(
                tried(mutant, tests, Path(name), options.seconds)
            )
            tried_so_far.append(entry)
            counts = Counter(entry["verdict"] for entry in tried_so_far)
            answer = {"seed": options.seed, "counts": dict(counts), "mutants": tried_so_far}
            options.out.write_text(json.dumps(answer, indent=1) + "\n")
            print(entry, flush=True)
        killers = sorted({entry["by"] for entry in tried_so_far if "::" in entry["by"]})
        answer["fail without a mutant"] = (
            called(killers, True, Path(name), 3600) or ("out of time",)
        )[0]
    options.out.write_text(json.dumps(answer, indent=1) + "\n")
    print(answer["counts"], answer["fail without a mutant"])


if __name__ == "__main__":
    main()
