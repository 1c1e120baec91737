"""Counts of the calibration cases of a certificate, where a case has several items."""

from __future__ import annotations

from dataclasses import dataclass

from metacal.certificates.counts import Traffic
from metacal.certificates.next_rows import ReviewRate


@dataclass(frozen=True)
class CaseCounts:
    """Numbers of calibration cases, from which a certificate is recomputed.

    Attributes
    ----------
    n_tested : int
        Number of cases that certified the promise.
    n_counted : int
        How many of them the quantity counts: all, those with an accepted item, or those with a true
        item.
    n_broken : int
        How many of these break the promise: they have an incorrect accepted item, or miss a true item.
    n_pilot : int
        Number of further cases, which fitted the scale of the item types and certify nothing.
    n_uncovered : int
        How many of the counted cases have a true item without a score, which no threshold accepts.
    """

    n_tested: int
    n_counted: int
    n_broken: int
    n_pilot: int
    n_uncovered: int = 0

    def estimate_review_rate(self, traffic: Traffic) -> ReviewRate:
        """Return the beta distribution of the probability that an item is reviewed.

        The items of a case depend on each other, so all of them together count as one observation.

        Parameters
        ----------
        traffic : Traffic
            Counts of the calibration items, which are the rows of the certificate.

        Returns
        -------
        ReviewRate
        """
        n_items = traffic.n_rows
        n_cases = self.n_tested + self.n_pilot
        observations_per_item = n_cases / max(n_cases, n_items)
        return ReviewRate(
            n_calibration_rows=n_cases,
            rejected_pseudocount=observations_per_item * traffic.n_rejected,
            accepted_pseudocount=observations_per_item * traffic.n_accepted,
        )

    def find_contradiction(self) -> str | None:
        """Describe why the counts contradict each other, or return None.

        >>> CaseCounts(n_tested=90, n_counted=91, n_broken=0, n_pilot=0).find_contradiction()
        '91 of 90 cases cannot be counted'
        """
        if self.n_tested < 1 or self.n_pilot < 0:
            return f"{self.n_tested:,} cases cannot certify anything"
        if not 0 <= self.n_counted <= self.n_tested:
            return f"{self.n_counted:,} of {self.n_tested:,} cases cannot be counted"
        if not 0 <= self.n_uncovered <= self.n_broken <= self.n_counted:
            return f"{self.n_broken:,} of {self.n_counted:,} cases cannot break the promise"
        return None
