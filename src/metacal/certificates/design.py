"""Design of a certification: how the calibration rows were sampled and used.

The design consists of competing scores, clusters, weights, cross-fitting, pilot rows and the seed. Each
of them adds to the description of the rule and changes the assumptions of the promise
(`metacal.certificates.words`). Some designs turn a certified promise into an approximate one.

A *unit* is a cluster of dependent rows.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Literal

from metacal.certificates.stored_fields import get_stored_values, stored_as

if TYPE_CHECKING:
    from metacal.certificates.certificate import Certificate, Guarantee

#: Source of the row weights: given with a largest weight, given without one, or estimated.
Weights = Literal["given", "unbounded", "estimated"]
#: Contribution of a cluster to the counts: one row, every row, or the mean of its rows.
CountedBy = Literal["unit", "row", "mean"]

#: A certificate with this many competing scores or more is invalid.
_TOO_MANY_SCORES = 1000


@dataclass(frozen=True)
class CertificationDesign:
    """How the calibration rows of a certificate were sampled and used.

    Attributes
    ----------
    n_competing_scores, delta_fraction : int and float
        Number of ranking scores that shared delta, and the share of the chosen score.
    cluster_counting : "unit", "row", "mean" or None
        If rows come in clusters, what was counted: one row of each cluster, every row, or the mean
        of each cluster.
    weights_origin : "given", "unbounded", "estimated" or None
        If rows were kept in proportion to weights, how the weights are known.
    n_folds : int
        Number of fold classifiers that scored the rows; 0 if the classifier in use scored them.
    largest_cluster_size, is_largest_cluster_declared : int or None, and bool
        If whole clusters were counted: the largest number of rows of a cluster, and whether the
        user declared this number.
    tests_score_values : bool
        Whether values of the score were tested instead of ranks (`metacal.certification.pilot`).
    n_pilot_rows : int
        Number of pilot rows: calibration rows that only planned the tests of the others.
    n_planning_rows : int
        Number of the least certain rows that were only read to plan the tests of the others. They
        are rejected (`metacal.certification.peeling`). If there are several thresholds, the sum over
        the thresholds.
    random_state : int or None
        Seed that the user chose for a draw that the certificate depends on. None if there was no
        such draw, or if its seed was derived from the rows (`metacal.rows.draws`).

    Examples
    --------
    >>> CertificationDesign(n_folds=5).weaken_guarantee("certified")
    'approximate'
    >>> CertificationDesign(n_competing_scores=3).find_contradiction(100, 0.1)
    '3 scores cannot have shared delta so that one has 1 of it'
    """

    n_competing_scores: int = field(default=1, metadata=stored_as("scores"))
    delta_fraction: float = field(default=1.0, metadata=stored_as("share"))
    cluster_counting: CountedBy | None = field(default=None, metadata=stored_as("units"))
    weights_origin: Weights | None = field(default=None, metadata=stored_as("weights"))
    n_folds: int = field(default=0, metadata=stored_as("folds"))
    largest_cluster_size: int | None = field(default=None, metadata=stored_as("largest_unit"))
    is_largest_cluster_declared: bool = field(default=False, metadata=stored_as("largest_declared"))
    tests_score_values: bool = field(default=False, metadata=stored_as("by_value"))
    n_pilot_rows: int = field(default=0, metadata=stored_as("aside"))
    n_planning_rows: int = field(default=0, metadata=stored_as("only_read", is_optional=True))
    random_state: int | None = None

    def to_dict(self) -> dict[str, Any]:
        """Return the fields to store in a file, without optional fields at their defaults."""
        stored_entries = get_stored_values(self)
        if self.n_planning_rows == 0:
            del stored_entries["only_read"]
        return stored_entries

    def weaken_guarantee(self, guarantee: Guarantee) -> Guarantee:
        """Return the guarantee, or "approximate" if the design makes it inexact."""
        is_inexact = self.n_folds != 0 or self.inexactness is not None
        if is_inexact and guarantee != "none":
            return "approximate"
        return guarantee

    @property
    def inexactness(self) -> str | None:
        """Reason why weights or clusters do not allow an exact promise, or None."""
        if self.weights_origin == "estimated":
            return "the weights are estimates"
        if self.weights_origin == "unbounded":
            return "no largest weight was declared"
        if self.cluster_counting == "row" and not self.is_largest_cluster_declared:
            return "no largest unit was declared"
        return None

    @property
    def counts_cluster_means(self) -> bool:
        """Whether each cluster was counted once, by the mean of its rows."""
        return self.cluster_counting == "mean"

    @property
    def counts_whole_clusters(self) -> bool:
        """Whether all rows of each cluster were counted."""
        return self.cluster_counting in ("row", "mean")

    def merge_with(self, other: CertificationDesign) -> CertificationDesign:
        """Merge the designs of two steps of a fit.

        A field that `other` sets takes precedence.
        """
        merged_fields: dict[str, Any] = {}
        for field_name, other_value in vars(other).items():
            other_value_is_set = bool(other_value)
            merged_fields[field_name] = (
                other_value if other_value_is_set else getattr(self, field_name)
            )
        # The default of these two fields is 1, so their truth value does not show if they were set.
        merged_fields["delta_fraction"] = min(self.delta_fraction, other.delta_fraction)
        merged_fields["n_competing_scores"] = max(self.n_competing_scores, other.n_competing_scores)
        # A seed of 0 is valid, although `bool(0)` is False.
        random_state = other.random_state
        if random_state is None:
            random_state = self.random_state
        merged_fields["random_state"] = random_state
        return CertificationDesign(**merged_fields)

    def find_contradiction(self, max_folds: int, delta: float | None) -> str | None:
        """Describe the first inconsistency of the design, or return None."""
        if self.n_folds < 0 or self.n_folds == 1 or self.n_folds > max_folds:
            return f"{max_folds:,} rows cannot be scored in {self.n_folds:,} folds"
        if not self._has_consistent_cluster_size():
            return "the size of a unit matters where whole units count, and only then"
        contradiction = self._find_contradiction_in_planning(delta)
        if contradiction is not None:
            return contradiction
        if self.random_state is not None and self.random_state < 0:
            return f"{self.random_state} cannot be a seed"
        if self.n_competing_scores > 1 and delta is None:
            return "scores can only share a delta"
        if not self._has_consistent_delta_fraction():
            return (
                f"{self.n_competing_scores:,} scores cannot have shared delta so that one has {self.delta_fraction:g}"
                " of it"
            )
        return None

    def _find_contradiction_in_planning(self, delta: float | None) -> str | None:
        """Describe an impossible number of pilot or planning rows, or return None."""
        uses_pilot_rows = self.n_pilot_rows != 0 or self.tests_score_values
        if self.n_pilot_rows < 0 or (delta is None and uses_pilot_rows):
            return f"{self.n_pilot_rows:,} rows cannot be set aside to lay out tests"
        if self.n_planning_rows < 0 or (delta is None and self.n_planning_rows > 0):
            return f"{self.n_planning_rows:,} rows cannot be read to plan the tests of the others"
        return None

    def _has_consistent_cluster_size(self) -> bool:
        """Check that a cluster size is stored only if whole clusters were counted."""
        if self.largest_cluster_size is None:
            return not self.counts_whole_clusters and not self.is_largest_cluster_declared
        # A stored cluster size of 0 is read as 1.
        is_positive = (self.largest_cluster_size or 1) >= 1
        return self.counts_whole_clusters and is_positive

    def _has_consistent_delta_fraction(self) -> bool:
        """Check that the share of delta agrees with the number of competing scores."""
        if self.n_competing_scores == 1:
            return self.delta_fraction == 1.0
        return 0.0 < self.delta_fraction < 1.0 and 1 < self.n_competing_scores < _TOO_MANY_SCORES


def record_design(certificate: Certificate, design: CertificationDesign) -> Certificate:
    """Merge a design into a certificate, and weaken the guarantee if needed."""
    combined_design = certificate.design.merge_with(design)
    return replace(
        certificate,
        guarantee=combined_design.weaken_guarantee(certificate.guarantee),
        design=combined_design,
    )
