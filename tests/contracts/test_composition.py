"""Every promise × evidence × deed works or says why not, as `composition.txt` has it."""

from __future__ import annotations

import pytest

from contracts import composition

#: Cells that end in an error nobody wrote, all of cascades; there may only be fewer.
MOST_BUGS = 28


def kept(kind: str) -> list[str]:
    return [line for line in composition.TABLE.read_text(encoding="utf-8").splitlines() if line.startswith(f"{kind} |")]


@pytest.mark.slow
@pytest.mark.parametrize("kind", composition.KINDS)
def test_cells_are_as_written_down(kind):
    """After a change: python tests/contracts/composition.py, and read the difference."""
    found = [f"{kind} | {name} | {deed} | {said}" for name, kind, deed, said in composition.cells((kind,))]
    assert found == kept(kind)


def test_bugs_only_become_fewer():
    assert sum("| BUG" in line for line in composition.TABLE.read_text(encoding="utf-8").splitlines()) <= MOST_BUGS
