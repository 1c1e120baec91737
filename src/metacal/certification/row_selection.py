"""Which rows a certificate counts: all of them, one of each unit, or as many as weights
(`Importance`) ask for.

Every rule takes its rows as independent draws from where new rows come from. Where they are not,
rows are drawn from them that are, and the rule is used as it is:

- **Units** (copies, frames of one video, visits of one patient). Units are independent, rows of one
  are not. One row is drawn from each: these are independent, each a random row of a random unit,
  which is what is then promised about. Where units are of many sizes that is not a random row:
  `Units(names, per="row")` promises about that, and every row counts, by bets on whole units
  (`metacal.certification.clusters`). `per="mean"` promises about a random unit, by the mean of those of
  its rows that are looked at: the precision of the labels that a row is given, the recall of those
  it has.
- **Weights** (known shift). New rows follow the source reweighted by w. Each row is kept with
  probability w / w_max: what is kept are independent draws from the target (rejection sampling, von
  Neumann 1951). Exact, and measured to accept more than weighted betting; about n · mean(w) / w_max
  rows are left.

Both together: one of each unit first. Of whole units the rows that are kept count.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Self, get_args

import numpy as np
from numpy.typing import ArrayLike

from metacal.certificates.certificate import Certificate
from metacal.certificates.circumstances import Circumstances, CountedBy, Weights, add_circumstances
from metacal.certificates.notes import (
    Note,
    kept_by_weight,
    one_row_of_each_unit,
    whole_units_counted,
)
from metacal.certification.rows import Clusters
from metacal.errors import InputError
from metacal.formulas import Codes, Flags, Float
from metacal.rows import validate
from metacal.rows.arrays import as_plain_array, check_row_weights
from metacal.rows.draws import RowDraws, check_random_state


@dataclass(frozen=True, eq=False)
class Units:
    """Rows that belong together, and what is promised about: a random row of each, a random row, or
    a random unit.

    Attributes
    ----------
    names : array of shape (n,)
        The unit of each row.
    per : "unit", "row" or "mean"
        "unit": each unit counts as one, by a row of it that is drawn at random. "row": each row
        counts as one, so that a unit of ten counts ten times; units that have many rows and err
        more show in it. Rows are certified by bets on whole units, which takes more of them.
        "mean": each unit with rows that are looked at (the accepted, for an accuracy; the right
        ones, for a miscoverage) counts as one, by their mean.
    largest : int, optional
        With per="row": the most rows that any unit can have. Without it the largest here stands for
        it, and the promise is called approximate.

    Examples
    --------
    >>> Units(["a", "b", "a"], per="row").encode_names(3)
    array([0, 1, 0])
    """

    names: ArrayLike
    per: CountedBy = "unit"
    largest: int | None = None

    def __post_init__(self) -> None:
        if self.per not in get_args(CountedBy):
            raise InputError(
                "per must be 'unit' (a random row of each), 'row' (every row) or 'mean' (of each),"
                f" got {self.per!r}."
            )
        if self.largest is None:
            return
        if self.per == "unit":
            raise InputError(
                "the largest unit matters where every row counts: Units(names, per='row',"
                " largest=...)."
            )
        if (
            isinstance(self.largest, bool)
            or not isinstance(self.largest, int | np.integer)
            or self.largest < 1
        ):
            raise InputError(f"largest must be a whole number from 1, got {self.largest!r}.")

    @classmethod
    def from_units_argument(cls, given: Any) -> Units:
        """What was given as `units`: this, or names alone."""
        return given if isinstance(given, Units) else cls(given)

    def encode_names(self, n_rows: int) -> Codes:
        """A number 0, 1, … for each row, which rows of one unit share."""
        return encode_units(self.names, n_rows)

    def take(self, rows: Codes, n_rows: int) -> Units:
        """The same for those of n rows that stand at these places."""
        return replace(self, names=self.encode_names(n_rows)[rows])

    def build_clusters(self, codes: Codes) -> Clusters:
        """Return the clusters whose every row counts; `codes` numbers them in random order."""
        most = int(np.bincount(codes).max())
        if self.largest is not None and most > self.largest:
            raise InputError(
                f"a unit has {most:,} rows, more than the {self.largest:,} declared as the most."
            )
        max_size = most if self.largest is None else int(self.largest)
        return Clusters.from_codes(codes, max_size, count_means=self.per == "mean")

    def build_circumstances(self, whole: Clusters) -> Circumstances:
        """Return what a certificate from whole clusters records."""
        declared = self.largest is not None
        return Circumstances(units=self.per, largest_unit=whole.max_size, largest_declared=declared)


@dataclass(frozen=True, eq=False)
class Importance:
    """How much each calibration row counts where new rows come from somewhere else: in proportion
    to target / source.

    Attributes
    ----------
    weights : array of shape (n,)
        Up to a common factor.
    largest : float, optional
        The largest weight that any row can have. Without it the largest here stands for it: rows
        that weigh more may come, so that the promise is called approximate.
    estimated : bool
        Whether the weights are estimates, so that what is promised is approximate.

    Examples
    --------
    >>> Importance([1.0, 3.0], largest=4.0).compute_keep_probabilities(2)
    array([0.25, 0.75])
    """

    weights: ArrayLike
    largest: float | None = None
    estimated: bool = False

    @classmethod
    def of_labels(
        cls,
        labels: ArrayLike,
        target: Mapping[Any, float],
        source: Mapping[Any, float] | None = None,
    ) -> Self:
        """Known label shift: each class with its share in the target and in the source of the
        calibration rows.

        Given a class its rows are alike in both: p(x | y) does not change. Without `source` its
        shares are taken from the labels, and the weights are then estimates.

        >>> found = Importance.of_labels(["cat", "dog", "dog"], {"cat": 0.8, "dog": 0.2}, {"cat": 0.5, "dog": 0.5})
        >>> np.asarray(found.weights).tolist(), found.estimated
        ([1.6, 0.4, 0.4], False)
        """
        given = np.asarray(labels)
        names, codes, counts = np.unique(given, return_inverse=True, return_counts=True)
        known = (
            source
            if source is not None
            else dict(zip(names.tolist(), (counts / len(given)).tolist()))
        )
        ratios = []
        for name in names.tolist():
            if name not in target or name not in known:
                raise InputError(
                    f"label {name!r} has no share in"
                    f" {'target' if name not in target else 'source'}."
                )
            if not known[name] > 0.0 or not target[name] >= 0.0:
                raise InputError(
                    f"the shares of label {name!r} must be positive, or 0 in the target alone."
                )
            ratios.append(target[name] / known[name])
        if missing := [
            name
            for name, share in target.items()
            if share > 0.0 and name not in set(names.tolist())
        ]:
            raise InputError(
                f"no calibration row has the label {missing[0]!r}, which the target has; add some."
            )
        table = np.array(ratios)
        return cls(table[codes.reshape(-1)], float(table.max()), estimated=source is None)

    @classmethod
    def from_unlabelled(
        cls,
        logits: ArrayLike,
        labels: ArrayLike,
        new_logits: ArrayLike,
        *,
        classes: Sequence[Any] | None = None,
        input: str = "logits",
    ) -> Self:
        """Label shift estimated from unlabelled rows of the target (black box shift estimation,
        Lipton et al. 2018).

        With C_ij the share of calibration rows of class j that are predicted as i, and μ_i the
        share of new rows predicted as i: C w = μ, solved by non-negative least squares. The weights
        are estimates, and the certificate is called approximate.

        >>> rng = np.random.default_rng(0)
        >>> def draw(n, share):
        ...     y = (rng.random(n) < share).astype(int)
        ...     return np.eye(2)[y] * 3.0 + rng.normal(size=(n, 2)), y
        >>> logits, labels = draw(4000, 0.5)
        >>> found = Importance.from_unlabelled(logits, labels, draw(4000, 0.8)[0])
        >>> round(float(found.weights[labels == 1].mean() / found.weights[labels == 0].mean()))
        4
        """
        from scipy.optimize import nnls  # not worth a wait for those who never estimate

        table, new = validate.read_logits(logits, input), validate.read_logits(new_logits, input)
        if table.shape[1] != new.shape[1]:
            raise InputError(
                f"logits have {table.shape[1]} columns and new_logits {new.shape[1]}; give the same"
                " classes."
            )
        n_classes = table.shape[1]
        codes = validate.encode_labels(
            labels, len(table), validate.check_classes(classes, n_classes)
        )
        joint = np.zeros((n_classes, n_classes))
        np.add.at(joint, (np.asarray(table).argmax(axis=1), codes), 1.0 / len(codes))
        share = np.bincount(np.asarray(new).argmax(axis=1), minlength=n_classes) / len(new)
        weights, _ = nnls(joint, share)
        if not weights[codes].any():
            raise InputError(
                "no class of the calibration rows is found among the new rows; are they of the same"
                " kind?"
            )
        return cls(weights[codes], float(weights[codes].max()), estimated=True)

    @property
    def weights_origin(self) -> Weights:
        """How the weights are known."""
        if self.estimated:
            return "estimated"
        return "unbounded" if self.largest is None else "given"

    def compute_keep_probabilities(self, n_rows: int) -> Float:
        """The probability with which each row is kept."""
        weights = check_row_weights(self.weights, n_rows, name="importance")
        assert weights is not None
        largest = float(weights.max()) if self.largest is None else float(self.largest)
        if not weights.max() <= largest < np.inf:
            raise InputError(
                f"largest must be a number that no weight exceeds; got {largest:g}, and a weight of"
                f" {weights.max():g}."
            )
        return weights / largest


@dataclass(frozen=True, eq=False)
class SelectedRows:
    """The rows that a certificate counts.

    Attributes
    ----------
    rows : array of int
        Where they stand, rising.
    speaker : array of int
        For every row the place in `rows` of the one that counts for it; -1 where none does.
    circumstances : Circumstances
        What the certificate says of it.
    notes : tuple of Note
        The same with numbers, for people.
    whole : Clusters or None
        Where every row of a unit counts: the units of the counted rows.
    """

    indices: Codes
    representatives: Codes
    circumstances: Circumstances
    notes: tuple[Note, ...]
    clusters: Clusters | None = None

    def draw(self, *columns: ArrayLike | None) -> SelectedRows:
        """Return these rows: they are drawn already."""
        return self

    def to_mask(self, n_rows: int) -> Flags:
        """Return a mask of the rows that count."""
        return np.bincount(self.indices, minlength=n_rows) > 0

    def extend_to_all_rows(self, flags: Flags) -> Flags:
        """A flag for each counted row, spread over all rows; True for rows that nobody speaks
        for.
        """
        return np.where(self.representatives < 0, True, flags[self.representatives])

    def annotate_certificate(self, certificate: Certificate) -> Certificate:
        """The certificate of the counted rows, which says that they were."""
        counted = add_circumstances(certificate, self.circumstances)
        return replace(counted, notes=(*counted.notes, *self.notes))


@dataclass(frozen=True, eq=False)
class RowSelection:
    """Which rows a certificate counts, before they are drawn: the clusters and weights of the rows,
    checked.

    Attributes
    ----------
    n_rows : int
    units : Units or None
    codes : array of int or None
        The cluster of each row, as a number from 0.
    importance : Importance or None
    shares : array of float or None
        The probability with which each row is kept.
    random_state : int or None
        A seed that the user chose; None derives it from the rows.
    """

    n_rows: int
    units: Units | None
    cluster_codes: Codes | None
    importance: Importance | None
    keep_probabilities: Float | None
    random_state: int | None = None

    def draw(self, *columns: ArrayLike | None) -> SelectedRows:
        """Draw the rows that count. The draw follows from the columns, whatever the order of the
        rows.

        Parameters
        ----------
        *columns : array-like of shape (n_rows,) or None
            What tells the rows apart: scores, correctness, labels. Clusters and weights are added.
        """
        draws = RowDraws(
            np.zeros(self.n_rows),
            *columns,
            self.keep_probabilities,
            units=self.cluster_codes,
            random_state=self.random_state,
        )
        rows = np.arange(self.n_rows)
        circumstances = Circumstances(random_state=self.random_state)
        notes: list[Note] = []
        whole = None
        speaks_for = np.arange(self.n_rows) if self.cluster_codes is None else self.cluster_codes
        if self.units is not None and self.cluster_codes is not None:
            n_units = int(self.cluster_codes.max()) + 1
            if self.units.per == "unit":
                rows = _first_of_each(draws.order("one row of each unit"), self.cluster_codes)
                circumstances = circumstances.combine(Circumstances(units="unit"))
                notes.append(one_row_of_each_unit(units=n_units, rows=self.n_rows))
            else:
                whole = self.units.build_clusters(draws.unit_numbers("whole units"))
                circumstances = circumstances.combine(self.units.build_circumstances(whole))
                notes.append(whole_units_counted(units=n_units, rows=self.n_rows))
                speaks_for = np.arange(self.n_rows)  # each row counts for itself
        if self.importance is not None and self.keep_probabilities is not None:
            n_before = len(rows)
            is_kept = draws.numbers("rows kept by weight") < self.keep_probabilities
            rows = rows[is_kept[rows]]
            circumstances = circumstances.combine(
                Circumstances(weights=self.importance.weights_origin)
            )
            notes.append(kept_by_weight(kept=len(rows), rows=n_before))
        if not len(rows):
            raise InputError(
                "no row is left to count: the weights are small against the largest; use more rows."
            )
        if whole is not None:
            whole = whole.take(rows)
        place = np.full(int(speaks_for.max()) + 1, -1, dtype=np.intp)
        place[speaks_for[rows]] = np.arange(len(rows))
        return SelectedRows(rows, place[speaks_for], circumstances, tuple(notes), whole)


def build_row_selection(
    n_rows: int,
    units: Any = None,
    importance: Importance | ArrayLike | None = None,
    random_state: int | None = None,
) -> RowSelection | None:
    """Check clusters and weights, and return which rows are to be counted; None if all rows are.

    >>> selection = build_row_selection(6, units=["a", "a", "a", "b", "c", "c"])
    >>> found = selection.draw([0.1, 0.2, 0.3, 0.4, 0.5, 0.6])
    >>> len(found.indices), str(found.notes[0])
    (3, '3 units of 6 rows: one row of each, drawn at random, is counted.')
    >>> build_row_selection(6) is None
    True
    """
    random_state = check_random_state(random_state)
    if units is None and importance is None:
        return None
    together = None if units is None else Units.from_units_argument(units)
    codes = None if together is None else together.encode_names(n_rows)
    declared: Importance | None = None
    if importance is not None:
        declared = importance if isinstance(importance, Importance) else Importance(importance)
    shares = None if declared is None else declared.compute_keep_probabilities(n_rows)
    return RowSelection(n_rows, together, codes, declared, shares, random_state)


def _first_of_each(order: Codes, codes: Codes) -> Codes:
    """Return the row of each cluster that comes first in an order, rising."""
    return np.sort(order[np.unique(codes[order], return_index=True)[1]])


def encode_units(units: Any, n_rows: int) -> Codes:
    """A number 0, 1, … for each row, which rows of one unit share.

    >>> encode_units(["b", "a", "b"], 3)
    array([1, 0, 1])
    """
    names = as_plain_array(units, "units")
    if names.shape != (n_rows,):
        raise InputError(
            f"units must have shape ({n_rows},), the name of each row's unit; got {names.shape}."
        )
    missing = (
        names != names
        if names.dtype.kind in "fc"
        else np.array([g is None or g != g for g in names.tolist()])
    )
    if missing.any():
        row = int(np.argmax(missing))
        raise InputError(
            f"units: row {row} has no unit; give each row the name of its unit, or one of its own."
        )
    names = names.astype(str) if names.dtype == object else names
    return np.unique(names, return_inverse=True)[1].reshape(-1).astype(np.intp)
