"""The threshold as it is written into another runtime: between the two calibration scores that it separates."""

from __future__ import annotations

import math

from metacal.certificate import Certificate

#: How far the same score may come out in another runtime, in double, relative to its size.
ROUNDING = 1e-12
#: The same where the logits themselves are logarithms taken in single precision.
SINGLE_ROUNDING = 2e-6


def stored_threshold(certificate: Certificate, *, rounding: float = ROUNDING) -> float:
    """The certified threshold, moved off the nearest calibration score by no more than rounding.

    A certified threshold often *is* a calibration score, or the double just below one. The last bit of a score differs
    between runtimes, so the row it came from could be decided differently. Moving the threshold towards the middle of
    the gap between the neighbours keeps every calibration row on its side; moving it by rounding only keeps every other
    row there too.

    Examples
    --------
    >>> import numpy as np
    >>> from metacal.constraints import MaxMiscoverage
    >>> certificate = MaxMiscoverage(0.05).certify(np.linspace(1.0, 2.0, 100), np.ones(100, dtype=bool))
    >>> stored = stored_threshold(certificate)
    >>> certificate.threshold < stored < certificate.lowest_rejected, round(stored - certificate.threshold, 13)
    (True, 2e-12)
    """
    threshold = certificate.threshold
    if not math.isfinite(threshold):
        return threshold
    step = rounding * (abs(threshold) if certificate.score != "energy" else max(1.0, abs(threshold)))
    below, above = certificate.highest_accepted, certificate.lowest_rejected
    if below is None and above is None:
        return threshold
    if above is None:
        return threshold + step
    if below is None:
        return min(threshold, above - step)
    middle = below + 0.5 * (above - below)
    return min(middle, threshold + step) if middle >= threshold else max(middle, threshold - step)
