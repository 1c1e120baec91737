"""Pages other than Benchmarks and Reference contain only numbers that a reader acts on."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
#: Largest number of numbers on these pages together, tables and code included.
MAX_NUMBERS = 3000
#: Size of CONTRIBUTING.md, which a person reads before a first contribution.
MAX_CONTRIBUTING_BYTES = 8192
#: Indexes of the pages that are counted.
COUNTED_INDEXES = ("tutorials", "how-to", "explanation")

#: Text that a reader of the site does not see, or that is not prose.
INVISIBLE = re.compile(
    r"<!--.*?-->|<svg.*?</svg>|^```\{toctree\}.*?^```$", re.MULTILINE | re.DOTALL
)
LINK_TARGET = re.compile(r"\]\([^)]*\)")
NUMBER = re.compile(r"(?<![\w.#/-])\d[\d,]*(?:\.\d+)?%?(?!\w)|(?<!\w)\.\d+")


def listed_pages(index):
    """Return an index and the pages in its table of contents."""
    text = (DOCS / f"{index}.md").read_text(encoding="utf-8")
    contents = re.search(r"^```\{toctree\}\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    names = re.findall(r"^[\w/-]+$", contents[1], re.MULTILINE)
    pages = [DOCS / f"{name}.md" for name in (index, *names)]
    return [page for page in pages if page.exists()]


def count_numbers(text):
    return len(NUMBER.findall(LINK_TARGET.sub("]", INVISIBLE.sub("", text))))


def test_numbers_are_counted():
    assert count_numbers("At 97%, .5 of 1,000 rows; [3](page.md#4) <!-- 5 -->") == 4


def test_pages_have_few_numbers():
    pages = [ROOT / "README.md", ROOT / "CHANGELOG.md", ROOT / "CONTRIBUTING.md", DOCS / "index.md"]
    for index in COUNTED_INDEXES:
        pages += listed_pages(index)
    numbers = {page.name: count_numbers(page.read_text(encoding="utf-8")) for page in pages}
    most = sorted(numbers.items(), key=lambda entry: -entry[1])[:5]
    assert sum(numbers.values()) < MAX_NUMBERS, f"move evidence to Benchmarks; most are in {most}"


def test_contributing_is_short():
    assert (ROOT / "CONTRIBUTING.md").stat().st_size <= MAX_CONTRIBUTING_BYTES
