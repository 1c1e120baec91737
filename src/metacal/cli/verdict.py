"""Was a promise kept on labelled rows? See `metacal.verdict`."""

from __future__ import annotations

from metacal.verdict import Verdict, judge

__all__ = ["Verdict", "judge"]
