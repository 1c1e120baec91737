"""Was a promise kept on labelled rows? See `metacal.promises.verdict`."""

from __future__ import annotations

from metacal.promises.verdict import Verdict, judge

__all__ = ["Verdict", "judge"]
