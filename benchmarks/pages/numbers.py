"""Measured numbers inside a sentence. A comment at the end of the section names their sources.

    Certified gates accept 97.3% of the rows.

    <!-- sources
    97.3%: cascade; pairs/*/exact/share; max; .1%
    -->

A source is a result (a path below `benchmarks/results`, without `.json`), where in it, how several
values become one (`min`, `max`, `mean`, `sum`, `count`; left out if there is one), and a format.
The comment is not visible on GitHub or on the site. `benchmarks.pages.source_notes` describes it;
while a page is processed, each source stands behind its number, as
`97.3%<!--=cascade; pairs/*/exact/share; max; .1%-->`. *Where* is a chain of keys with `/`
between them: `*` is every one, `0` the first of a list, `rows[n=300&rule=auto]` those of a list
that have these values, `[n>=1000]` and `[n!=300]` likewise. A result that begins with `@` is one of
`benchmarks.pages.figures`, for numbers that take some arithmetic. A format is one of Python's
(`.3f`, `,d`, `.1%`), a share without its leading zero (`.3`), points of a percentage (`.1p`), a
factor before one of these (`1000*.1f`), or `word` (twenty-two).

A number that was not measured but looks like it, in a paper or by definition, has the source
`given: KIND, ...`. A line `<!-- given: KIND, ... -->` stands for the paragraph or table below it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np

from benchmarks.pages import RESULTS
from benchmarks.pages.source_notes import collect_notes, inline_notes
from benchmarks.tables.markdown import number

#: A number, or a word for one, and the comment that says where it comes from.
MARKED = re.compile(
    r"([-+−±]?(?:\d[\d.]*e[-+]\d+|[A-Za-z]+-[a-z]+|[\w.,%]+))<!--=((?:(?!-->).)*)-->"
)
GATHER: dict[str, Callable[[Sequence[float]], float]] = {
    "min": min, "max": max, "sum": sum, "count": len, "mean": lambda values: float(np.mean(values)),
    "median": lambda values: float(np.median(values)),
}  # fmt: skip
_STEP = re.compile(r"([^\[\]]*)(?:\[(.*)\])?")
_TEST = re.compile(r"([^<>=!]+)(>=|<=|!=|=)(.*)")
_WORDS = (
    "no",
    "one",
    "two",
    "three",
    "four",
    "five",
    "six",
    "seven",
    "eight",
    "nine",
    "ten",
    "eleven",
    "twelve",
    # Fmt: skip.
    "thirteen",
    "fourteen",
    "fifteen",
    "sixteen",
    "seventeen",
    "eighteen",
    "nineteen",
)
_TENS = {
    2: "twenty",
    3: "thirty",
    4: "forty",
    5: "fifty",
    6: "sixty",
    7: "seventy",
    8: "eighty",
    9: "ninety",
}


@dataclass(frozen=True)
class Source:
    """Where a number comes from."""

    result: str
    where: str
    gather: str
    form: str

    @classmethod
    def parsed(cls, text: str) -> Source:
        """Read a comment.

        Examples
        --------
        >>> Source.parsed("cascade; pairs/*/exact/share; max; .1%")
        Source(result='cascade', where='pairs/*/exact/share', gather='max', form='.1%')
        """
        parts = [part.strip() for part in text.split(";")]
        if parts[0].startswith("@"):
            parts = [parts[0], "", *parts[1:]]
        if len(parts) == 3:
            parts.insert(2, "")
        if len(parts) != 4 or parts[2] not in ("", *GATHER):
            raise ValueError(
                f"{text!r} is no source; give RESULT; WHERE; [min, max, mean, sum or count;]"
                " FORMAT."
            )
        return cls(*parts)

    @property
    def value(self) -> float:
        """The number itself."""
        if self.result.startswith("@"):
            from benchmarks.pages.figures import figure

            return figure(self.result[1:])
        found = list(walk(loaded(self.result), self.where.split("/")))
        if not self.gather:
            if len(found) != 1:
                raise ValueError(
                    f"{self}: {len(found)} values; say which, or min, max, mean, sum or count."
                )
            return float(found[0])
        return float(GATHER[self.gather](found))

    @property
    def shown(self) -> str:
        """The number as the page has it."""
        return formatted(self.value, self.form)


@cache
def loaded(result: str) -> Any:
    """A committed result."""
    return json.loads((RESULTS / f"{result}.json").read_text(encoding="utf-8"))


def walk(found: Any, steps: Sequence[str]) -> Iterator[Any]:
    """Every value at the end of a chain of keys.

    Examples
    --------
    >>> list(walk({"rows": [{"n": 300, "x": 1}, {"n": 500, "x": 2}]}, ["rows[n>=500]", "x"]))
    [2]
    >>> list(walk({"a": {"x": 1}, "b": {"x": 2}}, ["*", "x"]))
    [1, 2]
    """
    if not steps:
        yield found
        return
    parsed = _STEP.fullmatch(steps[0])
    assert parsed is not None, steps[0]
    key, tests = parsed[1], parsed[2]
    if key == "*":
        inner = list(found.values()) if isinstance(found, dict) else list(found)
    else:
        inner = [found[int(key)] if isinstance(found, list) else found[key]] if key else [found]
    for one in inner:
        for kept in [row for row in one if _passes(row, tests)] if tests else [one]:
            yield from walk(kept, steps[1:])


def _passes(row: dict[str, Any], tests: str) -> bool:
    """Whether a row has the values that are asked for."""
    for test in tests.split("&"):
        found = _TEST.fullmatch(test)
        if found is None:
            raise ValueError(
                f"{test!r} is no test; give KEY=VALUE, KEY!=VALUE, KEY>=VALUE or KEY<=VALUE."
            )
        value, wanted = row[found[1]], found[3]
        if found[2] in (">=", "<="):
            good = (
                float(value) >= float(wanted) if found[2] == ">=" else float(value) <= float(wanted)
            )
        else:
            same = str(value) == wanted or (
                type(value) in (int, float) and _as_number(wanted) == value
            )
            good = same == (found[2] == "=")
        if not good:
            return False
    return True


def _as_number(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None


def formatted(value: float, form: str) -> str:
    """A number as it is shown.

    Examples
    --------
    >>> formatted(0.0456, ".3"), formatted(0.0456, ".1p"), formatted(22, "word"), formatted(0.0042, "1000*.1f")
    ('.046', '4.6', 'twenty-two', '4.2')
    """
    if "*" in form:
        factor, form = form.split("*")
        return formatted(value * float(factor), form)
    if form == "word":
        return words(round(value))
    if form in (",d", "d"):
        return format(round(value), form)
    if found := re.fullmatch(r"(\+?)\.(\d)(p?)", form):
        text = f"{100 * value:.{found[2]}f}" if found[3] else number(value, int(found[2]))
        return f"+{text}" if found[1] and value >= 0 else text
    return format(value, form)


def words(count: int) -> str:
    """A whole number below one hundred, spelled out."""
    if count < 20:
        return _WORDS[count]
    tens, ones = divmod(count, 10)
    return _TENS[tens] + (f"-{_WORDS[ones]}" if ones else "")


def sources(text: str) -> Iterator[tuple[str, Source]]:
    """Every number of a page that names its source, as it is shown, and the source."""
    for found in MARKED.finditer(inline_notes(text)):
        yield found[1], Source.parsed(found[2])


def filled(text: str) -> str:
    """The page with every such number as the results have it; "Twenty" stays with its capital."""

    def renewed(found: re.Match[str]) -> str:
        shown = Source.parsed(found[2]).shown
        return f"{shown.capitalize() if found[1][0].isupper() else shown}<!--={found[2]}-->"

    return collect_notes(MARKED.sub(renewed, inline_notes(text)))
