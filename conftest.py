"""Doctests compare errors without the help link that Python prints below the message."""

from __future__ import annotations

import pytest
from _pytest.doctest import DoctestItem

from metacal.errors import MetacalError


@pytest.fixture(autouse=True)
def _errors_without_help_link(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Leave the note out of doctests: doctest compares only the last line of an error."""
    if isinstance(request.node, DoctestItem):
        monkeypatch.setattr(MetacalError, "add_note", lambda self, note: None)
