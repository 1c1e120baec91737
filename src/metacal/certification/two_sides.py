r"""TwoSides: a promise about the rows that are called by one of two classes, or by either.

Let s be the log-odds of the positive class, or any score that increases with it. Rows are called
positive if s > u and negative if s <= l. The rows in between go to review. A *side* is the rows that
are called by one class. Each side is certified on all n rows, ranked from the end of the scores that
favours its class. A row is correct if it is of that class.

- A precision, P(positive | called positive) >= limit, is certified by `FixedSequenceRule`. Its starts
  depend on the share of the class (`plans.ShareStarts`), because a rare class never comes near the
  starts of an accuracy.
- A recall, P(called negative | positive) <= limit, and a false-positive rate, P(called positive |
  negative) <= limit, are certified by `AcceptanceRateRule`, exactly: strictly beyond the r-th of the
  n1 rows that must not be called so lies P ~ Beta(r, n1 + 1 - r) (Tong, Feng & Li 2018).

**Two sides.** Each side receives half of the significance level, and the union bound does the rest.
If both promise a precision and a class is declared rare, its side receives 0.8 of the level and the
other side 0.2. If the two sides overlap (u < l), each side takes the highest rank that it passed on
its own side of even calibrated odds. This is valid because every rank that a sequence passed is
certified, all of them at once. The point of even odds may depend on labels, since it only chooses
among certified ranks. (The point itself must not be used as a threshold. It was never tested, and
breaks up to 0.9 of promises.) A threshold lies just before the next row that is not accepted.

A side that certifies nothing is closed, and its rows go to review. It is an error if every side is
closed. It is also an error if a precision is kept by calling every row by the class. This is decided
by the labels, which is valid because a promise that is not made cannot be broken.

**Each group.** Both sides are certified on the rows of the group alone, at the level of the group,
and the predicted class changes at log-odds of its own.

*Proof.* (1) Given how many rows each group has, the rows of a group are i.i.d., so all of the above
holds for it: at level d the probability that a test passes that breaks one of its promises is at most
d, for both sides together. (2) By the union bound no promise is broken in any group if the levels
sum to delta. The other corrections in `scopes` need no more than such a level, and two sides pass no
level on to other groups. (3) How delta is divided depends on the number of rows of each group. For a
recall or a false-positive rate it depends on the number of rows that must not be called so, which is
valid because order statistics hold given all labels. For a precision labels must have no influence.
(4) Pilot rows are drawn from each group without reading what is tested. ∎

References
----------
Tong, Feng & Li, "Neyman-Pearson classification algorithms and NP receiver operating
characteristics", Science Advances, 2018.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from metacal.certificates.certificate import Certificate
from metacal.certificates.counts import Counts
from metacal.certificates.rule_texts import SAME_SOURCE, register_rule
from metacal.certificates.subgroups import Name, SubgroupCertificate, SubgroupCertificates
from metacal.certification.pilot import PilotPolicy
from metacal.certification.plans import PilotRows
from metacal.certification.procedures import (
    DecisionColumns,
    PromisedLimit,
    RowRequirement,
    SubgroupResult,
)
from metacal.certification.ranking import Ranking, ThresholdOutcome
from metacal.certification.rows import CalibrationRows
from metacal.certification.rules.rule import (
    REJECT_ALL_ROWS,
)
from metacal.certification.sides import ClassPromise
from metacal.certification.statements import (
    build_certificate,
    explain_uncertified_class,
    other_promise_sentence,
    same_side_error,
    trivial_promise_error,
)
from metacal.errors import InfeasibleTargetError
from metacal.formulas import Float
from metacal.kernels.grid import RELATIVE

# Name of the rules of both sides.
TWO_SIDED = register_rule(
    "two-sided",
    "each side by itself: a precision by exact binomial tests in a fixed sequence of ranks with"
    " fallback shares of delta (Wiens 2003), a recall or false-positive rate by an order statistic"
    " (Tong, Feng & Li 2018)",
    SAME_SOURCE,
    at_values=(
        "each side by itself: a precision by exact binomial tests at the values of the score, the"
        " surest first, a recall or false-positive rate by an order statistic (Tong, Feng & Li"
        " 2018)"
    ),
)

# Largest declared share of a class that is rare.
_RARE_CLASS_SHARE = 0.2

# Fraction of the significance level that the side of a rare class receives.
_LEVEL_OF_RARE_CLASS = 0.8

# Relative difference up to which a significance level in a file is taken to be the expected one.
_LEVEL_TOLERANCE = 1e-12


@dataclass(frozen=True)
class TwoClassProcedure:
    """Procedure with up to two thresholds on the log-odds of two classes.

    Implements `metacal.certification.procedures.SubgroupProcedure`.

    Parameters
    ----------
    sides : tuple of Side
        One side or two, in the order in which the promise names them.
    """

    class_promises: tuple[ClassPromise, ...]

    rule_name = TWO_SIDED
    score_name = "margin"

    # The rows of a side that certifies nothing go to review.
    fallback_threshold = REJECT_ALL_ROWS

    @property
    def promised_limits(self) -> tuple[PromisedLimit, ...]:
        """Limits in the order in which the promise names them."""
        return tuple(
            PromisedLimit(side.quantity, float(side.target)) for side in self.class_promises
        )

    def get_promises_by_class(self, class_names: Sequence[Name]) -> dict[int, ClassPromise]:
        """Return the side of each class, with its share of the significance level.

        Raises
        ------
        InputError
            If a positive class is unknown, or if both sides are of the same class.
        """
        by_class = {side.get_predicted_code(class_names): side for side in self.class_promises}
        if len(self.class_promises) == 1:
            return by_class
        if len(by_class) == 1:
            raise same_side_error(class_names[min(by_class)])
        first_share = _level_share_of_first_class(by_class)
        level_shares = (first_share, 1.0 - first_share)
        return {
            class_code: replace(side, level_fraction=level_shares[class_code])
            for class_code, side in by_class.items()
        }

    def get_main_limit(self, rows: CalibrationRows) -> PromisedLimit:
        """Return the limit of the side of the second class, if there is one."""
        by_class = self.get_promises_by_class(rows.class_names)
        side = by_class[max(by_class)]
        return PromisedLimit(side.quantity, side.target)

    def pilot_policy(
        self, random_state: int | None = None, declared_values: Float | None = None
    ) -> PilotPolicy | None:
        """Return how pilot rows are chosen, if a side runs a sequence of tests.

        Labels of pilot rows are read if the share of a class was not declared.
        """
        sequences = [side for side in self.class_promises if side.rule.reads_labels_in_order]
        if not sequences:
            return None
        return PilotPolicy(
            random_state=random_state,
            declared_values=declared_values,
            is_about_classes=True,
            reads_labels=any(side.declared_class_share is None for side in sequences),
        )

    def count_rows_and_requirements(
        self, rows: CalibrationRows, significance_level: float
    ) -> list[RowRequirement]:
        """Count the rows that the rules use.

        If a precision is promised, labels must not influence how delta is divided. Only the sides
        whose counts do not depend on labels are then returned.
        """
        sides = list(self.get_promises_by_class(rows.class_names).values())
        label_free = [side for side in sides if not side.quantity.conditions_on_true_class]
        return [
            side.count_rows_and_requirement(rows, significance_level)
            for side in label_free or sides
        ]

    def certify_subgroup(
        self,
        rows: CalibrationRows,
        significance_level: float,
        planned_level: float | None = None,
    ) -> SubgroupResult:
        """Certify both sides. They pass no level on, so `planned_level` has no effect."""
        tested = {
            class_code: side
            for class_code, side in self.get_promises_by_class(rows.class_names).items()
            if not side.is_trivially_kept(rows)
        }
        rankings = {class_code: rows.rank_for_class(class_code) for class_code in tested}
        pilots = {class_code: _pilot_from(rows.pilot, class_code) for class_code in tested}
        results = {
            class_code: side.certify(
                rankings[class_code], significance_level, pilots[class_code], class_code
            )
            for class_code, side in tested.items()
        }

        n_accepted = sum(result.n_accepted for result in results.values())
        if n_accepted > len(rows):
            # The sides overlap. Each keeps to its own side of even odds.
            for class_code, side in tested.items():
                ranking = rankings[class_code]
                last_rank = ranking.count_below(rows.even_odds_score_for_class(class_code))
                results[class_code] = side.certify(
                    ranking, significance_level, pilots[class_code], class_code, last_rank
                )
        return SubgroupResult(threshold_results=(results.get(0), results.get(1)))

    def build_subgroup_certificates(
        self,
        names: tuple[Name, ...],
        rows: CalibrationRows,
        result: SubgroupResult | None,
        significance_level: float | None,
        spare_level: float,
    ) -> tuple[SubgroupCertificate, ...]:
        """Return one part for each class. Without `names` the parts are those of all rows."""
        if result is None:
            result = SubgroupResult(threshold_results=(None, None))
        decision_point = find_decision_point(rows, result)
        decided = self.compute_decision_columns(rows, decision_point)
        by_class = self.get_promises_by_class(rows.class_names)
        parts = []
        for class_code, class_name in enumerate(rows.class_names):
            is_called = decided.threshold_indices == class_code
            ranking = Ranking.from_scores(
                decided.uncertainty[is_called], decided.correct[is_called]
            )
            n_accepted = result.count_accepted(class_code)
            threshold = RELATIVE.settled(ranking.threshold_accepting_at_most(n_accepted))
            part = SubgroupCertificate(
                names or (class_name,),
                threshold=threshold,
                **ranking.summarize_threshold(threshold)._asdict(),
            )
            if names:
                part = replace(part, called=class_name, at=decision_point)
            if class_code in by_class:
                side = by_class[class_code]
                positive_name = rows.class_names[side.get_positive_code(rows.class_names)]
                part = _with_promise(part, side, positive_name, significance_level, spare_level)
            parts.append(part)
        return tuple(parts)

    def certify_all(self, rows: CalibrationRows, delta: float | None) -> Certificate:
        """Certify both sides of all rows."""
        assert delta is not None
        by_class = self.get_promises_by_class(rows.class_names)
        for side in by_class.values():
            if side.is_trivially_kept(rows):
                raise trivial_promise_error(side, rows)

        result = self.certify_subgroup(rows, delta)
        if not result.accepts_any_row:
            raise self._build_infeasible_error(rows, delta)

        parts = self.build_subgroup_certificates((), rows, result, delta, delta)
        outcome = ThresholdOutcome(
            n_rows=sum(part.n_rows for part in parts),
            n_correct=sum(part.n_correct for part in parts),
            n_accepted=sum(part.n_accepted for part in parts),
            n_correct_accepted=sum(part.n_correct_accepted for part in parts),
            highest_accepted=None,
            lowest_rejected=None,
        )
        certificate = build_certificate(
            *self.get_main_limit(rows), delta, self.rule_name, REJECT_ALL_ROWS, outcome
        )
        return replace(
            certificate,
            score=self.score_name,
            decision_at=find_decision_point(rows, result),
            parts=SubgroupCertificates("class", "together", parts),
        )

    def _build_infeasible_error(self, rows: CalibrationRows, delta: float) -> InfeasibleTargetError:
        """Build the error for rows that support neither side."""
        by_class = self.get_promises_by_class(rows.class_names)
        reasons = [
            explain_uncertified_class(side, rows, delta * side.level_fraction)
            for side in by_class.values()
        ]
        return InfeasibleTargetError(
            f"{'; '.join(reasons)}.", target=self.promised_limits[0].target
        )

    def compute_decision_columns(
        self, rows: CalibrationRows, decision_points: float | Float
    ) -> DecisionColumns:
        """Return the distance from the decision point and the class that each row is called by."""
        side_codes = (rows.scores > decision_points).astype(np.intp)
        uncertainty = RELATIVE.rounded(-np.abs(rows.scores - decision_points))
        return DecisionColumns(uncertainty, side_codes == rows.true_class_codes, side_codes)

    def find_contradiction(
        self, certificate: Certificate, delta: float | None, promise: object
    ) -> str | None:
        """Check that the parts of a certificate are two sides that support the promise."""
        assert delta is not None
        parts = certificate.parts
        if parts is None or len(parts.items) != 2 or parts.by != "class":
            return other_promise_sentence(promise)
        return self.find_contradiction_in_subgroup(parts.items, delta, promise)

    def find_contradiction_in_subgroup(
        self, family: tuple[SubgroupCertificate, ...], significance_level: float, promise: object
    ) -> str | None:
        """Check the two parts of a group: what they promise, at which level, and their counts."""
        class_names = [part.names[0] if part.called is None else part.called for part in family]
        by_class = self.get_promises_by_class(class_names)
        was_tested = any(part.delta is not None for part in family)
        for class_code, part in enumerate(family):
            side = by_class.get(class_code)
            expected_level = 0.0
            if side is not None and was_tested:
                expected_level = significance_level * side.level_fraction
            has_level = math.isclose(part.delta or 0.0, expected_level, rel_tol=_LEVEL_TOLERANCE)
            if not has_level or not _states_promise(part, side, class_names, significance_level):
                return f"class {class_names[class_code]}: {other_promise_sentence(promise)}"

            is_closed = part.threshold == REJECT_ALL_ROWS
            counts = _counts_of_side(part, other_part=family[1 - class_code])
            if is_closed:
                continue
            if side is None or not side.supports(counts, significance_level):
                n_errors = part.n_accepted - part.n_correct_accepted
                return (
                    f"class {class_names[class_code]}: {n_errors:,} wrong of {part.n_accepted:,}"
                    " rows called so certify nothing"
                )
        return None

    def with_early_starts(self) -> TwoClassProcedure:
        """Return the procedure unchanged. A precision has starts of its own."""
        return self


def _level_share_of_first_class(by_class: dict[int, ClassPromise]) -> float:
    """Return the fraction of the level for the side of the first class.

    It is a half, unless both sides are precisions and a class is declared to be rare.
    """
    first_share = 0.5
    for class_code, side in by_class.items():
        other_side = by_class[1 - class_code]
        if not other_side.rule.reads_labels_in_order or side.declared_class_share is None:
            continue
        share_of_first_class = side.declared_class_share
        if class_code == 1:
            share_of_first_class = 1.0 - side.declared_class_share
        first_share = _level_share_for(share_of_first_class)
    return first_share


def _level_share_for(class_share: float) -> float:
    """Return the fraction of the level for the side of a class with a declared share."""
    if class_share <= _RARE_CLASS_SHARE:
        return _LEVEL_OF_RARE_CLASS
    if class_share >= 1.0 - _RARE_CLASS_SHARE:
        return 1.0 - _LEVEL_OF_RARE_CLASS
    return 0.5


def _with_promise(
    part: SubgroupCertificate,
    side: ClassPromise,
    positive_name: Name,
    significance_level: float | None,
    spare_level: float,
) -> SubgroupCertificate:
    """Add to a part what is promised about it."""
    level = spare_level if significance_level is None else significance_level
    own_level = None
    if significance_level is not None:
        own_level = level * side.level_fraction
    rows_needed = None
    if part.threshold == REJECT_ALL_ROWS:
        rows_needed = side.compute_required_rows(level)
    return replace(
        part,
        quantity=side.quantity,
        target=float(side.target),
        about=positive_name,
        delta=own_level,
        rows_needed=rows_needed,
    )


def _states_promise(
    part: SubgroupCertificate,
    side: ClassPromise | None,
    class_names: Sequence[Name],
    significance_level: float,
) -> bool:
    """Check whether a part states the promise of a side, or none if there is no side."""
    stated = (part.quantity, part.target, part.about, part.rows_needed)
    if side is None:
        return stated == (None, None, None, None)
    rows_needed = None
    if part.threshold == REJECT_ALL_ROWS:
        own_level = part.delta or significance_level * side.level_fraction
        rows_needed = side.rule.compute_required_rows(side.limit, own_level)
    positive_name = class_names[side.get_positive_code(class_names)]
    return stated == (side.quantity, float(side.target), positive_name, rows_needed)


def _counts_of_side(part: SubgroupCertificate, other_part: SubgroupCertificate) -> Counts:
    """Count all rows of both parts, where a row is correct if it is of the class of one part."""
    n_rows = part.n_rows + other_part.n_rows
    n_not_of_class = part.n_rows - part.n_correct + other_part.n_correct
    return Counts(
        n_rows=n_rows,
        n_accepted=part.n_accepted,
        n_correct=n_rows - n_not_of_class,
        n_correct_accepted=part.n_correct_accepted,
    )


def _pilot_from(pilot: PilotRows | None, class_code: int) -> PilotRows | None:
    """Return the pilot rows with scores that increase from the end of one class."""
    if pilot is None:
        return None
    scores = RELATIVE.rounded(pilot.scores)
    if class_code == 1:
        scores = -scores
    return replace(pilot, scores=scores)


def find_decision_point(rows: CalibrationRows, result: SubgroupResult) -> float:
    """Find the log-odds at which the predicted class changes.

    It is the point of even odds, or the nearest point that leaves the accepted rows of each class on
    their own side.

    Parameters
    ----------
    rows : CalibrationRows
        Rows of two classes.

    result : SubgroupResult
        Number of rows that are accepted from either end.

    Returns
    -------
    float

    Examples
    --------
    >>> rows = CalibrationRows(np.arange(10.0), np.arange(10) > 4)
    >>> round(find_decision_point(rows, SubgroupResult((None, None))), 3)
    4.5
    >>> from metacal.certification.rules.rule import ThresholdResult
    >>> accepted = SubgroupResult((ThresholdResult(n_accepted=7), ThresholdResult(n_accepted=2)))
    >>> find_decision_point(rows, accepted)
    6.5
    """
    n_first = result.count_accepted(0)
    n_second = result.count_accepted(1)
    sorted_scores = np.sort(rows.scores)
    finite_scores = sorted_scores[np.isfinite(sorted_scores)]
    low_end = float(finite_scores.min(initial=0.0)) - 1.0
    high_end = float(finite_scores.max(initial=0.0)) + 1.0
    padded = np.concatenate([[low_end], np.clip(sorted_scores, low_end, high_end), [high_end]])
    midpoints = 0.5 * padded[:-1] + 0.5 * padded[1:]
    lowest = -np.inf
    if n_first > 0:
        lowest = midpoints[n_first]
    highest = np.inf
    if n_second > 0:
        highest = midpoints[len(sorted_scores) - n_second]
    return float(np.clip(rows.even_odds_score, lowest, highest))
