"""What the faces of curves share: how much of the uncalibrated model is blended in, what comes first."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from metacal.estimators.base import Calibrator


class BlendedCurves(Calibrator):
    """Curves with `prior_rows` rows' worth of the uncalibrated model blended in."""

    def __init__(
        self,
        *,
        prior_rows: float = 1.0,
        input: str = "logits",
        classes: Sequence[Any] | None = None,
        n_jobs: int | None = None,
    ) -> None:
        self.prior_rows = prior_rows
        super().__init__(input=input, classes=classes, n_jobs=n_jobs)


class TemperedCurve(Calibrator):
    """The same for one curve, which a temperature may come before."""

    def __init__(
        self,
        *,
        tempered: bool = True,
        prior_rows: float = 1.0,
        input: str = "logits",
        classes: Sequence[Any] | None = None,
        n_jobs: int | None = None,
    ) -> None:
        self.tempered, self.prior_rows = tempered, prior_rows
        super().__init__(input=input, classes=classes, n_jobs=n_jobs)
