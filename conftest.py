"""Doctests import their module once, and compare errors without the help link below the message."""

from __future__ import annotations

import contextlib
import importlib
from pathlib import Path

import pytest
from _pytest.doctest import DoctestItem

from metacal.errors import MetacalError

_SOURCE_FOLDER = Path(__file__).parent / "src"


def pytest_collect_file(file_path: Path) -> None:
    """Import a module of metacal before pytest does.

    If importing a package imports its modules, pytest would import the module of a doctest again.
    A module that registers something, such as a metric, would fail or start an empty registry.
    """
    is_module = file_path.suffix == ".py" and file_path.name != "__main__.py"
    if not is_module or not file_path.is_relative_to(_SOURCE_FOLDER):
        return
    name_parts = file_path.relative_to(_SOURCE_FOLDER).with_suffix("").parts
    if name_parts[-1] == "__init__":
        name_parts = name_parts[:-1]
    with contextlib.suppress(ImportError):
        importlib.import_module(".".join(name_parts))


@pytest.fixture(autouse=True)
def _errors_without_help_link(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Leave the note out of doctests: doctest compares only the last line of an error."""
    if isinstance(request.node, DoctestItem):
        monkeypatch.setattr(MetacalError, "add_note", lambda self, note: None)
