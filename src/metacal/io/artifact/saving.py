"""Nothing is saved that cannot be loaded: what is to be written is read back first, and must decide the same."""

from __future__ import annotations

from metacal.errors import ArtifactError
from metacal.gate import CascadeGate, Gate, ScoredGate
from metacal.io.artifact.document import Document, content_of
from metacal.io.artifact.probe import same_answers
from metacal.io.artifact.signature import KeySource, read_key
from metacal.io.artifact.wrapping import MAX_BYTES, text_of, unwrapped


def text_that_loads(
    document: Document,
    gate: Gate | CascadeGate | ScoredGate,
    *,
    key: KeySource | None = None,
    max_bytes: int | None = None,
) -> str:
    """The text of a file, signed if there is a key, that loads to a gate which does what `gate` does.

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
        again = content_of(unwrapped(raw, max_bytes=max_bytes, key=signing)[0]).gate
    except ArtifactError as error:
        raise ArtifactError(f"this cannot be saved, for it could not be loaded: {error}") from error
    if not _same(gate, again):
        raise ArtifactError("this cannot be saved: what is read back predicts otherwise; please report it.")
    return text


def _same(gate: Gate | CascadeGate | ScoredGate, again: Gate | CascadeGate | ScoredGate) -> bool:
    if isinstance(gate, ScoredGate) or isinstance(again, ScoredGate):
        return gate == again
    return same_answers(gate, again)
