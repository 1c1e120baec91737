"""Sealed lines of a journal, and the content of its file."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import Any, ClassVar

Record = dict[str, Any]


class Seal:
    """Checksum of records, which reveals damage and careless edits.

    A subclass signs with a key.
    """

    uses_key: ClassVar[bool] = False

    def compute(self, content: bytes) -> str:
        """Return the seal of the content as text without spaces."""
        return hashlib.blake2b(content, digest_size=8).hexdigest()

    def matches(self, value: str, content: bytes) -> bool:
        """Check whether a seal belongs to the content."""
        return value == self.compute(content)


#: Number of characters of a seal that was computed without a key. A signature is longer.
CHECKSUM_LENGTH = len(Seal().compute(b""))


@dataclass(frozen=True)
class SealedLine:
    """Line of a journal with a valid seal.

    Attributes
    ----------
    record : dict
        Record of the line.

    seal : str
        Seal of the line. The seal of the following line covers it too.

    content : bytes
        The whole line, which ends with a newline.
    """

    record: Record
    seal: str
    content: bytes


@dataclass(frozen=True)
class JournalContent:
    """Content of a journal file.

    Attributes
    ----------
    valid_lines : bytes
        Beginning of the file, up to the first line without a valid seal.

    tail : bytes
        Rest of the file.

    repaired_line : SealedLine or None
        Repair of the tail, if that is possible.
    """

    valid_lines: bytes
    tail: bytes
    repaired_line: SealedLine | None
