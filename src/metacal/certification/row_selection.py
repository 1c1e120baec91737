"""Selection of the calibration rows that a certificate counts.

Every rule assumes that its rows are independent draws from the distribution of future rows. If the
calibration rows are clustered or weighted, rows that satisfy the assumption are drawn from them.
The rule itself does not change.

- **Clusters** (`Units`: copies, frames of one video, visits of one patient). Different clusters are
  independent, rows of one cluster are not. By default, one row is drawn from each cluster. The drawn
  rows are independent, and the promise is about a random row of a random cluster. If clusters have
  different sizes, this is not a random row. `Units(names, per="row")` promises about a random row:
  every row counts, by bets on whole clusters (`metacal.certification.clusters`). `per="mean"`
  promises about a random cluster, by the mean over its counted rows. This is the precision of the
  labels that a row is given, or the recall of the labels that it has.
- **Weights** (`Importance`: a known shift). Future rows follow the source distribution, reweighted
  by w. Each row is kept with probability w / w_max. The kept rows are independent draws from the
  target distribution (rejection sampling, von Neumann 1951). The method is exact, and accepts more
  rows in experiments than weighted betting does. About n · mean(w) / w_max rows are left.

If there are clusters and weights, the rows are drawn from the clusters first. If every row of a
cluster counts, these are the rows that the weights keep.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import ArrayLike

from metacal.certificates.certificate import Certificate
from metacal.certificates.design import CertificationDesign, record_design
from metacal.certificates.notes import (
    Note,
    note_one_row_per_cluster,
    note_rows_drawn_by_weight,
    note_whole_clusters_counted,
)
from metacal.certification.rows import Clusters
from metacal.errors import WeightsError
from metacal.formulas import Codes, Flags, Float

if TYPE_CHECKING:
    from metacal.certification.importance import Importance
    from metacal.certification.units import Units
from metacal.rows.draws import RowDraws, check_random_state

# Entry of `SelectedRows.representatives` for a row without a representative.
_NOT_REPRESENTED = -1


@dataclass(frozen=True, eq=False)
class SelectedRows:
    """Rows that a certificate counts, selected from all calibration rows.

    They are the result of a draw. `RowSelection` is the rule by which the draw is made.

    Attributes
    ----------
    indices : array of int
        Indices of the selected rows, in increasing order.

    representatives : array of int of shape (n_rows,)
        For each of all rows, the position in `indices` of the selected row that represents it, or
        -1 if there is none. A selected row represents itself, or every row of its cluster.

    design : CertificationDesign
        Clusters, weights and seed of the selection, which the certificate records.

    notes : tuple of Note
        Sentences about the selection.

    clusters : Clusters or None
        Clusters of the selected rows, if every row of a cluster counts.
    """

    indices: Codes
    representatives: Codes
    design: CertificationDesign
    notes: tuple[Note, ...]
    clusters: Clusters | None = None

    def draw(self, *columns: ArrayLike | None) -> SelectedRows:
        """Return the selection unchanged, because its rows are already drawn."""
        return self

    def to_mask(self, n_rows: int) -> Flags:
        """Return a mask of the selected rows."""
        return np.bincount(self.indices, minlength=n_rows) > 0

    def extend_to_all_rows(self, flags: Flags) -> Flags:
        """Extend flags of the selected rows to the rows that they represent.

        A row that no selected row represents has the flag True.

        Parameters
        ----------
        flags : array of bool of shape (n_selected,)
            One flag for each selected row.

        Returns
        -------
        array of bool of shape (n_rows,)
        """
        is_represented = self.representatives != _NOT_REPRESENTED
        return np.where(is_represented, flags[self.representatives], True)

    def annotate_certificate(self, certificate: Certificate) -> Certificate:
        """Add the design and the notes of the selection to a certificate."""
        certificate = record_design(certificate, self.design)
        return replace(certificate, notes=(*certificate.notes, *self.notes))


@dataclass(frozen=True, eq=False)
class RowSelection:
    """Rule by which the counted rows are drawn from clustered or weighted rows.

    Its method `draw` draws the rows and returns them as `SelectedRows`.

    Attributes
    ----------
    n_rows : int
        Number of calibration rows.

    units : Units or None
        Clusters that the user declared.

    cluster_codes : array of int of shape (n_rows,) or None
        Cluster of each row, as a number from 0.

    importance : Importance or None
        Weights that the user declared.

    keep_probabilities : array of float of shape (n_rows,) or None
        Probability with which each row is kept.

    random_state : int or None
        Seed that the user chose. If None, the seed is derived from the rows.
    """

    n_rows: int
    units: Units | None
    cluster_codes: Codes | None
    importance: Importance | None
    keep_probabilities: Float | None
    random_state: int | None = None

    def draw(self, *columns: ArrayLike | None) -> SelectedRows:
        """Draw the rows to count, independently of the order of the rows.

        Parameters
        ----------
        *columns : array-like of shape (n_rows,) or None
            Columns that distinguish the rows, such as scores, correctness and labels. The seed is
            derived from them, from the clusters and from the weights.

        Returns
        -------
        SelectedRows

        Raises
        ------
        InputError
            If a cluster is larger than declared, or if no row is kept.
        """
        row_draws = RowDraws(
            (np.zeros(self.n_rows), *columns, self.keep_probabilities),
            cluster_codes=self.cluster_codes,
            random_state=self.random_state,
        )
        clusters = None
        drawn_indices = np.arange(self.n_rows)
        if self._draws_one_row_per_cluster:
            assert self.cluster_codes is not None
            shuffled_indices = row_draws.draw_row_order("one row of each unit")
            drawn_indices = _take_first_row_of_each_cluster(shuffled_indices, self.cluster_codes)
        elif self.units is not None:
            clusters = self.units.build_clusters(row_draws.draw_cluster_numbers("whole units"))

        kept_indices = drawn_indices
        if self.keep_probabilities is not None:
            uniform_numbers = row_draws.draw_uniform_numbers("rows kept by weight")
            is_kept = uniform_numbers < self.keep_probabilities
            kept_indices = drawn_indices[is_kept[drawn_indices]]
        if len(kept_indices) == 0:
            raise WeightsError(
                "No row is left to count, because most weights are small compared with the"
                " largest weight. Use more rows."
            )
        if clusters is not None:
            clusters = clusters.take(kept_indices)
        return SelectedRows(
            indices=kept_indices,
            representatives=self._find_representatives(kept_indices),
            design=self._build_design(clusters),
            notes=self._build_notes(n_drawn=len(drawn_indices), n_kept=len(kept_indices)),
            clusters=clusters,
        )

    @property
    def _draws_one_row_per_cluster(self) -> bool:
        """Whether one random row of each cluster is counted."""
        return self.units is not None and self.units.per == "unit"

    def _find_representatives(self, selected_indices: Codes) -> Codes:
        """Find for each row the position of its representative among selected rows."""
        # A selected row represents all rows of its group. Each cluster is a group if one row of each
        # cluster is drawn. Otherwise, each row is a group of its own.
        group_codes = np.arange(self.n_rows)
        if self._draws_one_row_per_cluster:
            assert self.cluster_codes is not None
            group_codes = self.cluster_codes
        n_groups = int(group_codes.max()) + 1
        position_by_group = np.full(n_groups, _NOT_REPRESENTED, dtype=np.intp)
        position_by_group[group_codes[selected_indices]] = np.arange(len(selected_indices))
        return position_by_group[group_codes]

    def _build_design(self, clusters: Clusters | None) -> CertificationDesign:
        """Build a design that records clusters, weights and the seed of the selection."""
        design = CertificationDesign(random_state=self.random_state)
        if self.units is not None:
            design = design.merge_with(self.units.build_design(clusters))
        if self.importance is not None:
            weight_design = CertificationDesign(weights_origin=self.importance.weights_origin)
            design = design.merge_with(weight_design)
        return design

    def _build_notes(self, *, n_drawn: int, n_kept: int) -> tuple[Note, ...]:
        """Build the notes about the numbers of clusters and of kept rows."""
        notes: list[Note] = []
        if self.cluster_codes is not None:
            n_clusters = int(self.cluster_codes.max()) + 1
            if self._draws_one_row_per_cluster:
                notes.append(note_one_row_per_cluster(units=n_clusters, rows=self.n_rows))
            else:
                notes.append(note_whole_clusters_counted(units=n_clusters, rows=self.n_rows))
        if self.importance is not None:
            notes.append(note_rows_drawn_by_weight(kept=n_kept, rows=n_drawn))
        return tuple(notes)


def build_row_selection(
    n_rows: int,
    units: Units | ArrayLike | None = None,
    importance: Importance | ArrayLike | None = None,
    random_state: int | None = None,
) -> RowSelection | None:
    """Build the row selection for declared clusters and weights.

    Parameters
    ----------
    n_rows : int
        Number of calibration rows.

    units : Units or array-like of shape (n_rows,), optional
        Clusters of the rows, or the names of the clusters.

    importance : Importance or array-like of shape (n_rows,), optional
        Weights of the rows.

    random_state : int, optional
        Seed of the draws. By default, it is derived from the rows.

    Returns
    -------
    RowSelection or None
        None if there are no clusters and no weights, so that every row counts.

    Examples
    --------
    >>> selection = build_row_selection(6, units=["a", "a", "a", "b", "c", "c"])
    >>> selected_rows = selection.draw([0.1, 0.2, 0.3, 0.4, 0.5, 0.6])
    >>> len(selected_rows.indices), str(selected_rows.notes[0])
    (3, 'The certificate counts one random row from each of 3 clusters (6 rows in total).')
    >>> build_row_selection(6) is None
    True
    """
    random_state = check_random_state(random_state)
    if units is None and importance is None:
        return None
    # These modules are imported late, because most fits declare neither clusters nor weights.
    from metacal.certification.importance import Importance
    from metacal.certification.units import Units

    declared_units: Units | None = None
    cluster_codes: Codes | None = None
    if units is not None:
        declared_units = Units.from_units_argument(units)
        cluster_codes = declared_units.encode_names(n_rows)
    declared_importance: Importance | None = None
    keep_probabilities: Float | None = None
    if importance is not None:
        declared_importance = Importance.from_importance_argument(importance)
        keep_probabilities = declared_importance.compute_keep_probabilities(n_rows)
    return RowSelection(
        n_rows=n_rows,
        units=declared_units,
        cluster_codes=cluster_codes,
        importance=declared_importance,
        keep_probabilities=keep_probabilities,
        random_state=random_state,
    )


def _take_first_row_of_each_cluster(shuffled_indices: Codes, cluster_codes: Codes) -> Codes:
    """Return the index of the first row of each cluster, in increasing order."""
    _, first_positions = np.unique(cluster_codes[shuffled_indices], return_index=True)
    return np.sort(shuffled_indices[first_positions])
