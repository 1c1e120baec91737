"""The fingerprint of a result follows what its code computes, not how it is written."""

from __future__ import annotations

import pytest

from benchmarks.all.catalogue import CATALOGUE
from benchmarks.all.fingerprint import ABOUT, USED, Code, is_same

ENTRY = ("benchmarks.study:main",)

STUDY = '''
"""Measure something."""
import json
from metacal.rules import certify, make_sample
from metacal.registry import METHODS
from metacal.words import explain


def main():
    """Run the study."""
    sample = make_sample(3)
    found = [certify(sample, target, level=0.1) for target in (0.9, 0.95)]
    fitted = METHODS["plain"].fit(found)
    json.dump({"found": found, "fitted": fitted}, open("out.json", "w"))


if __name__ == "__main__":
    main()
'''

RULES = '''
from dataclasses import dataclass, replace

import numpy as np

from metacal.words import explain

_MARGIN = 0.25


@dataclass(frozen=True)
class Sample:
    """Rows that are counted."""

    n_rows: int
    n_errors: int = 0

    def share(self) -> float:
        return self.n_errors / self.n_rows

    def __repr__(self):
        return "a sample"


def make_sample(n):
    return Sample(n_rows=n, n_errors=1)


def certify(sample: Sample, target: float, *, level: float) -> float:
    """Return the largest threshold, or complain."""
    if target > 1.0:
        raise ValueError(f"target must be at most 1, got {explain(target)}.")
    bound = sample.share() + _margin(level)
    larger = replace(sample, n_errors=sample.n_errors + 1)
    return float(np.maximum(bound, larger.share()))


def _margin(level):
    return _MARGIN * level


def unused(x):
    return x + 1
'''

REGISTRY = """
class Row:
    def __init__(self, name, place):
        self.name, self.place = name, place

    def fit(self, values):
        module, _, name = self.place.partition(":")
        return getattr(__import__(module), name)(values)


_ROWS = (
    Row("plain", "maps:fit_plain"),
    Row("fancy", "maps:fit_fancy"),
    Row("odd", "maps:fit_odd"),
)
METHODS = {row.name: row for row in _ROWS}
"""

MAPS = """
def fit_plain(values):
    return sum(values) / 2


def fit_fancy(values):
    return sum(values) / 3


def fit_odd(values):
    return sum(values) / 5
"""

WORDS = """
def explain(value):
    return f"the value {value}"
"""

FILES = {
    "benchmarks/__init__.py": "",
    "benchmarks/study.py": STUDY,
    "src/metacal/__init__.py": "",
    "src/metacal/rules.py": RULES,
    "src/metacal/registry.py": REGISTRY,
    "src/metacal/maps.py": MAPS,
    "src/metacal/words.py": WORDS,
}


@pytest.fixture
def fingerprint(tmp_path):
    """Return the fingerprint of the study in a tree with some replacements and further files."""

    def compute(*replacements, entries=ENTRY, rooms=(), key=USED, **more):
        count = len(list(tmp_path.iterdir()))
        root = tmp_path / str(count)
        for name, text in {**FILES, **more}.items():
            for old, new in replacements:
                text = text.replace(old, new)
            path = root / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
        return Code(root).fingerprints(entries, rooms)[key]

    return compute


KEPT = {
    "a local variable": [("bound", "upper_bound")],
    "a parameter, with its keyword": [("level", "error_level")],
    "a comprehension variable": [("for target in", "for goal in"), ("sample, target,", "sample, goal,")],
    "a private function": [("_margin", "_margin_of_level")],
    "an exported function": [("certify", "certify_threshold")],
    "a class": [("Sample", "CountedRows")],
    "a field": [("n_errors", "n_incorrect")],
    "a method": [("share()", "error_rate()"), ("def share(self)", "def error_rate(self)")],
    "a module constant": [("_MARGIN", "_SAFETY_MARGIN")],
    "a registry": [("METHODS", "CALIBRATORS"), ("_ROWS", "_TABLE")],
    "a registered function": [("fit_plain", "fit_simple")],
}  # fmt: skip


@pytest.mark.parametrize("replacements", KEPT.values(), ids=KEPT)
def test_a_renamed_thing_keeps_the_fingerprint(fingerprint, replacements):
    assert fingerprint(*replacements) == fingerprint()


EDITED_WORDS = {
    "a docstring": [("Run the study.", "Run all of the study.")],
    "the text of an error": [("must be at most 1", "is too large")],
    "what only an error prints": [("the value {value}", "{value!r}, rounded")],
    "what shows an object": [('"a sample"', '"a sample of rows"')],
    "an annotation": [(") -> float:", "):"), ("target: float", "target: int")],
    "a comment": [("_MARGIN = 0.25", "# The margin.\n_MARGIN = 0.25  # A quarter.")],
    "line breaks": [("(bound, larger.share())", "(\n        bound,\n        larger.share(),\n    )")],
    "an import": [("import numpy as np", "import numpy"), ("np.maximum", "numpy.maximum")],
    "a function that nobody calls": [("return x + 1", "return x + 2")],
    "a registry row that is not used": [("/ 3", "/ 4"), ('"fancy"', '"splendid"')],
    "the order of rows": [('    Row("odd", "maps:fit_odd"),\n', ""), ("_ROWS = (", '_ROWS = (\n    Row("odd", "maps:fit_odd"),')],
}  # fmt: skip


@pytest.mark.parametrize("replacements", EDITED_WORDS.values(), ids=EDITED_WORDS)
def test_what_computes_nothing_does_not_count(fingerprint, replacements):
    assert fingerprint(*replacements) == fingerprint()


EDITED_CODE = {
    "a constant in a function": [("(0.9, 0.95)", "(0.9, 0.96)")],
    "a module constant": [("_MARGIN = 0.25", "_MARGIN = 0.26")],
    "an operator": [("self.n_errors / self.n_rows", "self.n_errors * self.n_rows")],
    "the field that is read": [("self.n_errors / self.n_rows", "self.n_rows / self.n_rows")],
    "the value of a field": [("n_rows=n, n_errors=1", "n_rows=n, n_errors=2")],
    "the field that is set": [("n_rows=n, n_errors=1", "n_errors=n, n_rows=1")],
    "the default of a field": [("n_errors: int = 0", "n_errors: int = 1")],
    "the function of a library": [("np.maximum", "np.minimum")],
    "the function that is called": [("+ _margin(level)", "+ unused(level)")],
    "the order of arguments": [("certify(sample, target,", "certify(target, sample,")],
    "which local variable is used": [("float(np.maximum(bound,", "float(np.maximum(target,")],
    "a registered function": [("/ 2", "/ 4")],
    "which row is used": [('METHODS["plain"]', 'METHODS["odd"]')],
    "a condition before an error": [("if target > 1.0", "if target > 2.0")],
    "the kind of an error": [("raise ValueError", "raise TypeError")],
    "the key of a result": [('{"found": found', '{"all found": found')],
}


@pytest.mark.parametrize("replacements", EDITED_CODE.values(), ids=EDITED_CODE)
def test_what_computes_something_else_changes_the_fingerprint(fingerprint, replacements):
    assert fingerprint(*replacements) != fingerprint()


def test_a_function_may_move_to_another_file(fingerprint):
    """With its import; the order of the functions in a file does not matter either."""
    moved = """def _margin(level):
    return _MARGIN * level
"""
    rules = RULES.replace(moved, "").replace(
        "_MARGIN = 0.25", "from metacal.margins import _margin"
    )
    margins = f"_MARGIN = 0.25\n\n\n{moved}"
    files = {"src/metacal/rules.py": rules, "src/metacal/margins.py": margins}
    assert fingerprint(**files) == fingerprint()
    first, second = MAPS.strip().split("\n\n\n")[:2]
    reordered = MAPS.replace(first, "FIRST").replace(second, first).replace("FIRST", second)
    assert fingerprint(**{"src/metacal/maps.py": reordered}) == fingerprint()


def test_every_row_of_a_registry_counts_if_the_catalogue_names_it(fingerprint):
    entries = (*ENTRY, "metacal.registry:METHODS[*]")
    whole = fingerprint(entries=entries)
    assert fingerprint(("/ 3", "/ 4"), entries=entries) != whole
    assert fingerprint(("return x + 1", "return x + 2"), entries=entries) == whole


def test_a_result_is_stale_only_if_the_rooms_it_is_about_change(fingerprint):
    about = {"rooms": ("benchmarks",), "key": ABOUT}
    assert fingerprint(("_MARGIN = 0.25", "_MARGIN = 0.3"), **about) == fingerprint(**about)
    assert fingerprint(("0.95", "0.96"), **about) != fingerprint(**about)


def test_a_stamp_without_a_fingerprint_is_stale():
    assert not is_same({"maps/temperature.py": "1"}, {"all": "2", "about": "3"})
    assert not is_same({"about": "1"}, {})


@pytest.mark.slow
def test_every_entry_of_the_catalogue_is_there():
    code = Code()
    for entry in CATALOGUE.values():
        assert code.fingerprints(entry.entries, entry.rooms), (
            f"{entry.name}: correct its command, or `also`, in benchmarks/all/catalogue.py"
        )
