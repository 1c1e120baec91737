"""Which digits of a page are measurements: decimals, percentages, times, sizes, "so many of so
many".

Left out are code, links and what the code of the page prints (tests run it), tables made from
results, numbers that name their source, numbers that are said to be given, and by their shape:
versions (NumPy 1.26), parameters (β = .97), defaults of options, whole percentages of a promise
("at least 97%", "with 90% confidence", "95% intervals").
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from benchmarks.pages.source_notes import inline_notes

#: Why a number may stand without a result.
KINDS = (
    "definition",  # a parameter, a target, a limit of the software
    "arithmetic",  # follows from what stands beside it
    "paper",  # printed in a paper, which is named
    "other software",  # its documentation says so
    "shown",  # printed by code that the tests run
)

_GIVEN = re.compile(r"<!-- ?given: ([^>]*?) ?-->")
_NUMBER = r"(?:\d[\d,]*)?(?:\.\d+)(?:e[-+]?\d+)?%?|\d[\d,]*%|\d(?:\.\d+)?e[-+]?\d+"
_UNIT = (
    r"\d(?:[\d,]*\d)?(?= ?(?:ms|µs|ns|s|seconds|minutes|min|hours|kB|KB|MB|GB|TB)\b"
    r"| times (?:as|faster|slower|less|more|longer|the|its|that)\b| ?×(?! ?\d))"
)
_SHARE = r"\d+(?= million\b)|\d{1,2}(?= points?\b)|\d(?:[\d,]*\d)?(?= (?:in any )?of (?:the )?\d)"
MEASURED = re.compile(rf"(?<![\w.\-/^])[-+−±]?(?:{_NUMBER}|{_UNIT}|{_SHARE})(?![\w])")
_MORE = rf"(?:(?:,| and| or| to| …|, …,| /| and of|,? then| instead of) ?(?:{_NUMBER}|\d+))*"
_FENCE = re.compile(
    r"(?P<before>^ *```\s*\n\s*)?^ *```(?P<kind>\w*).*?^ *```[ \t]*$", re.MULTILINE | re.DOTALL
)
_HARMLESS = [
    re.compile(pattern.replace(" ", r"\s"))
    for pattern in (
        r"\b[A-Za-z][\w.+-]*[ =]v?\d+\.\d+\.\d+[\w.+]*",  # versions: three parts
        r"\d+\.\d+\.\d+[\w.+]*",
        r"(?:Python|NumPy|SciPy|scikit-learn|MAPIE|torch|Triton|onnxruntime|ONNX|PyArrow|pyarrow|pandas|click|OpenCV|"
        r"probmetrics|netcal|betacal|glibc|Clang|version|versions|CUDA|metacal|opset|Dask|Polars|DuckDB|Ray|Spark"
        r")(?:'s)? (?:\d+\.\d+)(?:(?:, | and | or | to )\d+\.\d+)*",
        (
            r"(?<![A-Za-z])[A-Za-zα-ωΑ-Ω²′']{1,2}(?:\([a-z]\))? ?(?:[=≤≥<>∈≠]|<=|>=)"
            rf" ?[-+−]?(?:{_NUMBER}|\d+){_MORE}"
        ),
        (
            r"\d+% ?(?:of the time, )?(?:with |and )?(?:\d+% )?(?:confidence|confidence"
            r" interval|intervals?|band|bands)\b"
        ),
        (
            r"(?:at least|at most|least|most|more than|less"
            r" than|below|above|confidence|level|target|exactly) (?:of )?\d+%"
        ),
        r"right \d+% of the time",
        r"\b[Dd]efault: \d+(?:\.\d+)?",  # of an option; a test compares the page with the commands
    )
]


@dataclass(frozen=True)
class Unsourced:
    """A measured digit that does not say where it comes from."""

    line: int
    number: str
    text: str


def kinds(text: str) -> Iterator[str]:
    """What each number that is given is said to be."""
    for found in _GIVEN.finditer(inline_notes(text)):
        yield found[1].split(",")[0].split(":")[0].strip()


def unsourced(text: str) -> Iterator[Unsourced]:
    """Every measured digit of a page without a source."""
    lines = text.split("\n")
    for at, line in enumerate(_bare(inline_notes(text)).split("\n")):
        for found in MEASURED.finditer(line):
            yield Unsourced(at + 1, found[0], lines[at].strip())


def _bare(text: str) -> str:
    """The page with everything that needs no source blanked out, line by line."""
    text = _FENCE.sub(_printed, text)
    text = re.sub(
        r"^<!-- (?!end|given)[\w-]+ -->\n.*?^<!-- end -->",
        _blank,
        text,
        flags=re.MULTILINE | re.DOTALL,
    )
    text = re.sub(
        r"^ *<!-- given: [^\n]*-->\n.*?(?=\n\s*\n|\Z)", _blank, text, flags=re.MULTILINE | re.DOTALL
    )
    text = re.sub(r"`[^`]*`", _blank, text)
    text = re.sub(
        r"[-+−±]?(?:\d[\d.]*e[-+]\d+|[A-Za-z]+-[a-z]+|[\w.,%]+)<!--(?:=|given:)(?:(?!-->).)*-->",
        "~",
        text,
    )
    text = re.sub(r"<!--.*?-->", _blank, text, flags=re.DOTALL)
    text = re.sub(r"\]\([^)]*\)", "]", text)
    text = re.sub(r"^    .*$", _blank, text, flags=re.MULTILINE)
    for pattern in _HARMLESS:
        text = pattern.sub(lambda found: "~" + _blank(found), text)
    return text


def _printed(found: re.Match[str]) -> str:
    """Nothing of a fenced block, but of ```text that stands alone: nobody runs what is said to
    print that.
    """
    alone = found["kind"] == "text" and not found["before"]
    return found[0] if alone else _blank(found)


def _blank(found: re.Match[str]) -> str:
    return "\n" * found[0].count("\n")
