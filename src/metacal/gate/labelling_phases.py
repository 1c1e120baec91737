"""Phases of a certifier: tests of the promise on the first drawn rows, and on all of them."""

from __future__ import annotations

from typing import NamedTuple

from metacal.certification.arriving import LabellingProgress
from metacal.promises.promise import Promise


class Phase(NamedTuple):
    """Test of a promise on the first `n_rows` drawn rows, at a fraction of its delta."""

    promise: Promise
    n_rows: int


class AssessedPhase(NamedTuple):
    """Phase with its certified threshold and the highest threshold within reach."""

    phase: Phase
    progress: LabellingProgress
