"""Change one operator or number of the source at a time, and ask whether the tests notice.

    pytest -n0 --cov=metacal.promises --cov=metacal.gate --cov-context=test --cov-report=
    python benchmarks/mutants.py --contexts .coverage --marks "not slow" --as fast
    python benchmarks/mutants.py --contexts .coverage --as whole --again      # those that the fast ones let live

Mutants are drawn with a seed from every comparison, sum, product, number, `and`, `or` and `not` of `promises/` and
`gate/` that no message holds. A mutant is tried on the tests that run its line, which is what the first command finds
out, shortest first, until one fails; `--seconds` is what it may take in all. One whose line no test runs is not tried:
it lives. `--tests` names another checkout's folder of tests, to see what these have lost against those. Results go to
benchmarks/results/mutants.json.
"""

from __future__ import annotations

import argparse
import ast
import json
import os
import random
import re
import shutil
import subprocess
import sys
import tempfile
import time
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
    """One change: in `file` (below src/metacal), from byte `start` to `end` of `line`, `old` becomes `new`."""

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


def operator_between(left: ast.expr, right: ast.expr, old: str, lines: list[bytes]) -> tuple[int, int, int] | None:
    """Line, start and end of the operator between two operands on one line."""
    line, start = left.end_lineno, left.end_col_offset
    if line is None or start is None or right.lineno != line:
        return None
    between = lines[line - 1][start : right.col_offset].decode()
    match = re.search(rf"(?<![<>=!*/+-]){re.escape(old)}(?![<>=*/])", between)
    return None if match is None else (line, start + match.start(), start + match.end())


def is_text(node: ast.expr) -> bool:
    """Whether an operand of + is plainly a string or a tuple, where - would be no mutant but nonsense."""
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
        if isinstance(node, ast.Constant) and (change := changed_number(node.value)) and node.end_col_offset:
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
    return random.Random(seed).sample(sorted(set(known), key=lambda m: (m.file, m.line, m.start, m.new)), n)


def tests_by_line(path: Path) -> dict[tuple[str, int], set[str]]:
    """The tests that run each line, out of coverage.py's data."""
    from coverage import CoverageData

    data = CoverageData(str(path))
    data.read()
    tests: dict[tuple[str, int], set[str]] = {}
    for file in data.measured_files():
        name = "/".join(Path(file).parts[-2:])
        for line, contexts in data.contexts_by_lineno(file).items():
            tests[name, line] = {context.rsplit("|", 1)[0] for context in contexts if context}
    return tests


@dataclass(frozen=True)
class Outcome:
    """What the tests made of a mutant: `killed`, `lived`, `no test` or `out of time`, by which test, in how long."""

    verdict: str
    by: str
    tests: int
    seconds: float


def tried(mutant: Mutant, tests: list[str], folder: Path, options: argparse.Namespace) -> Outcome:
    """The mutant in a copy of the source, its tests run until one fails."""
    if not tests:
        return Outcome("no test", "", 0, 0.0)
    path = folder / "src" / "metacal" / mutant.file
    original = path.read_bytes()
    path.write_bytes(mutant.applied(original))
    start, ran, failed = time.monotonic(), 0, ""
    try:
        for some in (tests[:FIRST], tests[FIRST:]):  # a few first: to collect them all takes longer than most live
            if some and not failed:
                failed, more = called(some, folder, options, options.seconds - (time.monotonic() - start))
                ran += more
        verdict = "killed" if failed else "lived" if ran else "no test"
    except subprocess.TimeoutExpired:
        verdict, failed = "out of time", ""
    finally:
        path.write_bytes(original)
    return Outcome(verdict, failed, ran, round(time.monotonic() - start, 1))


def called(tests: list[str], folder: Path, options: argparse.Namespace, seconds: float) -> tuple[str, int]:
    """The first of the tests that fails in a process of their own, and how many were run."""
    wanted = folder / "wanted.json"
    wanted.write_text(json.dumps({"tests": tests, "marks": options.marks}))
    environment = {**os.environ, "PYTHONPATH": str(folder / "src"), "MUTANT_TESTS": str(wanted)}
    call = [sys.executable, __file__, "--worker", str(options.tests)]
    done = subprocess.run(call, env=environment, capture_output=True, text=True, timeout=max(seconds, 1.0))
    last = json.loads(done.stdout.splitlines()[-1])
    return last["failed"], last["ran"]


class Chosen:
    """A pytest plugin: of what was collected the wanted tests, in that order; the first that fails is noted."""

    def __init__(self, wanted: list[str]) -> None:
        self.order = {test: k for k, test in enumerate(wanted)}
        self.failed, self.ran = "", 0

    def pytest_collection_modifyitems(self, items: list[Any]) -> None:
        """Keep and sort."""
        items[:] = sorted((i for i in items if i.nodeid in self.order), key=lambda i: self.order[i.nodeid])

    def pytest_runtest_logreport(self, report: Any) -> None:
        """Count, and note a failure."""
        self.ran += report.when == "call"
        self.failed = self.failed or (report.nodeid if report.failed else "")

    def pytest_collectreport(self, report: Any) -> None:
        """A module that cannot be imported any more has noticed, too."""
        self.failed = self.failed or (report.nodeid if report.failed else "")


def worker(tests: Path) -> None:
    """Run what MUTANT_TESTS names and print what came of it."""
    import pytest

    wanted = json.loads(Path(os.environ["MUTANT_TESTS"]).read_text())
    os.chdir(tests.parent)
    files = list(dict.fromkeys(test.split("::")[0] for test in wanted["tests"]))
    plugin = Chosen(wanted["tests"])
    marks = ["-m", wanted["marks"]] if wanted["marks"] else []
    options = ["-x", "-q", "-n0", "-p", "no:randomly", "-p", "no:cacheprovider", *marks]
    code = pytest.main([*options, *files], plugins=[plugin])
    failed = plugin.failed or ("collection" if code in (2, 3, 4) else "")
    print("\n" + json.dumps({"failed": failed, "ran": plugin.ran}))


def main() -> None:
    """Draw, try, write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--contexts", type=Path, help="coverage.py's data, with the tests as contexts")
    parser.add_argument("--durations", type=Path, help='JSON: {"test": seconds}, for shortest first')
    parser.add_argument("--mutants", type=int, default=150)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--seconds", type=float, default=120.0)
    parser.add_argument("--marks", default="", help="which tests, as for pytest -m")
    parser.add_argument("--as", dest="column", default="fast", help="the column of the results")
    parser.add_argument("--again", action="store_true", help="only mutants that no column of the results has killed")
    parser.add_argument("--tests", type=Path, default=ROOT / "tests")
    parser.add_argument("--out", type=Path, default=RESULTS)
    parser.add_argument("--worker", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.worker:
        worker(options.worker)
        return
    options.tests = options.tests.resolve()
    run(options)


def run(options: argparse.Namespace) -> None:
    """Every mutant that is due, the file written after each."""
    answer = json.loads(options.out.read_text()) if options.out.exists() else {"seed": options.seed, "mutants": []}
    known = {json.dumps(entry["mutant"]): entry for entry in answer["mutants"]}
    reached = tests_by_line(options.contexts)
    seconds = json.loads(options.durations.read_text()) if options.durations else {}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        shutil.copytree(ROOT / "src", folder / "src", ignore=shutil.ignore_patterns("__pycache__", "*.egg-info"))
        for mutant in drawn(options.mutants, options.seed):
            entry = known.setdefault(json.dumps(asdict(mutant)), {"mutant": asdict(mutant)})
            others = [entry[column]["verdict"] for column in entry if column not in ("mutant", options.column)]
            if options.column in entry or (options.again and "killed" in others):
                continue
            tests = sorted(reached.get((mutant.file, mutant.line), ()), key=lambda test: (seconds.get(test, 9.0), test))
            entry[options.column] = asdict(tried(mutant, tests, folder, options))
            answer["mutants"] = list(known.values())
            options.out.write_text(json.dumps(answer, indent=1) + "\n")
            print(f"{mutant.file}:{mutant.line}", mutant.old, mutant.new, entry[options.column], flush=True)
    answer["killed"] = counted(answer["mutants"])
    options.out.write_text(json.dumps(answer, indent=1) + "\n")
    print(answer["killed"])


def counted(entries: list[dict[str, Any]]) -> dict[str, int]:
    """How many mutants each column has killed, alone or after those before it."""
    columns = list(dict.fromkeys(column for entry in entries for column in entry if column != "mutant"))
    killed = {"of": len(entries)}
    for k, column in enumerate(columns):
        killed[column] = sum(
            any(entry.get(each, {}).get("verdict") == "killed" for each in columns[: k + 1]) for entry in entries
        )
    return killed


if __name__ == "__main__":
    main()
