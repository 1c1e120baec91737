r"""Certification of promises about rows that are accepted as one of two classes.

Let s be the log-odds of the positive class, or any score that increases with it. Rows are accepted
as positive if s > u and as negative if s <= l. The rows in between go to review. A promise is about
the rows that are accepted as one class. Each promise is certified on all n rows, ranked so that the
rows that are most likely to be of its class come first. A row is correct if it is of that class.

- A precision, P(positive | accepted as positive) >= limit, is certified by `FixedSequenceRule`, like
  an accuracy. If the class is rare, the rows that are least likely to be of the class are read before
  the tests are planned (`metacal.certification.peeling`), and are not accepted as the class.
- A recall, P(accepted as negative | positive) <= limit, and a false-positive rate, P(accepted as
  positive | negative) <= limit, are certified by `AcceptanceRateRule`, exactly: strictly beyond the
  r-th of the n1 rows that must not be accepted so lies P ~ Beta(r, n1 + 1 - r) (Tong, Feng & Li
  2018).

**Two promises.** Each promise receives half of the significance level, and the union bound applies.
If both are precisions and a class is declared rare, its promise receives 0.8 of the level and the
other one 0.2. If the accepted rows overlap (u < l), each promise takes the highest rank that it
passed on the side of its class, as seen from even calibrated odds. This is valid because every rank
that a sequence passed is certified, all of them at once. The point of even odds may depend on labels,
since it only chooses among certified ranks. (The point itself must not be used as a threshold. It was
never tested, and breaks up to 0.9 of promises.) A threshold lies just before the next row that is not
accepted.

If nothing is certified for a class, the rows that are predicted as it go to review. It is an error
if nothing is certified for either class. It is also an error if a precision is kept by accepting
every row as the class. This is decided by the labels, which is valid because a promise that is not
made cannot be broken.

**Each group.** Both promises are certified on the rows of the group alone, at the level of the group,
and the predicted class changes at log-odds of its own.

*Proof.* (1) Given how many rows each group has, the rows of a group are i.i.d., so all of the above
holds for it: at level d the probability that a test passes that breaks one of its promises is at most
d, for both promises together. (2) By the union bound no promise is broken in any group if the levels
sum to delta. The other corrections in `scopes` need no more than such a level, and two promises pass
no level on to other groups. (3) How delta is divided depends on the number of rows of each group. For
a recall or a false-positive rate it depends on the number of rows that must not be accepted so, which
is valid because order statistics hold given all labels. For a precision labels must have no
influence. (4) Pilot rows are drawn from each group without reading what is tested. ∎

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
from metacal.certificates.design import record_design
from metacal.certificates.rule_texts import SAME_SOURCE, register_rule
from metacal.certificates.subgroups import Name, SubgroupCertificate, SubgroupCertificates
from metacal.certification.class_certificates import (
    add_best_targets,
    add_class_promise,
    build_class_certificate,
    count_members_of_class,
    get_predicted_class,
    states_class_promise,
    sum_counts_of_classes,
)
from metacal.certification.class_shortfall import ClassShortfall, find_class_shortfall
from metacal.certification.decision_point import find_decision_point
from metacal.certification.pilot import PilotPolicy
from metacal.certification.plans import PilotRows
from metacal.certification.procedures import (
    DecisionColumns,
    PromisedLimit,
    RowRequirement,
    SubgroupResult,
)
from metacal.certification.ranking import Ranking
from metacal.certification.rows import CalibrationRows
from metacal.certification.rules.rule import REJECT_ALL_ROWS, ThresholdResult
from metacal.certification.sides import ClassPromise, divide_level_between_classes
from metacal.certification.statements import (
    build_certificate,
    build_uncertified_classes_error,
    format_promise_mismatch,
    warn_about_uncertified_class,
)
from metacal.certification.unsuitable_rows import (
    build_same_class_error,
    build_trivial_promise_error,
)
from metacal.errors import InfeasibleTargetError
from metacal.formulas import Float
from metacal.kernels.grid import RELATIVE_GRID

# Name of the rules for both classes in certificates and files.
TWO_SIDED = register_rule(
    "two-sided",
    "each side by itself: a precision by exact binomial tests in a fixed sequence of ranks with"
    " fallback shares of delta (Wiens 2003), a recall or false-positive rate by an order statistic"
    " (Tong, Feng & Li 2018)",
    SAME_SOURCE,
    score_value_description=(
        "each side by itself: a precision by exact binomial tests at the values of the score, the"
        " surest first, a recall or false-positive rate by an order statistic (Tong, Feng & Li"
        " 2018)"
    ),
)

# Value of the field for a common threshold in certificates with a threshold for each class. Gates
# do not use the value.
_UNUSED_COMMON_THRESHOLD = REJECT_ALL_ROWS

# Result of a subgroup in which the promises about both classes were not tested.
_NO_CLASS_TESTED = SubgroupResult(threshold_results=(None, None))

# Relative rounding error that is tolerated in a significance level from a file.
_LEVEL_TOLERANCE = 1e-12


@dataclass(frozen=True)
class TwoClassProcedure:
    """Procedure with up to two thresholds on the log-odds of two classes.

    Implements `metacal.certification.procedures.SubgroupProcedure`.

    Parameters
    ----------
    class_promises : tuple of ClassPromise
        One class promise or two, in the order in which the user names them.
    """

    class_promises: tuple[ClassPromise, ...]

    rule_name = TWO_SIDED
    score_name = "margin"

    # If nothing is certified for a class, the rows that are predicted as this class go to review.
    fallback_threshold = REJECT_ALL_ROWS

    @property
    def promised_limits(self) -> tuple[PromisedLimit, ...]:
        """Promised limits, in the order in which the promise names them."""
        return tuple(
            PromisedLimit(class_promise.quantity, float(class_promise.target))
            for class_promise in self.class_promises
        )

    def get_promises_by_class(self, class_names: Sequence[Name]) -> dict[int, ClassPromise]:
        """Return the promise about each class and its share of the significance level.

        Parameters
        ----------
        class_names : sequence of str or int
            Names of the two classes.

        Returns
        -------
        dict of int to ClassPromise
            The keys are the codes of the classes that rows are accepted as.

        Raises
        ------
        InputError
            If a positive class is unknown, or if both promises are about the same class.
        """
        promises_by_class = {
            class_promise.get_predicted_code(class_names): class_promise
            for class_promise in self.class_promises
        }
        if len(self.class_promises) == 1:
            return promises_by_class
        if len(promises_by_class) == 1:
            raise build_same_class_error(class_names[min(promises_by_class)])
        return divide_level_between_classes(promises_by_class)

    def get_main_limit(self, rows: CalibrationRows) -> PromisedLimit:
        """Return the limit of the second class, or of the only class with a promise."""
        promises_by_class = self.get_promises_by_class(rows.class_names)
        last_class_code = max(promises_by_class)
        class_promise = promises_by_class[last_class_code]
        return PromisedLimit(class_promise.quantity, class_promise.target)

    def build_pilot_policy(
        self, random_state: int | None = None, declared_score_values: Float | None = None
    ) -> PilotPolicy | None:
        """Build the policy that chooses pilot rows, or None if no test sequence is run."""
        sequential_promises = [
            class_promise
            for class_promise in self.class_promises
            if class_promise.rule.tests_ranks_sequentially
        ]
        if not sequential_promises:
            return None

        def get_sequentially_tested_class_codes(class_names: Sequence[Name]) -> list[int]:
            return [
                class_promise.get_predicted_code(class_names)
                for class_promise in sequential_promises
            ]

        return PilotPolicy(
            random_state=random_state,
            declared_score_values=declared_score_values,
            get_tested_class_codes=get_sequentially_tested_class_codes,
        )

    def compute_row_requirements(
        self, rows: CalibrationRows, significance_level: float
    ) -> list[RowRequirement]:
        """Count the reference rows and the required rows of each class promise.

        The requirements determine how delta is divided among subgroups. If a precision is promised,
        labels must not influence this division. The other promises count rows by their labels, so
        they are then left out.
        """
        class_promises = list(self.get_promises_by_class(rows.class_names).values())
        precisions = [promise for promise in class_promises if promise.is_precision]
        counted_promises = class_promises
        if precisions:
            counted_promises = precisions
        return [
            class_promise.compute_row_requirement(rows, significance_level)
            for class_promise in counted_promises
        ]

    def certify_subgroup(
        self,
        rows: CalibrationRows,
        significance_level: float,
        plan_significance_level: float | None = None,
    ) -> SubgroupResult:
        """Certify the thresholds of both classes.

        Two class promises pass no level on, so `plan_significance_level` has no effect.
        """
        tested_promises: dict[int, ClassPromise] = {}
        for class_code, class_promise in self.get_promises_by_class(rows.class_names).items():
            if not class_promise.is_trivially_kept(rows):
                tested_promises[class_code] = class_promise

        ranking_by_class: dict[int, Ranking] = {}
        pilot_rows_by_class: dict[int, PilotRows | None] = {}
        result_by_class: dict[int, ThresholdResult] = {}
        for class_code, class_promise in tested_promises.items():
            ranking_by_class[class_code] = rows.rank_for_class(class_code)
            pilot_rows_by_class[class_code] = _orient_pilot_rows(rows.pilot_rows, class_code)
            result_by_class[class_code] = class_promise.certify(
                ranking_by_class[class_code], significance_level, pilot_rows_by_class[class_code]
            )

        n_accepted = sum(result.n_accepted for result in result_by_class.values())
        accepts_rows_as_both_classes = n_accepted > len(rows)
        if accepts_rows_as_both_classes:
            # No row may be accepted as both classes, so even odds separate the accepted rows.
            for class_code, class_promise in tested_promises.items():
                ranking = ranking_by_class[class_code]
                even_odds_score = rows.even_odds_score_for_class(class_code)
                result_by_class[class_code] = class_promise.certify(
                    ranking,
                    significance_level,
                    pilot_rows_by_class[class_code],
                    max_tested_rank=ranking.count_rows_below(even_odds_score),
                )
        return SubgroupResult(threshold_results=(result_by_class.get(0), result_by_class.get(1)))

    def build_subgroup_certificates(
        self,
        subgroup_names: tuple[Name, ...],
        rows: CalibrationRows,
        result: SubgroupResult | None,
        significance_level: float | None,
        significance_level_if_untested: float,
    ) -> tuple[SubgroupCertificate, ...]:
        """Build one certificate for each class of a subgroup.

        If `subgroup_names` is empty, the certificates are about all rows.
        """
        if result is None:
            result = _NO_CLASS_TESTED
        decision_point = find_decision_point(rows, result)
        decision_columns = self.compute_decision_columns(rows, decision_point)
        promises_by_class = self.get_promises_by_class(rows.class_names)
        is_about_all_rows = len(subgroup_names) == 0
        class_certificates = []
        for class_code, class_name in enumerate(rows.class_names):
            class_certificate = build_class_certificate(
                (class_name,) if is_about_all_rows else subgroup_names,
                decision_columns,
                class_code,
                max_accepted=result.count_accepted(class_code),
            )
            if not is_about_all_rows:
                class_certificate = replace(
                    class_certificate, predicted_class=class_name, decision_log_odds=decision_point
                )
            if class_code in promises_by_class:
                class_promise = promises_by_class[class_code]
                positive_code = class_promise.get_positive_code(rows.class_names)
                class_certificate = add_class_promise(
                    class_certificate,
                    class_promise,
                    positive_class=rows.class_names[positive_code],
                    significance_level=significance_level,
                    significance_level_if_untested=significance_level_if_untested,
                )
            class_certificates.append(class_certificate)
        return tuple(class_certificates)

    def certify_promise(self, rows: CalibrationRows, delta: float | None) -> Certificate:
        """Certify the thresholds of both classes on all rows."""
        assert delta is not None
        for class_promise in self.get_promises_by_class(rows.class_names).values():
            if class_promise.is_trivially_kept(rows):
                raise build_trivial_promise_error(class_promise, rows)

        result = self.certify_subgroup(rows, significance_level=delta)
        if not result.accepts_any_row:
            raise self._build_infeasible_error(rows, delta)

        class_certificates = self.build_subgroup_certificates(
            subgroup_names=(),
            rows=rows,
            result=result,
            significance_level=delta,
            significance_level_if_untested=delta,
        )
        shortfalls = self._find_shortfalls(rows, delta, class_certificates)
        class_certificates = add_best_targets(class_certificates, shortfalls)
        notes = tuple(warn_about_uncertified_class(shortfall) for shortfall in shortfalls)
        main_limit = self.get_main_limit(rows)
        certificate = build_certificate(
            quantity=main_limit.quantity,
            target=main_limit.target,
            delta=delta,
            rule_name=self.rule_name,
            threshold=_UNUSED_COMMON_THRESHOLD,
            outcome=sum_counts_of_classes(class_certificates),
            notes=notes,
        )
        certificate = record_design(certificate, result.design)
        return replace(
            certificate,
            score=self.score_name,
            decision_at=find_decision_point(rows, result),
            subgroups=SubgroupCertificates(
                by="class", delta_sharing="together", items=class_certificates
            ),
        )

    def _build_infeasible_error(self, rows: CalibrationRows, delta: float) -> InfeasibleTargetError:
        """Build the error for rows that certify nothing for either class."""
        shortfalls = self._find_shortfalls(rows, delta)
        # The first promise comes first, because the fields of the error describe the first shortfall.
        first_promise = self.class_promises[0]
        shortfalls.sort(key=lambda shortfall: shortfall.class_promise != first_promise)
        return build_uncertified_classes_error(shortfalls)

    def _find_shortfalls(
        self,
        rows: CalibrationRows,
        delta: float,
        class_certificates: Sequence[SubgroupCertificate] | None = None,
    ) -> list[ClassShortfall]:
        """Find the shortfall of each promise whose certificate rejects all rows."""
        shortfalls = []
        for class_code, class_promise in self.get_promises_by_class(rows.class_names).items():
            certificate_accepts_rows = (
                class_certificates is not None
                and class_certificates[class_code].threshold != REJECT_ALL_ROWS
            )
            if certificate_accepts_rows:
                continue
            shortfall = find_class_shortfall(
                class_promise,
                rows,
                _orient_pilot_rows(rows.pilot_rows, class_code),
                significance_level=delta,
                class_code=class_code,
            )
            shortfalls.append(shortfall)
        return shortfalls

    def compute_decision_columns(
        self, rows: CalibrationRows, decision_log_odds: float | Float
    ) -> DecisionColumns:
        """Predict the class of each row, and measure its distance from the decision point."""
        predicted_codes = (rows.scores > decision_log_odds).astype(np.intp)
        distance_from_decision = np.abs(rows.scores - decision_log_odds)
        return DecisionColumns(
            uncertainty=RELATIVE_GRID.round(-distance_from_decision),
            correct=predicted_codes == rows.true_class_codes,
            threshold_indices=predicted_codes,
        )

    def find_contradiction(
        self, certificate: Certificate, delta: float | None, promise: object
    ) -> str | None:
        """Check that a certificate is about two classes and supports the promise."""
        assert delta is not None
        subgroups = certificate.subgroups
        if subgroups is None or len(subgroups.items) != 2 or subgroups.by != "class":
            return format_promise_mismatch(promise)
        return self.find_contradiction_in_subgroup(subgroups.items, delta, promise)

    def find_contradiction_in_subgroup(
        self,
        subgroup_certificates: tuple[SubgroupCertificate, ...],
        significance_level: float,
        promise: object,
    ) -> str | None:
        """Check the promise, the level and the counts of both class certificates."""
        class_names = [get_predicted_class(certificate) for certificate in subgroup_certificates]
        promises_by_class = self.get_promises_by_class(class_names)
        was_tested = any(certificate.delta is not None for certificate in subgroup_certificates)
        for class_code, certificate in enumerate(subgroup_certificates):
            class_promise = promises_by_class.get(class_code)
            level_of_promise = 0.0
            if class_promise is not None and was_tested:
                level_of_promise = class_promise.compute_level_of_promise(significance_level)
            has_expected_level = math.isclose(
                certificate.delta or 0.0, level_of_promise, rel_tol=_LEVEL_TOLERANCE
            )
            has_expected_promise = states_class_promise(
                certificate, class_promise, class_names, significance_level
            )
            if not has_expected_level or not has_expected_promise:
                return f"class {class_names[class_code]}: {format_promise_mismatch(promise)}"

            other_certificate = subgroup_certificates[1 - class_code]
            counts_support_promise = _supports_class_promise(
                class_promise, certificate, other_certificate, significance_level
            )
            if not counts_support_promise:
                n_errors = certificate.n_accepted - certificate.n_correct_accepted
                return (
                    f"class {class_names[class_code]}: {n_errors:,} wrong of"
                    f" {certificate.n_accepted:,} rows called so certify nothing"
                )
        return None

    def with_early_starts(self) -> TwoClassProcedure:
        """Return the procedure unchanged, because each class promise has its own starts."""
        return self


def _supports_class_promise(
    class_promise: ClassPromise | None,
    certificate: SubgroupCertificate,
    other_certificate: SubgroupCertificate,
    significance_level: float,
) -> bool:
    """Check whether the counts of both classes support accepting rows as one class."""
    rejects_all_rows = certificate.threshold == REJECT_ALL_ROWS
    if rejects_all_rows:
        return True
    if class_promise is None:
        return False
    row_counts = count_members_of_class(certificate, other_certificate)
    return class_promise.supports(row_counts, significance_level)


def _orient_pilot_rows(pilot_rows: PilotRows | None, class_code: int) -> PilotRows | None:
    """Return pilot rows with scores that fall as a class becomes more likely.

    A pilot row is correct if it is of the class.
    """
    if pilot_rows is None:
        return None
    oriented_scores = RELATIVE_GRID.round(pilot_rows.scores)
    is_second_class = class_code == 1
    if is_second_class:
        # Scores are the log-odds of the second class.
        oriented_scores = -oriented_scores
    is_of_class = None
    if pilot_rows.class_codes is not None:
        is_of_class = pilot_rows.class_codes == class_code
    return replace(pilot_rows, scores=oriented_scores, correct=is_of_class)
