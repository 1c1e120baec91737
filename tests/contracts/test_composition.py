"""Every promise × evidence × deed works or says why not, as `composition.txt` has it."""

from __future__ import annotations

import pytest

from contracts import composition


def kept(kind: str) -> list[str]:
    return [
        line
        for line in composition.TABLE.read_text(encoding="utf-8").splitlines()
        if line.startswith(f"{kind} |")
    ]


@pytest.mark.slow
@pytest.mark.parametrize("kind", composition.KINDS)
def test_cells_are_as_written_down(kind):
    """After a change: python tests/contracts/composition.py, and read the difference."""
    found = [
        f"{kind} | {name} | {deed} | {said}"
        for name, kind, deed, said in composition.cells((kind,))
    ]
    assert found == kept(kind)


def test_no_cell_ends_in_an_error_that_nobody_wrote():
    assert [
        line
        for line in composition.TABLE.read_text(encoding="utf-8").splitlines()
        if "| BUG" in line
    ] == []
