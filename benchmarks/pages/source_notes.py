"""Sources of the numbers of a section, in one comment at the end of the section.

A comment behind each number would interrupt the sentences of a page. So the sources of a section
stand together below it, in the order of the numbers:

    Certified gates accept 97.3% of the rows, on thirteen data sets.

    <!-- sources
    97.3%: cascade; pairs/*/exact/share; max; .1%
    thirteen: paper/paper; sets/*/rows; count; word
    -->

Each line has the number, or a few words that end with it if the number alone is ambiguous, and its
source (`benchmarks.pages.numbers`) or `given: KIND`. The comment is not visible on GitHub or on the
site. `inline_notes` puts the sources behind their numbers, and `collect_notes` does the reverse.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

#: A comment with the sources of the section above it.
NOTES = re.compile(r"^<!-- sources\n(?P<lines>.*?)\n-->$", re.MULTILINE | re.DOTALL)
#: A source, or the reason why a number needs none, behind its number.
_INLINE = re.compile(r"<!--(?P<source>=(?:(?!-->).)*|given:(?:(?!-->).)*)-->")
_HEADING = re.compile(r"^#{1,6} ", re.MULTILINE)
_FENCED = re.compile(r"^ *```.*?^ *```[ \t]*$", re.MULTILINE | re.DOTALL)
_LONGEST_PHRASE = 12


@dataclass(frozen=True)
class PlacedNote:
    """A note and the end of its phrase in the page."""

    phrase: str
    source: str
    position: int


def inline_notes(text: str) -> str:
    r"""Put each source behind its number, and leave blank lines in place of the notes.

    Raises
    ------
    ValueError
        If a section does not contain the phrase of a note.

    Examples
    --------
    >>> print(inline_notes("It is 3% of 7.\n\n<!-- sources\n3%: cascade; x; .0%\n-->\n").strip())
    It is 3%<!--=cascade; x; .0%--> of 7.
    """
    pieces = []
    end_of_piece = 0
    for block, notes in _blocks(text):
        for note in notes:
            pieces.append(text[end_of_piece : note.position])
            is_given = note.source.startswith("given:")
            pieces.append(f"<!--{'' if is_given else '='}{note.source}-->")
            end_of_piece = note.position
        pieces.append(text[end_of_piece : block.start()])
        pieces.append("\n" * block[0].count("\n"))
        end_of_piece = block.end()
    return "".join([*pieces, text[end_of_piece:]])


def collect_notes(text: str) -> str:
    r"""Move the sources behind numbers to the end of their sections.

    Examples
    --------
    >>> print(collect_notes("It is 3%<!--=cascade; x; .0%--> of 7.\n"))
    It is 3% of 7.
    <BLANKLINE>
    <!-- sources
    3%: cascade; x; .0%
    -->
    <BLANKLINE>
    """
    sections = [_collect_section(section) for section in _sections(inline_notes(text))]
    return "".join(sections).rstrip() + "\n"


def _sections(text: str) -> list[str]:
    """Divide a page before each heading."""
    starts = _section_starts(text)
    return [text[begin:end] for begin, end in zip(starts, [*starts[1:], len(text)], strict=True)]


def _section_starts(text: str) -> list[int]:
    """List the position of each heading, and that of the text before the first one."""
    headings = [heading.start() for heading in _HEADING.finditer(_without_code(text))]
    return [0, *(position for position in headings if position > 0)]


def _without_code(text: str) -> str:
    """Replace the characters of fenced blocks by blanks, so that positions stay the same."""
    return _FENCED.sub(lambda block: re.sub(r"[^\n]", " ", block[0]), text)


def _collect_section(section: str) -> str:
    """Move the sources of one section to its end."""
    pieces = _INLINE.split(section)
    texts, sources = pieces[::2], pieces[1::2]
    if not sources:
        return section
    plain = "".join(texts)
    lines = []
    position = 0
    end_of_number = 0
    for before, source in zip(texts, sources, strict=False):
        end_of_number += len(before)
        phrase = _shortest_phrase(plain, position, end_of_number)
        lines.append(f"{phrase}: {source.removeprefix('=').strip()}")
        position = end_of_number
    notes = "\n".join(["<!-- sources", *lines, "-->"])
    return f"{plain.rstrip()}\n\n{notes}\n\n"


def _shortest_phrase(text: str, start: int, end: int) -> str:
    """Choose the words up to `end` that are found first when one searches from `start`."""
    words = re.split(r"(?<=\S)(?=\s)", text[start:end])
    for n_words in range(1, _LONGEST_PHRASE + 1):
        phrase = " ".join("".join(words[-n_words:]).split())
        if n_words == 1:
            phrase = re.sub(r"^[^\w\d.+−±-]+", "", phrase)
        if _end_of_phrase(text, phrase, start) == end:
            return phrase
    raise ValueError(f"No phrase before {text[end - 40 : end]!r} is unique.")


def _end_of_phrase(text: str, phrase: str, start: int) -> int | None:
    """Find a phrase as whole words outside of code, and return the position behind it."""
    pattern = r"\s+".join(re.escape(word) for word in phrase.split())
    found = re.compile(rf"(?<![\w.]){pattern}(?![\w%]|\.\d)").search(_without_code(text), start)
    return found.end() if found else None


def _blocks(text: str) -> Iterator[tuple[re.Match[str], list[PlacedNote]]]:
    """Find each comment with sources, and where its numbers end in the page."""
    starts = _section_starts(text)
    end_of_last_block = 0
    for block in NOTES.finditer(text):
        notes = []
        start_of_section = max(start for start in starts if start <= block.start())
        position = max(start_of_section, end_of_last_block)
        for line in block["lines"].split("\n"):
            phrase, separator, source = line.partition(": ")
            end = _end_of_phrase(text[: block.start()], phrase, position)
            if not separator or end is None:
                raise ValueError(
                    f"The text above the comment does not contain {phrase!r}, or not in this"
                    f" order. Write the lines as NUMBER: SOURCE, in the order of the text: {line!r}"
                )
            notes.append(PlacedNote(phrase, source, end))
            position = end
        yield block, notes
        end_of_last_block = block.end()
