"""Number of calibration rows in the data of an evaluation."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class OverlapWithFit:
    """Number of calibration rows among the rows of an evaluation.

    Attributes
    ----------
    n_fit_rows, n_rows : int
        How many of the rows were part of the fit, and how many rows there are.
    is_estimate : bool
        Whether `n_fit_rows` is estimated from a sample of the rows.
    """

    n_fit_rows: int
    n_rows: int
    is_estimate: bool

    def __str__(self) -> str:
        if self.is_estimate:
            rounded_count = float(f"{self.n_fit_rows:.2g}")
            return f"about {rounded_count:,.0f} of these {self.n_rows:,} rows were part of the fit"
        if self.n_fit_rows < self.n_rows:
            return f"{self.n_fit_rows:,} of these {self.n_rows:,} rows were part of the fit"
        return f"all {self.n_rows:,} rows were part of the fit"

    @property
    def advice(self) -> str:
        """Recommended action, in one or two sentences."""
        suitable_rows = "labelled rows that were not part of the fit, from the same source."
        if self.n_fit_rows < self.n_rows:
            return (
                f"Leave out the rows that were part of the fit. Judge the gate on {suitable_rows}"
            )
        return f"Judge the gate on {suitable_rows}"
