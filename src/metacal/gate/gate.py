"""Gate: a fitted value that accepts or rejects predictions and calibrates their probabilities.

A gate consists of one or more *stages*. A stage has a *source*, which computes uncertainty scores
and calibrated probabilities, and the thresholds of these scores. A gate with several stages is a
*cascade*: the first stage that accepts a row answers it. Rows that no stage accepts go to review.
One certificate covers all stages.

A gate is frozen. Estimators, files, exports and the command line share the same object.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from html import escape
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from metacal.certificates.certificate import Certificate
from metacal.certificates.fingerprint import RowSketch, find_overlap
from metacal.certificates.overlap_with_fit import OverlapWithFit
from metacal.certification.row_losses import Losses
from metacal.errors import CascadeError, CombinationError, GroupsError
from metacal.formulas import Codes, Flags, Float
from metacal.gate.decision import Decision, DecisionOptions, Rejected
from metacal.gate.file_layout import FileLayout
from metacal.gate.logits_source import LogitsSource
from metacal.gate.paper_map import compute_probabilities_uniform_if_rejected
from metacal.gate.score_source import ScoreSource
from metacal.gate.stages import Source, Stage, decide_later_stages
from metacal.gate.thresholds import (
    SingleThreshold,
    SubgroupThresholds,
    Thresholds,
    encode_groups_if_needed,
    get_subgroup_names,
)
from metacal.gate.verbs import GateMethods
from metacal.promises.promise import Promise
from metacal.promises.sequential.profile import Profile
from metacal.rows import Rows
from metacal.rows.arrays import check_choice
from metacal.rows.labels import replace_rejected_labels

#: Name of each kind of gate, in files and reports.
GateKind = Literal["logits", "scores", "cascade"]


@dataclass(frozen=True)
class Gate(GateMethods):
    """Stages that accept or reject rows, with the certificate of their promise.

    Attributes
    ----------
    stages : tuple of Stage
        A single stage, or the stages of a cascade in the order in which they decide. A threshold of
        +inf accepts every row that has a score. A row with invalid logits has no score and is
        rejected.
    certificate : Certificate or None
        Certificate of the promise. None for a calibrator, which promises nothing.
    promise : Promise or None
        Promise that the gate was fitted for.
    reject_label : label
        Label of rejected rows.
    data_hash : str or None
        Digest of the calibration rows, independent of their order.
    row_hash_sample : RowSketch or None
        Random sample of the hashes of the calibration rows, for detecting them in other data.
    profile : Profile or None
        Summary of the calibration rows, for monitors.

    Examples
    --------
    >>> from metacal.maps.temperature import TemperatureMap
    >>> source = LogitsSource(TemperatureMap(1.0), classes=np.array(["cat", "dog"]))
    >>> gate = Gate.from_source(source, 0.5, reject_label="?")
    >>> decision = gate.decide(np.array([[5.0, 0.0], [0.1, 0.0]]))
    >>> decision.label.tolist(), decision.answer.tolist(), decision.confidence.round(3).tolist()
    (['cat', '?'], ['cat', 'cat'], [0.993, 0.525])
    >>> gate(np.array([[5.0, 0.0], [0.1, 0.0]])).round(3)
    array([[0.993, 0.007], [0.525, 0.475]])
    """

    stages: tuple[Stage, ...]
    certificate: Certificate | None = None
    promise: Promise | None = field(default=None, compare=False)
    reject_label: Any = -1
    data_hash: str | None = None
    row_hash_sample: RowSketch | None = None
    profile: Profile | None = None

    def __post_init__(self) -> None:
        sources = [stage.source for stage in self.stages]
        class_lists = [source.classes for source in sources if isinstance(source, LogitsSource)]
        if not class_lists:
            return
        every_stage_has_classes = len(class_lists) == self.n_stages
        first_classes, *other_class_lists = class_lists
        classes_are_equal = all(
            np.array_equal(first_classes, other_classes) for other_classes in other_class_lists
        )
        if not every_stage_has_classes or not classes_are_equal:
            raise CascadeError(
                "The models of a cascade must have the same classes in the same order."
            )

    @classmethod
    def from_source(
        cls,
        source: Source,
        thresholds: Thresholds | float = math.inf,
        *further_fields: Any,
        **named_fields: Any,
    ) -> Gate:
        """Create a gate with a single stage.

        Parameters
        ----------
        source : LogitsSource or ScoreSource
            Source of the stage.
        thresholds : float, SingleThreshold or SubgroupThresholds, default=inf
            Thresholds of the stage. The default accepts every row that has a score.
        *further_fields, **named_fields
            Fields of the gate after `stages`, in order or by name.
        """
        if not isinstance(thresholds, SingleThreshold | SubgroupThresholds):
            thresholds = SingleThreshold(thresholds)
        stage = Stage(source, thresholds)
        return cls((stage,), *further_fields, **named_fields)

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        stage_texts = []
        for stage in self.stages:
            threshold = stage.thresholds.threshold
            condition = f"accept if {stage.source.score_name} <= {threshold:.6g}"
            stage_texts.append(f"{stage.source}, {condition}")
        gate_text = "; ".join(stage_texts)
        if self.certificate is not None:
            gate_text += f": {self.certificate.statement}"
        return f"Gate({gate_text})"

    def _repr_html_(self) -> str:
        if self.certificate is None:
            return f"<code>{escape(repr(self))}</code>"
        return self.certificate._repr_html_()

    @property
    def is_cascade(self) -> bool:
        """Whether the gate has several stages."""
        return self.n_stages > 1

    @property
    def n_stages(self) -> int:
        """Number of stages, 1 unless the gate is a cascade."""
        return len(self.stages)

    @property
    def is_logits_gate(self) -> bool:
        """Whether the gate has a single stage that reads logits or probabilities."""
        return not self.is_cascade and isinstance(self.stages[0].source, LogitsSource)

    @property
    def is_score_gate(self) -> bool:
        """Whether the gate has a single stage that reads given scores, without classes."""
        return not self.is_cascade and isinstance(self.stages[0].source, ScoreSource)

    @property
    def has_classes(self) -> bool:
        """Whether predictions are classes. False if the gate reads given scores."""
        return isinstance(self.stages[0].source, LogitsSource)

    @property
    def kind(self) -> GateKind:
        """Kind of the gate, as files and reports name it."""
        if self.is_cascade:
            return "cascade"
        if self.has_classes:
            return "logits"
        return "scores"

    @property
    def logits_source(self) -> LogitsSource:
        """Source of the first stage. Raises InputError if the gate reads given scores."""
        source = self.stages[0].source
        if not isinstance(source, LogitsSource):
            raise CombinationError("This gate reads scores, so it has no classes.")
        return source

    @property
    def score_source(self) -> ScoreSource:
        """Source of the first stage. Raises InputError if the gate reads logits."""
        source = self.stages[0].source
        if not isinstance(source, ScoreSource):
            raise CombinationError("This gate reads logits, so it has no score column.")
        return source

    @property
    def has_human_review(self) -> bool:
        """Whether people review the rows that no stage of a cascade accepts."""
        if self.certificate is None or self.certificate.stages is None:
            return False
        return self.certificate.stages.has_human_review

    @property
    def source(self) -> Source:
        """Source of the first stage, for logits or for scores."""
        return self.stages[0].source

    @property
    def file_layout(self) -> FileLayout:
        """Column names of the calibration file that differ from the default names."""
        return self.source.file_layout or FileLayout()

    @property
    def thresholds(self) -> Thresholds:
        """Thresholds of the first stage."""
        return self.stages[0].thresholds

    @property
    def threshold(self) -> float:
        """Threshold of the first stage, -inf if each class or group has its own."""
        return self.thresholds.threshold

    @property
    def subgroup_thresholds(self) -> SubgroupThresholds | None:
        """Thresholds of classes or groups at the first stage, None without subgroups."""
        if isinstance(self.thresholds, SubgroupThresholds):
            return self.thresholds
        return None

    @property
    def classes(self) -> NDArray[Any]:
        """Labels in column order."""
        return self.source.classes

    @property
    def n_classes(self) -> int:
        """Number of classes, 0 if the gate reads given scores."""
        return self.source.n_classes

    @property
    def is_calibrator(self) -> bool:
        """Whether the gate only calibrates: it has no promise and rejects no valid row."""
        return self.certificate is None and not self.is_cascade and self.threshold == math.inf

    @property
    def is_calibrated(self) -> bool:
        """Whether the confidence was fitted to labels."""
        lacks_confidence_curve = not self.has_classes and self.score_source.curve is None
        if lacks_confidence_curve:
            return False
        if self.certificate is None or self.is_cascade:
            return True
        return self.certificate.has_labels

    @property
    def default_rejected(self) -> Rejected:
        """Default probabilities of rejected rows.

        "uniform" for the rules of the paper, and "calibrated" otherwise.
        """
        if self.certificate is not None and self.certificate.guarantee == "none":
            return "uniform"
        return "calibrated"

    def choose_rejected(self, rejected: Rejected | None) -> Rejected:
        """Check the argument `rejected`, and replace None by the default."""
        if rejected is None:
            return self.default_rejected
        check_choice("rejected", rejected, "calibrated", "uniform")
        return rejected

    @property
    def has_group_thresholds(self) -> bool:
        """Whether each group has its own threshold, so that callers must pass the groups."""
        return self.thresholds.subgroup_kind == "group"

    @property
    def condition(self) -> str:
        """Condition for accepting a row, in words."""
        if self.is_cascade:
            return "a model answers it"
        accepts_every_valid_row = self.threshold == math.inf
        if self.certificate is not None and not accepts_every_valid_row:
            return self.certificate.condition
        if self.is_score_gate:
            return "there is a score"
        return "it can be read"

    def stage(self, number: int) -> Gate:
        """Return a gate with one stage of the cascade and the cascade's certificate."""
        return replace(self, stages=(self.stages[number],))

    def with_source(self, **changes: Any) -> Gate:
        """Return a copy of the gate with changed fields of its first source."""
        first_stage, *later_stages = self.stages
        changed_source = replace(first_stage.source, **changes)
        changed_stage = replace(first_stage, source=changed_source)
        return replace(self, stages=(changed_stage, *later_stages))

    def read(self, table: Any) -> Any:
        """Convert the input of the first stage to a checked array of logits or scores."""
        return self.source.read(table)

    @property
    def reads_losses(self) -> bool:
        """Whether the truth of a row is a loss between 0 and 1."""
        return not self.has_classes and self.score_source.truth == "losses"

    @property
    def needs_agreement_flags(self) -> bool:
        """Whether the truth of a row is the agreement of each model with the last one."""
        return self.certificate is not None and self.certificate.quantity.uses_agreement_only

    def encode_groups(self, groups: Any, n_rows: int) -> Codes | None:
        """Encode the group of each row, or return None if thresholds have no groups.

        Rows of groups without a threshold have the code -1 and are always rejected.
        """
        return encode_groups_if_needed(self.thresholds, groups, n_rows)

    def get_row_subgroups(self, predicted_codes: Codes, groups: Any = None) -> NDArray[Any] | None:
        """Return the class or group of each row, or None if all have the same promise.

        The result has two columns, the group and the predicted class, if each group has a promise
        for each predicted class. `predicted_codes` are the columns of the largest logits.
        """
        return get_subgroup_names(self.thresholds, self.classes, predicted_codes, groups)

    def losses(self, true_codes: NDArray[Any], answer_codes: Codes) -> Losses | None:
        """Compute the loss of each answer. Return None if the promise is not about costs.

        Parameters
        ----------
        true_codes : ndarray of shape (n_rows,)
            Code of the true label of each row. If the gate reads losses: the grade of each row,
            which is 1 minus its loss.
        answer_codes : ndarray of int, shape (n_rows,)
            Code of the answer of each row.
        """
        # Promises about costs are imported when needed, because the import is slower than most fits.
        from metacal.promises.max_risk import CostPromise

        if not isinstance(self.promise, CostPromise):
            return None
        if self.has_classes:
            return self.promise.losses(true_codes, answer_codes)
        if not self.reads_losses:
            is_correct = true_codes == answer_codes
            return self.promise.losses_from_correctness(is_correct)
        # For a gate that reads losses, the code of a row is the grade 1 - loss.
        grade_per_row = true_codes
        losses = Losses.from_graded(1.0 - grade_per_row)
        every_loss_is_0_or_1 = bool(np.isin(grade_per_row, (0, 1)).all())
        if self.certificate is None or not every_loss_is_0_or_1:
            return losses
        # If the certificate counted errors, the only possible losses are 0 and 1.
        certificate_counts_errors = self.promise.mean_loss_follows_from_error_count(
            self.certificate
        )
        return replace(losses, is_all_or_nothing=certificate_counts_errors)

    def find_fit_rows(self, scores: Float, correct: Flags | None) -> OverlapWithFit | None:
        """Find the rows of a test set that the gate was calibrated on.

        Parameters
        ----------
        scores : ndarray of shape (n_rows,)
            Ranking score of each row at the first stage.
        correct : ndarray of bool, shape (n_rows,), or None
            Whether each prediction is correct. For a cascade: whether the first model agrees with
            the last one.

        Returns
        -------
        OverlapWithFit or None
            None if no calibration row is found, or if equal scores may be a coincidence.
        """
        if self.data_hash is None or self.row_hash_sample is None or self.certificate is None:
            return None
        hashed_scores = scores
        hashed_correct = correct
        if not self.certificate.every_row_labelled:
            # If labels were missing, `fit` hashed each row as if its prediction were incorrect.
            hashed_correct = np.zeros(len(scores), dtype=bool)
        if self.is_score_gate:
            # For a gate on scores, `fit` did not hash rows without a score.
            has_score = ~np.isnan(scores)
            hashed_scores = scores[has_score]
            if hashed_correct is not None:
                hashed_correct = hashed_correct[has_score]
        return find_overlap(self.data_hash, self.row_hash_sample, hashed_scores, hashed_correct)

    def uncertainty_scores(self, table: Any) -> Float:
        """Compute the score of each row at the first stage. Higher is less certain."""
        if self.thresholds.group_decision_offsets:
            raise GroupsError(
                "uncertainty_scores does not support a gate with groups, because such a gate"
                " ranks the rows of each group separately. Use decide(..., groups=...).score"
                " instead."
            )
        return self.source.score_table(table)

    def accepts(self, table: Any, groups: Any = None) -> Flags:
        """Return a boolean mask of the rows that the first stage accepts.

        Parameters
        ----------
        table : array-like or Rows
            Logits, probabilities or scores of the first stage.
        groups : array-like of shape (n_rows,) or None, default=None
            Group of each row, if each group has its own threshold.
        """
        return self.source.accept_table(table, self.thresholds, groups)

    def decide(
        self,
        *tables: Any,
        rejected: Rejected | None = None,
        probabilities: bool = True,
        groups: Any = None,
    ) -> Decision:
        """Decide on each row, and compute its answer, confidence and probabilities.

        Parameters
        ----------
        *tables : array-like or Rows
            Logits, probabilities or scores. For a cascade: one table for each stage, with all rows,
            or in order only those that earlier stages reject. It may be None or left out if they
            reject none.
        rejected : "calibrated", "uniform" or None, default=None
            Probabilities of rejected rows: calibrated, or 1/K for each of K classes as in the
            Meta-Cal paper. None is `default_rejected`. Answer and confidence do not depend on it.
        probabilities : bool, default=True
            Whether to compute probabilities and confidence.
        groups : array-like of shape (n_rows,) or None, default=None
            Group of each row, if each group has its own threshold.
        """
        options = DecisionOptions(
            thresholds=self.thresholds,
            rejected=self.choose_rejected(rejected),
            with_probabilities=probabilities,
            is_calibrator=self.is_calibrator,
        )
        first_table = tables[0]
        later_tables = tables[1:]
        decision = self.source.decide_table(first_table, options, groups)
        if self.is_cascade:
            decision = decide_later_stages(self.stages, decision, later_tables, options)
        answers = decision.answer
        if answers is None:
            # A gate without classes returns no labels, so no label is replaced.
            return decision
        row_labels = answers
        if not self.is_calibrator:
            row_labels = replace_rejected_labels(self.reject_label, decision.accept, answers)
        return replace(decision, label=row_labels)

    def __call__(
        self,
        logits: NDArray[Any],
        *,
        rows: Rows | None = None,
        out: NDArray[Any] | None = None,
        groups: Any = None,
        rejected: Rejected | None = None,
    ) -> NDArray[Any]:
        """Compute calibrated probabilities.

        Parameters
        ----------
        logits : ndarray or tensor of shape (n_rows, n_classes)
            Checked logits. The result for a tensor on a GPU is a tensor on the same GPU.
        rows : Rows or None, default=None
            The same logits as `Rows`, if you already have them.
        out : ndarray or None, default=None
            Output array.
        groups : array-like of shape (n_rows,) or None, default=None
            Group of each row, if each group has its own threshold. Calibrated probabilities do not
            depend on it.
        rejected : "calibrated", "uniform" or None, default=None
            Probabilities of rejected rows, as in `decide`.
        """
        source = self.logits_source
        if rows is None:
            rows = Rows(logits)
        calibrates_rejected_rows = self.choose_rejected(rejected) == "calibrated"
        group_codes = None
        if groups is not None or not calibrates_rejected_rows:
            # `encode_groups` also raises InputError for groups that are missing or wrong.
            group_codes = self.encode_groups(groups, len(rows))
        if calibrates_rejected_rows:
            return source.map(logits, rows=rows, out=out)
        return compute_probabilities_uniform_if_rejected(
            source, self.thresholds, rows, group_codes=group_codes, out=out
        )
