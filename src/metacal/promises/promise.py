"""Promise: the base class of all promises."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import fields
from typing import TYPE_CHECKING, Any, ClassVar, Self

import numpy as np

from metacal.certificates.certificate import Certificate, Guarantee
from metacal.certificates.counts import (
    find_label_contradiction,
    find_planning_row_contradiction,
    find_score_value_contradiction,
    find_traffic_contradiction,
)
from metacal.certificates.quantity import Limits, Quantity
from metacal.certificates.subgroups import Name
from metacal.certification.certify import certify, is_about_cases
from metacal.certification.ranking import Evidence
from metacal.certification.rows import CalibrationRows
from metacal.certification.statements import format_confidence_level, format_promise_mismatch
from metacal.errors import InputError
from metacal.formulas import Flags, Float
from metacal.rows.arrays import check_fraction

if TYPE_CHECKING:
    from metacal.certification.procedures import Procedure, SubgroupProcedure
    from metacal.certification.row_losses import Losses
    from metacal.certification.scopes import EachSubgroup
    from metacal.rows import Rows


class Promise(ABC):
    """Base class of all promises.

    A promise is data: a frozen dataclass with its limits and `delta`. A subclass defines

    - `quantities`: the quantity that each parameter limits, for example {"beta": SELECTIVE_ACCURACY};
    - `rules`: the names of its rules (`words.register_rule`), with a delta and in expectation;
    - `procedure()`: how calibration rows are certified, and how a certificate that was read from a
      file is checked (`metacal.certification.procedures.Procedure`).

    A subclass overrides `split_rows`, `select_map_training_rows` and `guarantee` if the threshold and the
    calibrator must not share rows, or if nothing is guaranteed. A row in `promises.kinds` allows
    files to name the promise.
    """

    # Map from each parameter with a limit to the quantity that it limits, in certificate order.
    quantities: ClassVar[Mapping[str, Quantity]]

    # Name of the rule with a delta, followed by that of the rule in expectation if there is one.
    rules: ClassVar[Sequence[str]]

    # Names of the rules for a cascade without human review and with human review.
    cascade_rules: ClassVar[tuple[str, ...]] = ()

    # Name of the calibrator that the promise prescribes, or None if it prescribes none.
    default_calibrator: ClassVar[str | None] = None

    # Whether a row may have a loss between 0 and 1 in place of a correct or incorrect prediction.
    supports_row_losses: ClassVar[bool] = False

    # The promise fails with at most this probability. None if it holds in expectation.
    delta: float | None

    def __post_init__(self) -> None:
        """Check that each limit and delta is strictly between 0 and 1, or None if allowed."""
        optional_params = {"delta"}
        for field in fields(self):  # type: ignore[arg-type]
            if field.default is None:
                optional_params.add(field.name)
        for param in (*self.quantities, "delta"):
            param_value = getattr(self, param)
            if param_value is None and param in optional_params:
                continue
            check_fraction(param, param_value)

    def certify(self, evidence: Any, correct: Any = None) -> Certificate:
        """Certify the promise on calibration rows.

        Parameters
        ----------
        evidence : array-like of shape (n_rows,), CalibrationRows or Evidence
            Ranking scores, or rows with more columns, or another kind of evidence, such as
            `Passes` over rows that are only counted.

        correct : array-like of bool of shape (n_rows,), optional
            Whether each prediction is correct, if `evidence` has the scores.

        Returns
        -------
        Certificate

        Raises
        ------
        InfeasibleTargetError
            If the rows do not support the target.

        Examples
        --------
        >>> import metacal as mc
        >>> mc.MaxReview(0.05).certify(np.arange(100.0), np.ones(100, dtype=bool)).n_accepted
        99
        """
        if isinstance(evidence, Evidence):
            return evidence.certify(self)
        if isinstance(evidence, CalibrationRows):
            return certify(self, evidence)
        return certify(self, CalibrationRows.from_columns(evidence, correct))

    @abstractmethod
    def procedure(self) -> Procedure:
        """Return the procedure that certifies calibration rows."""

    @property
    def scope(self) -> EachSubgroup | None:
        """Scope that divides the rows into subgroups, or None for one promise on all rows."""
        return None

    @property
    def is_two_sided(self) -> bool:
        """Whether the promise is about the predictions of one or both of two classes."""
        return len(self.positive_classes) > 0

    @property
    def positive_classes(self) -> tuple[Name | None, ...]:
        """Positive class of each promise about one class. None means the second class.

        It is empty if the promise is not about one of two classes.
        """
        return ()

    def with_positive_class(self, positive: Name) -> Self:
        """Return a copy with this positive class, unless the promise names another one.

        A promise that is not about one of two classes is returned as it is.
        """
        return self

    def find_count_contradiction(self, certificate: Certificate) -> str | None:
        """Return how the counts of a certificate contradict the promise, or None."""
        from metacal.certification.audit import find_test_contradiction

        return find_test_contradiction(self, certificate)

    def compute_losses(self, rows: Rows, labels: Any) -> Losses | None:
        """Compute the cost of each prediction, or return None if costs are not limited.

        Parameters
        ----------
        rows : Rows
            Logits of the rows.

        labels : array of int of shape (n_rows,)
            Column of the true class of each row, on any device.
        """
        return None

    @property
    def limits(self) -> Limits:
        """Pairs of a promised quantity and its limit, in the order of certificates."""
        limits = []
        for param, quantity in self.quantities.items():
            limit = getattr(self, param)
            if limit is not None:
                limits.append((quantity, float(limit)))
        return tuple(limits)

    @property
    def rule(self) -> str:
        """Name of the rule that certifies the promise."""
        if self.delta is None:
            return self.rules[-1]
        return self.rules[0]

    @property
    def possible_rules(self) -> tuple[str, ...]:
        """Names of all rules that may certify the promise for a single model."""
        return (self.rule,)

    def get_cascade_rule(self, *, has_human_review: bool) -> str:
        """Return the name of the rule for a cascade, with or without human review."""
        if has_human_review:
            return self.cascade_rules[-1]
        return self.cascade_rules[0]

    def rules_allowed_in(self, certificate: Certificate) -> tuple[str, ...]:
        """Return the names of the rules that a certificate of the promise may name.

        They depend on whether the certificate is for a cascade, and whether people are in it.
        """
        stages = certificate.stages
        if stages is None:
            return self.possible_rules
        if stages.has_human_review:
            return self.cascade_rules
        return self.cascade_rules[:1]

    @property
    def guarantee(self) -> Guarantee:
        """Kind of guarantee that certificates of the promise state."""
        if self.delta is None:
            return "in expectation"
        return "certified"

    @property
    def confidence_phrase(self) -> str:
        """Confidence level as messages state it, such as "with 90% confidence"."""
        return format_confidence_level(self.delta)

    @property
    def needs_labels(self) -> bool:
        """Whether only labelled rows can certify the promise."""
        return any(quantity.needs_labels for quantity, _ in self.limits)

    @property
    def counts_cases(self) -> bool:
        """Whether the promise is about cases, and not about rows."""
        return is_about_cases(self)

    @property
    def split_seed(self) -> int | None:
        """Seed that the user passed for the random split, or None."""
        return None

    def split_rows(self, correct: Flags, score: Float | None = None) -> tuple[Flags, Flags]:
        """Return two masks: rows that choose the threshold, and rows for the calibrator.

        By default all rows serve both purposes, because the score does not depend on labels.

        Parameters
        ----------
        correct : array of bool of shape (n_rows,)
            Whether each prediction is correct.
        score : array of shape (n_rows,), optional
            Ranking score of each row.

        Returns
        -------
        is_for_threshold, is_for_calibrator : arrays of bool of shape (n_rows,)
        """
        all_rows = np.ones(len(correct), dtype=bool)
        return all_rows, all_rows

    def select_map_training_rows(
        self, is_available: Flags, scores: Float, correct: Flags, certificate: Certificate
    ) -> Flags:
        """Return a mask of the rows on which the calibrator is fitted.

        By default these are all available rows, because a calibrator learns from errors, and
        accepted rows have few of them.

        Parameters
        ----------
        is_available : array of bool of shape (n_rows,)
            Whether the calibrator may use each row.
        scores : array of shape (n_rows,)
            Ranking score of each row.
        correct : array of bool of shape (n_rows,)
            Whether each prediction is correct.
        certificate : Certificate
            Certificate of the threshold.

        Returns
        -------
        array of bool of shape (n_rows,)
        """
        return is_available

    def with_delta_fraction(self, fraction: float) -> Self:
        """Return the promise with a fraction of its delta.

        Several promises hold together at the original delta if their fractions sum to one.
        """
        if fraction == 1.0 or self.delta is None:
            return self
        return self.with_delta(self.delta * fraction)

    def with_delta(self, delta: float | None) -> Self:
        """Return the promise with another delta."""
        params = self.get_params()
        params["delta"] = delta
        return type(self)(**params)

    def get_params(self, deep: bool = True) -> dict[str, Any]:
        """Return the parameters of the constructor, as scikit-learn's `clone` needs them."""
        return {field.name: getattr(self, field.name) for field in fields(self)}  # type: ignore[arg-type]

    def set_params(self, **params: Any) -> Self:
        """Return a copy of the frozen promise with other parameters.

        The `set_params` of an estimator replaces its promise by this copy, so that a grid search
        over `promise__beta` works.
        """
        current_params = self.get_params(deep=False)
        for name in params:
            if name not in current_params:
                raise InputError(
                    f"{type(self).__name__} has no parameter {name!r}. Its parameters are"
                    f" {', '.join(current_params)}."
                )
        return type(self)(**{**current_params, **params})

    def contradiction(self, certificate: Certificate) -> str | None:
        """Return how a loaded certificate contradicts the promise, or None.

        Rule, limits and counts are recomputed from one another (`metacal.certification.audit`).

        Parameters
        ----------
        certificate : Certificate
            Certificate to check.

        Returns
        -------
        str or None
            Sentence without a full stop. None if no contradiction was found.

        Examples
        --------
        >>> from dataclasses import replace
        >>> from metacal.promises.miscoverage import MaxMiscoverage
        >>> promise = MaxMiscoverage(0.05)
        >>> certificate = promise.certify(np.linspace(0, 1, 100), np.ones(100, dtype=bool))
        >>> promise.contradiction(certificate)
        >>> promise.contradiction(replace(certificate, rule="paper-algorithm-1"))
        'the rule is none that this promise uses'
        """
        return (
            self._find_design_contradiction(certificate)
            or self._find_term_contradiction(certificate)
            or self._find_rule_contradiction(certificate)
            or self._find_row_count_contradiction(certificate)
            or self._find_test_contradiction(certificate)
        )

    def _find_design_contradiction(self, certificate: Certificate) -> str | None:
        """Return why the folds, clusters or scores of a certificate are impossible."""
        design = certificate.design
        max_folds = certificate.n_rows
        if self._tests_only_part_of_rows:
            # The rows of the split do not limit the number of folds, because all rows are scored
            # in folds, but the certificate counts only the rows of the split.
            max_folds = max(max_folds, design.n_folds)
        return design.find_contradiction(max_folds=max_folds, delta=self.delta)

    def _find_term_contradiction(self, certificate: Certificate) -> str | None:
        """Return why the terms of a certificate differ from the promise, or None."""
        certificate_counts_cases = certificate.cases is not None
        counts_other_unit = certificate_counts_cases != self.counts_cases
        if counts_other_unit or not self._has_same_terms(certificate):
            return format_promise_mismatch(self)
        return None

    def _find_rule_contradiction(self, certificate: Certificate) -> str | None:
        """Return why the rule of a certificate cannot certify the promise, or None."""
        allowed_rule_names = self.rules_allowed_in(certificate)
        if certificate.design.counts_whole_clusters:
            from metacal.certification.clusters import WHOLE_CLUSTERS_RULE

            allowed_rule_names = (WHOLE_CLUSTERS_RULE,)
        if certificate.rule in allowed_rule_names:
            return None
        return "the rule is none that this promise uses"

    def _find_test_contradiction(self, certificate: Certificate) -> str | None:
        """Return why the counts fail the test of the promise, or None."""
        # The import is local, because only loaded certificates are tested again.
        from metacal.certification.audit import (
            find_cluster_test_contradiction,
            find_test_contradiction,
        )

        design = certificate.design
        # If several scores were tested, each test had a fraction of delta.
        promise_at_tested_delta = self.with_delta_fraction(design.delta_fraction)
        if design.counts_whole_clusters:
            return find_cluster_test_contradiction(promise_at_tested_delta, certificate)
        return find_test_contradiction(promise_at_tested_delta, certificate)

    @property
    def _tests_only_part_of_rows(self) -> bool:
        """Whether the rule tests a part of the rows only, as the paper's rules do."""
        return self.guarantee == "none"

    def _find_row_count_contradiction(self, certificate: Certificate) -> str | None:
        """Return how the row counts of a certificate contradict each other, or None."""
        design = certificate.design
        cases = certificate.cases
        has_pilot_cases = cases is not None and cases.n_pilot > 0
        tests_only_some_rows = (
            self._tests_only_part_of_rows
            or design.counts_whole_clusters
            or design.n_pilot_rows > 0
            or has_pilot_cases
        )
        contradiction = find_traffic_contradiction(
            certificate, tests_only_some_rows=tests_only_some_rows
        )
        if not contradiction and certificate.stages is not None:
            contradiction = certificate.stages.find_contradiction(certificate)
        if not contradiction:
            contradiction = find_score_value_contradiction(certificate)
        if not contradiction:
            has_pilot_policy = self.procedure().build_pilot_policy() is not None
            contradiction = find_planning_row_contradiction(
                certificate, can_plan_tests_on_rows=has_pilot_policy
            )
        if not contradiction:
            # A sequential procedure requests labels one by one, and may stop before all are known.
            from metacal.certification.arriving import get_procedure_for_partial_labels

            is_sequential = get_procedure_for_partial_labels(self) is not None
            contradiction = find_label_contradiction(
                certificate, allows_missing_labels=is_sequential
            )
        return contradiction

    def _has_same_terms(self, certificate: Certificate) -> bool:
        """Check whether a certificate has the limits, delta and guarantee of the promise."""
        expected_guarantee = certificate.design.weaken_guarantee(self.guarantee)
        return (
            certificate.limits == self._expected_limits(certificate)
            and certificate.delta == self.delta
            and certificate.guarantee == expected_guarantee
        )

    def _expected_limits(self, certificate: Certificate) -> Limits:
        """Return the limits that a certificate of the promise states."""
        return self.limits


class SubgroupPromise(Promise):
    """Base class of promises that can be made for each class or group."""

    @abstractmethod
    def procedure(self) -> SubgroupProcedure:
        """Return the procedure that certifies all rows, or those of a subgroup."""
