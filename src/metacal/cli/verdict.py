"""Was a promise kept on labelled rows? The share that was measured, its exact interval, and one word."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from metacal.certificate import Certificate


@dataclass(frozen=True)
class Verdict:
    """What labelled rows say about a promise.

    Attributes
    ----------
    quantity, target : str, float
        What was promised.
    value, low, high, level : float or None
        What was measured, and its Clopper-Pearson interval; None when no row speaks about it.
    kept : bool or None
        Whether the measured value keeps the target.
    refuted : bool
        Whether the whole interval lies on the wrong side of the target: more than bad luck.
    """

    quantity: str
    target: float
    value: float | None
    low: float | None
    high: float | None
    level: float
    kept: bool | None
    refuted: bool

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON types."""
        return dict(vars(self))

    def __str__(self) -> str:
        if self.value is None:
            return f"{self.quantity}: no row here speaks about it."
        measured = f"{self.quantity} {self.value:.4f} [{self.low:.4f}, {self.high:.4f}]"
        if self.kept:
            return f"{measured}: kept."
        sign = ">" if self.quantity == "miscoverage" else "<"
        bare = f"{measured}: not kept: {_digits(self.value, self.target)} {sign} {self.target:g}"
        interval = f"the {100 * self.level:g}% interval"
        if self.refuted:
            return f"{bare}, and {interval} excludes {self.target:g}: these rows refute the promise."
        return f"{bare}, but {interval} includes {self.target:g}: these rows do not refute the promise."


def judge(certificate: Certificate, accept: NDArray[np.bool_], correct: NDArray[np.bool_], level: float) -> Verdict:
    """Measure on labelled rows what the certificate promises.

    Examples
    --------
    >>> import numpy as np
    >>> from metacal.constraints import MaxMiscoverage
    >>> right = np.ones(100, dtype=bool)
    >>> certificate = MaxMiscoverage(0.05).certify(np.linspace(0, 1, 100), right)
    >>> print(judge(certificate, np.arange(100) >= 4, right, 0.95))
    miscoverage 0.0400 [0.0110, 0.0993]: kept.
    """
    from metacal.metrics import clopper_pearson
    from metacal.metrics.selective import coverage_accuracy_counts, miscoverage_counts

    upper = certificate.quantity == "miscoverage"
    successes, n = (miscoverage_counts if upper else coverage_accuracy_counts)(accept, correct)
    target = certificate.target
    if n == 0:
        return Verdict(certificate.quantity, target, None, None, None, level, None, False)
    found = clopper_pearson(successes, n, level)
    kept = found.estimate <= target if upper else found.estimate >= target
    refuted = found.low > target if upper else found.high < target
    return Verdict(certificate.quantity, target, found.estimate, found.low, found.high, level, kept, refuted)


def _digits(value: float, target: float) -> str:
    """As many digits as it takes to tell the value from the target."""
    return next((text for n in range(4, 17) if float(text := f"{value:.{n}f}") != target), repr(value))
