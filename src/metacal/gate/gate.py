"""Gate: stages, each a source and what its scores are compared with, and one certificate over all
of them.

It is a frozen value, which is fitted, saved, exported and applied: estimators, files, exports and
the command line all hold this one, and none rebuilds it. One stage is the usual gate on logits or
on a score that is given; several are a cascade, whose first stage that accepts a row answers it.
What no stage accepts is left to people.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from functools import partial
from html import escape
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from metacal import kernels
from metacal.certificates.certificate import Certificate
from metacal.certificates.fingerprint import FitRows, RowSketch, find_fit_rows
from metacal.certification.row_losses import Losses
from metacal.errors import InputError, spelled, warn_caller
from metacal.formulas import Codes, Flags, Float
from metacal.gate.decision import (
    Decision,
    DecisionOptions,
    LaterStageDecision,
    Rejected,
    merge_stage_decisions,
)
from metacal.gate.logits_source import LogitsSource
from metacal.gate.score_source import ScoreSource
from metacal.gate.thresholds import (
    SingleThreshold,
    SubgroupThresholds,
    Thresholds,
    check_groups,
    get_certified_thresholds,
)
from metacal.gate.verbs import GateMethods
from metacal.promises.max_risk import CostPromise
from metacal.promises.promise import Promise
from metacal.promises.sequential.profile import Profile
from metacal.rows import Rows
from metacal.rows.arrays import check_choice
from metacal.rows.labels import replace_rejected_labels
from metacal.rows.validate import get_probability_buffer

#: What a stage ranks rows by. Both read what a caller gives, turn it into doubts (higher = less
#: sure) and calibrated confidence, and say which code the true answer has: a row is right where its
#: answer has the code of the truth.
Source = LogitsSource | ScoreSource
#: Kind of a gate, as files and reports name it.
GateKind = Literal["logits", "scores", "cascade"]


@dataclass(frozen=True)
class Stage:
    """A source, and what its scores are compared with: a row is answered iff its doubt is at most
    its threshold.
    """

    source: Source
    policy: Thresholds = field(default_factory=SingleThreshold)
    name: str = ""


@dataclass(frozen=True)
class Gate(GateMethods):
    """Accept iff the score of a stage is at most its threshold; calibrated probabilities by the map
    of its source.

    Attributes
    ----------
    stages : tuple of Stage
        One, or those of a cascade in the order in which they are asked. A threshold of +inf accepts
        every row that has a score; a row that is not a row of logits, or without a score, has none
        and is never accepted.
    certificate : Certificate or None
        What is promised; None for a calibrator that promises nothing.
    promise : Promise or None
        What was asked for.
    reject_label : label
        What stands in place of the answer where a row is rejected.
    data_hash : str or None
        Digest of the calibration rows, in any order.
    sketch : RowSketch or None
        Random sample of the hashes of the calibration rows; it reveals that some of them occur
        again.
    profile : Profile or None
        What is kept of the calibration rows, for monitors.

    Examples
    --------
    >>> from metacal.maps.temperature import TemperatureMap
    >>> source = LogitsSource(TemperatureMap(1.0), classes=np.array(["cat", "dog"]))
    >>> gate = Gate.of(source, 0.5, reject_label="?")
    >>> decision = gate.decide(np.array([[5.0, 0.0], [0.1, 0.0]]))
    >>> decision.label.tolist(), decision.answer.tolist(), decision.confidence.round(3).tolist()
    (['cat', '?'], ['cat', 'cat'], [0.993, 0.525])
    >>> gate(np.array([[5.0, 0.0], [0.1, 0.0]])).round(3)
    array([[0.993, 0.007], [0.5  , 0.5  ]])
    """

    stages: tuple[Stage, ...]
    certificate: Certificate | None = None
    promise: Promise | None = field(default=None, compare=False)
    reject_label: Any = -1
    data_hash: str | None = None
    sketch: RowSketch | None = None
    profile: Profile | None = None

    def __post_init__(self) -> None:
        own = [
            stage.source.classes for stage in self.stages if isinstance(stage.source, LogitsSource)
        ]
        if own and (
            len(own) != len(self.stages) or not all(np.array_equal(own[0], other) for other in own)
        ):
            raise InputError("the models of a cascade need the same classes, in the same order.")

    @classmethod
    def of(
        cls, source: Source, policy: Thresholds | float = math.inf, *further: Any, **known: Any
    ) -> Gate:
        """A gate of one stage, by a threshold or by those of classes or groups; without either it
        accepts all.

        Further fields follow in their order, the certificate first.
        """
        return cls(
            (
                Stage(
                    source,
                    policy
                    if isinstance(policy, SingleThreshold | SubgroupThresholds)
                    else SingleThreshold(policy),
                ),
            ),
            *further,
            **known,
        )

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        each = (
            f"{one.source}, accept if {one.source.score_name} <= {one.policy.threshold:.6g}"
            for one in self.stages
        )
        return f"Gate({'; '.join(each)}{'' if self.certificate is None else f': {self.certificate.statement}'})"

    def _repr_html_(self) -> str:
        return (
            f"<code>{escape(repr(self))}</code>"
            if self.certificate is None
            else self.certificate._repr_html_()
        )

    # ── what it is ────────────────────────────────────────────────────────────────────────────────

    @property
    def is_cascade(self) -> bool:
        """Whether several models are asked in turn."""
        return len(self.stages) > 1

    @property
    def is_logits_gate(self) -> bool:
        """Whether one model is asked, which returns logits or probabilities of classes."""
        return not self.is_cascade and isinstance(self.stages[0].source, LogitsSource)

    @property
    def is_score_gate(self) -> bool:
        """Whether one score is given for each row, without classes."""
        return not self.is_cascade and isinstance(self.stages[0].source, ScoreSource)

    @property
    def has_classes(self) -> bool:
        """Whether predictions are classes. False if scores are given."""
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
        """Source of the first stage, if its predictions are classes.

        Raises
        ------
        InputError
            If the gate reads given scores.
        """
        source = self.stages[0].source
        if not isinstance(source, LogitsSource):
            raise InputError("this gate reads scores, and has no classes.")
        return source

    @property
    def score_source(self) -> ScoreSource:
        """Source of the first stage, if scores are given.

        Raises
        ------
        InputError
            If the gate reads logits or probabilities.
        """
        source = self.stages[0].source
        if not isinstance(source, ScoreSource):
            raise InputError("this gate reads logits, and no given scores.")
        return source

    @property
    def people(self) -> bool:
        """Whether people answer what no stage of a cascade does."""
        stages = None if self.certificate is None else self.certificate.stages
        return stages is not None and stages.people

    @property
    def source(self) -> Any:
        """The source of the first stage."""
        return self.stages[0].source

    @property
    def policy(self) -> Thresholds:
        """What the scores of the first stage are compared with."""
        return self.stages[0].policy

    @property
    def threshold(self) -> float:
        """Of the first stage; -inf where each class or group has its own."""
        return self.policy.threshold

    @property
    def thresholds(self) -> SubgroupThresholds | None:
        """Of the first stage: that of each class or group, where each has its own."""
        return self.policy if isinstance(self.policy, SubgroupThresholds) else None

    @property
    def classes(self) -> NDArray[Any]:
        """The labels in column order."""
        return self.source.classes

    @property
    def n_classes(self) -> int:
        """K; 0 where there are no classes."""
        return int(self.source.n_classes)

    @property
    def is_calibrator(self) -> bool:
        """Whether it is a map alone, which promises nothing and has no threshold to reject by."""
        return self.certificate is None and not self.is_cascade and self.threshold == math.inf

    @property
    def is_calibrated(self) -> bool:
        """Whether its confidence was fitted to labels."""
        learned = self.certificate is None or self.is_cascade or self.certificate.labelled
        return learned and (self.has_classes or self.score_source.curve is not None)

    @property
    def by_group(self) -> bool:
        """Whether the threshold depends on a group that has to come with every row."""
        return self.policy.by == "group"

    @property
    def condition(self) -> str:
        """What an accepted row fulfils, in words."""
        if self.is_cascade:
            return "a model answers it"
        if self.certificate is None or self.threshold == math.inf:
            return "there is a score" if self.is_score_gate else "it can be read"
        return self.certificate.condition

    def stage(self, number: int) -> Gate:
        """One stage of a cascade as a gate of its own, with the certificate of all."""
        return replace(self, stages=(self.stages[number],))

    def with_source(self, **changes: Any) -> Gate:
        """The same with other fields of its source."""
        own = self.stages[0]
        return replace(
            self, stages=(replace(own, source=replace(own.source, **changes)), *self.stages[1:])
        )

    def with_classes(self, classes: NDArray[Any], reject_label: Any) -> Gate:
        """The same gate where columns have been called by their numbers: other names, in the same
        order.
        """
        own, certificate = (
            self.with_source(classes=classes, classes_given=True).stages,
            self.certificate,
        )
        if certificate is not None:
            certificate = replace(
                certificate, parts=certificate.parts and certificate.parts.renamed(classes.tolist())
            )
            own = (replace(own[0], policy=get_certified_thresholds(certificate, classes)), *own[1:])
        return replace(self, stages=own, reject_label=reject_label, certificate=certificate)

    # ── what it reads ─────────────────────────────────────────────────────────────────────────────

    def read(self, given: Any) -> Any:
        """What a caller gives the first stage, checked: a table as logits, or scores; never guessed
        at.
        """
        return self.source.read(given)

    @property
    def reads_losses(self) -> bool:
        """Whether the truth of a row is its loss, a number between 0 and 1."""
        return getattr(self.source, "truth", "") == "losses"

    @property
    def reads_agreement(self) -> bool:
        """Whether the truth of a row is whether each model of a cascade gives the last model's
        answer.
        """
        return self.certificate is not None and self.certificate.quantity.of_agreement

    def group_codes(self, groups: Any, n_rows: int) -> Codes | None:
        """The number of each row's group among those of the gate; None where the gate asks for
        none.

        Groups that the gate has not been fitted on have -1: their rows are always rejected.
        """
        if not isinstance(self.policy, SubgroupThresholds) or self.policy.by != "group":
            if groups is not None:
                raise InputError(
                    "this gate has no threshold by group; leave out groups, or fit it with"
                    " PerGroup."
                )
            return None
        if groups is None:
            few = ", ".join(map(repr, self.policy.names[:5]))
            raise InputError(
                "this gate has a threshold for each group"
                f" ({few}{', ...' if len(self.policy.names) > 5 else ''}); say which group every"
                f" row belongs to with {spelled('groups=...', '--group-key NAME')}."
            )
        codes = self.policy.encode_groups(groups)
        if len(codes) != n_rows:
            raise InputError(
                f"there are {n_rows} rows but {len(codes)} groups; each row needs one."
            )
        if (codes < 0).any():
            unknown = check_groups(groups)[codes < 0][0]
            warn_caller(
                f"rows of groups that this gate was not fitted on ({unknown!s}, for one) are"
                " rejected."
            )
        return codes

    def part_names(self, top: Codes, groups: Any = None) -> NDArray[Any] | None:
        """The predicted class or the group of each row, where each has its own promise; `top` are
        the largest logits'.

        What `judge`, `verify_decisions` and monitors ask for. Where groups have two sides there are
        two columns, the group of each row and what it is called.
        """
        if not self.by_group:
            return None if self.policy.by is None else self.classes[top]
        names = check_groups(groups)
        return (
            np.column_stack([names.astype(str), self.classes.astype(str)[top]])
            if self.policy.decision_offsets
            else names
        )

    def losses(self, codes: Codes, answers: Codes) -> Losses | None:
        """What each answer costs, by the codes of truth and answer; None where no cost is
        promised.
        """
        if not isinstance(self.promise, CostPromise):
            return None
        if self.has_classes:
            return self.promise.losses(codes, answers)
        # Of scores it is known only which rows are right, or how far they are.
        if not self.reads_losses:
            return self.promise.losses_of(codes == answers)
        # Whole numbers where it was fitted on such, as its rule tells.
        whole = self.certificate is not None and self.promise.is_counted(self.certificate)
        return Losses.graded(
            1 - codes.astype(np.intp) if whole and np.isin(codes, (0, 1)).all() else 1.0 - codes
        )

    def find_fit_rows(self, scores: Float, correct: Flags | None) -> FitRows | None:
        """Find rows that the gate was fitted on among rows that are to judge it.

        Parameters
        ----------
        scores : ndarray of shape (n_rows,)
            Ranking score of each row at the first stage.
        correct : ndarray of bool, shape (n_rows,), or None
            Whether each prediction is correct. For a cascade: whether the first model agrees with
            the last one.

        Returns
        -------
        FitRows or None
            None if no row is known, or if equal scores may be a coincidence
            (`certificates.fingerprint`).
        """
        if self.data_hash is None or self.sketch is None or self.certificate is None:
            return None
        if not self.certificate.every_row_labelled:
            correct = np.zeros(len(scores), dtype=bool)
        if self.is_score_gate:
            has_score = ~np.isnan(scores)
            scores = scores[has_score]
            correct = None if correct is None else correct[has_score]
        return find_fit_rows(self.data_hash, self.sketch, scores, correct)

    # ── what it says ──────────────────────────────────────────────────────────────────────────────

    def uncertainty_scores(self, given: Any) -> Float:
        """The ranking score of each row at the first stage: higher is less sure."""
        if self.policy.decision_offsets:
            raise InputError(
                "rows of each group are ranked from where its decision changes; decide(...,"
                " groups=...).score has it."
            )
        return self.source.uncertainty_scores(self.source.to_rows(given))

    def accepts(self, given: Any, groups: Any = None) -> Flags:
        """Whether the first stage accepts each row; `groups` has the group of each, where the gate
        goes by them.
        """
        rows = self.source.to_rows(given)
        return self.source.accepts(rows, self.policy, self.group_codes(groups, len(rows)))

    def decide(
        self,
        *given: Any,
        rejected: Rejected = "calibrated",
        probabilities: bool = True,
        groups: Any = None,
    ) -> Decision:
        """Answer, confidence, decision and probabilities, scoring and mapping every row once.

        `given` is what the source reads, or `Rows` of checked logits; of a cascade one for each
        stage, of all rows or only of those that the stages before leave, in their order; None where
        they leave none. `rejected="uniform"` gives rejected rows 1/K in every class, the paper's
        map; their answer and confidence stay. Without `probabilities` there is no confidence
        either, and a gate does not compute its map. `groups` has the group of each row, where the
        gate has a threshold for each.
        """
        check_choice("rejected", rejected, "calibrated", "uniform")
        rows = self.source.to_rows(given[0])
        asked = DecisionOptions(
            self.policy,
            self.group_codes(groups, len(rows)),
            rejected,
            probabilities,
            self.is_calibrator,
        )
        first: Decision = self.source.decide(rows, asked)
        if self.is_cascade:
            first = self._decide_on(first, given[1:], asked)
        if first.answer is None:
            return first
        if self.is_calibrator:
            return replace(first, label=first.answer)
        return replace(
            first, label=replace_rejected_labels(self.reject_label, first.accept, first.answer)
        )

    def _decide_on(
        self, first: Decision, given: tuple[Any, ...], asked: DecisionOptions
    ) -> Decision:
        """The later stages of a cascade, each on the rows that those before it leave."""
        answers: list[LaterStageDecision] = []
        n, rest = len(first), np.flatnonzero(~first.accept)
        for number, stage in enumerate(self.stages[1:]):
            if not len(rest):
                break
            rows = self._rest(stage, given[number] if number < len(given) else None, rest, n)
            decision = stage.source.decide(rows, asked._replace(thresholds=stage.policy))
            answers.append(LaterStageDecision(rest, decision))
            rest = rest[~decision.accept]
        return merge_stage_decisions(first, answers, tuple(stage.name for stage in self.stages))

    @staticmethod
    def _rest(stage: Stage, given: Any, rest: Codes, n: int) -> Any:
        """What is given to a later stage, of the rows that are left."""
        if given is None:
            raise InputError(
                f"{len(rest):,} of {n:,} rows need the {stage.name} model: give its logits for them"
                " (needs_large says which)."
            )
        rows = stage.source.to_rows(given)
        if len(rows) == len(rest):
            return rows
        if len(rows) != n:
            raise InputError(
                f"the {stage.name} model's table has {len(rows):,} rows; give all {n:,}, or the"
                f" {len(rest):,} that needs_large names, in their order."
            )
        if not isinstance(rows, Rows):
            return rows[rest]
        keep = np.zeros(n, dtype=bool)
        keep[rest] = True
        # On a device as a table of their own, since maps there write whole tables.
        return Rows(rows.table[rest]) if rows.on_device else rows.where(keep)

    def __call__(
        self,
        logits: NDArray[Any],
        *,
        rows: Rows | None = None,
        out: NDArray[Any] | None = None,
        groups: Any = None,
    ) -> NDArray[Any]:
        """The paper's map: calibrated probabilities, 1/K where rejected.

        A tensor on a GPU gives a tensor there; a base map that works on arrays only gets it as one.
        """
        source: LogitsSource = self.source
        rows = rows if rows is not None else Rows(logits)
        if not rows.on_device:
            numbers = self.group_codes(groups, len(rows))
            more = () if numbers is None else (numbers,)
            room = get_probability_buffer(logits, out)
            return rows.fill(
                partial(source.write_block, self.policy), room, *more, whole=source.whole_blocks
            )
        accept, probabilities = self.accepts(rows, groups), source.map(logits, rows=rows, out=out)
        if not accept.all():
            kernels.device_kernels().fill_rows(probabilities, ~accept, 1.0 / logits.shape[1])
        return probabilities


def gate_in(
    fitted: Any, needs: str = "this needs a fitted gate, or an estimator that holds one"
) -> Gate:
    """The gate inside of what was fitted; InputError, which says what it `needs` and what came,
    where there is none.
    """
    if isinstance(fitted, Gate):
        return fitted
    if hasattr(fitted, "steps"):
        return gate_in(fitted[-1], needs)
    cls = type(fitted)
    if not (hasattr(cls, "gate_") or hasattr(cls, "map_") or hasattr(fitted, "gate_")):
        raise InputError(
            f"{needs}; got {fitted.__name__ if isinstance(fitted, type) else cls.__name__}."
        )
    try:
        return gate_in(fitted.gate_, needs)
    except AttributeError as error:  # scikit-learn's "not fitted" is a ValueError besides
        if hasattr(cls, "gate_") and not isinstance(error, ValueError):
            raise InputError(f"this {cls.__name__} has no gate: {error}") from None
        raise InputError(f"this {cls.__name__} is not fitted; call fit first.") from None
