"""Nothing is saved that cannot be loaded: what is to be written is read back first, and must decide the same."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from metacal.artifact.describing import Document
from metacal.artifact.probe import same_answers
from metacal.artifact.signature import KeySource, read_key
from metacal.artifact.wrapping import MAX_BYTES, text_of, unwrapped
from metacal.errors import ArtifactError


def text_that_loads(
    document: Document,
    fitted: Any,
    read: Callable[[Document], Any],
    *,
    key: KeySource | None = None,
    max_bytes: int | None = None,
) -> str:
    """The text of a file, signed if there is a key, that `read` turns back into a map which does what `fitted` does.

    Raises ArtifactError, with what to do, where there is no such file.
    """
    signing = None if key is None else read_key(key)
    text = text_of(document, signing)
    raw = text.encode()
    if len(raw) > (max_bytes or MAX_BYTES):
        raise ArtifactError(
            f"the file would have {len(raw) / 2**20:.0f} MB, more than load takes by default "
            f"({MAX_BYTES / 2**20:.0f} MB); save and load it with max_bytes={len(raw)} if it must be so large."
        )
    try:
        again = read(unwrapped(raw, max_bytes=max_bytes, key=signing)[0])
    except ArtifactError as error:
        raise ArtifactError(f"this cannot be saved, for it could not be loaded: {error}") from error
    if not same_answers(fitted, again, len(document["classes"]["values"])):
        raise ArtifactError("this cannot be saved: what is read back predicts otherwise; please report it.")
    return text
