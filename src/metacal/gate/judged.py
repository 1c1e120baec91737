"""Judged rows: what a gate decides on rows whose truth is known, and all that a promise is measured
by.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from metacal import kernels
from metacal.certificates.fingerprint import FitRows
from metacal.certification.row_losses import Losses
from metacal.errors import InputError
from metacal.formulas import Codes, Flags
from metacal.gate.decision import Decision
from metacal.gate.find_gate import find_gate
from metacal.gate.gate import Gate
from metacal.rows import Rows
from metacal.rows.labels import encode_known_labels
from metacal.rows.score_columns import read_model_flags


@dataclass(frozen=True, eq=False)
class JudgedRows:
    """Rows that a gate has decided on, beside their truth.

    Attributes
    ----------
    decision : Decision
    correct : boolean array or None
        Whether each answer is right; None without labels. If the gate reads agreement: whether it
        is the last model's.
    losses : Losses or None
        What each row costs, where a cost is promised; of a cascade 1 where a row is answered worse
        than by its last model alone, -1 where it is answered better.
    names : array or None
        The predicted class or the group of each row, where each has its own promise.
    known : boolean array
        Where a label is known: of a cascade those on which its models agree may lack one.
    fit_rows : FitRows or None
        Rows that the gate was fitted on; None if there are none.
    rows : array
        The numbers of these rows among those that were given: of scores, the ones that have one.
    """

    decision: Decision
    correct: Flags | None
    losses: Losses | None
    row_subgroups: NDArray[Any] | None
    has_label: Flags
    fit_rows: FitRows | None
    row_indices: Codes

    @property
    def accept(self) -> Flags:
        """Whether each row is accepted."""
        return self.decision.accept

    def __len__(self) -> int:
        return len(self.decision)


def find_gate_and_inputs(fitted: Any, X: Any, large: Any = None) -> tuple[Any, tuple[Any, ...]]:
    """The gate inside of what was fitted, and what each of its stages reads; where X are features,
    the logits.

    None is the classifier itself, which has no gate.
    """
    if isinstance(fitted, Gate) and fitted.is_cascade and not fitted.has_classes:
        columns = [X] if np.ndim(X[0]) == 0 else [*X]
        if not fitted.people and len(columns) < len(fitted.stages):
            columns.append(
                np.zeros(len(columns[0]))
            )  # the last model answers all of the rest, whatever its score
        return fitted, tuple(columns)
    if fitted is None or isinstance(fitted, Gate):
        given = (X,) if large is None else (X, large)
        if fitted is not None and len(given) < len(fitted.stages):
            raise InputError(
                "give the large model's table of the same rows too: large=large_logits."
            )
        if len(given) > (1 if fitted is None else len(fitted.stages)):
            raise InputError(
                "large is the table of a cascade's second model; this gate has one model."
            )
        return fitted, given
    if hasattr(fitted, "steps"):  # a pipeline whose last step decides
        return find_gate_and_inputs(fitted[-1], transform_before_last_step(fitted, X), large)
    if hasattr(fitted, "tables") and find_gate(fitted).has_classes:
        return find_gate_and_inputs(fitted.gate_, *map(Rows, fitted.tables(X, large)))
    if hasattr(fitted, "logits"):
        return find_gate_and_inputs(fitted.gate_, fitted.logits(X), large)
    return find_gate_and_inputs(find_gate(fitted), X, large)


def transform_before_last_step(pipeline: Any, X: Any) -> Any:
    """What the last step of a pipeline is given."""
    return pipeline[:-1].transform(X) if len(pipeline) > 1 else X


def accepts(fitted: Any, X: Any, **options: Any) -> Flags:
    """Whether each row is accepted: `fitted.accepts(X)`, also where a pipeline holds what was
    fitted as its last step.

    Examples
    --------
    >>> from sklearn.datasets import load_digits
    >>> from sklearn.linear_model import LogisticRegression
    >>> from sklearn.pipeline import make_pipeline
    >>> from sklearn.preprocessing import MinMaxScaler
    >>> import metacal as mc
    >>> X, y = load_digits(return_X_y=True)
    >>> inner = mc.CalibratedClassifier(LogisticRegression(), mc.MaxMiscoverage(0.1))
    >>> pipeline = make_pipeline(MinMaxScaler(), inner).fit(X, y)
    >>> mc.accepts(pipeline, X[:3])
    array([ True,  True,  True])
    """
    if hasattr(fitted, "steps"):
        return accepts(fitted[-1], transform_before_last_step(fitted, X), **options)
    return np.asarray(fitted.accepts(X, **options))


def judge_rows(
    gate: Gate,
    stage_inputs: Sequence[Any],
    truth: Any = None,
    groups: Any = None,
    *,
    probabilities: bool = False,
) -> JudgedRows:
    """Decide on rows, and compare with their truth.

    `given` is what each stage reads, of all rows. `truth` are labels or, of scores, whether each
    row is right; None where nothing is to be measured that needs them. Rows without a score, of
    which nothing is promised, are left out.

    Examples
    --------
    >>> import metacal as mc
    >>> mark = np.linspace(0, 1, 500)
    >>> gate = mc.ScoreGate(mc.MinAccuracy(0.9)).fit(mark, mark > 0.1).gate_
    >>> seen = judge_rows(gate, [[0.9, None, 0.0]], [True, True, False])
    >>> seen.accept, seen.correct, seen.row_indices
    (array([ True, False]), array([ True, False]), array([0, 2]))
    """
    if gate.is_cascade:
        return _judged_cascade(gate, stage_inputs, truth, probabilities=probabilities)
    rows = gate.source.to_rows(stage_inputs[0])
    codes = None if truth is None else gate.source.encode_truth(truth, len(rows))
    places = np.arange(len(rows))
    if isinstance(rows, np.ndarray):
        places = np.flatnonzero(~np.isnan(rows))
        if not len(places):
            raise InputError("no row has a score: there is nothing to look at.")
        rows, codes = rows[places], None if codes is None else codes[places]
        groups = None if groups is None else np.asarray(groups)[places]
    decision = gate.decide(rows, probabilities=probabilities, groups=groups)
    correct = None if codes is None else decision.top == codes
    losses = None if codes is None else gate.losses(codes, decision.top)
    return JudgedRows(
        decision=decision,
        correct=correct,
        losses=losses,
        row_subgroups=gate.get_row_subgroups(decision.top, groups),
        has_label=np.full(len(places), codes is not None),
        fit_rows=gate.find_fit_rows(decision.doubt, correct),
        row_indices=places,
    )


def _judged_cascade(
    gate: Gate, given: Sequence[Any], truth: Any, *, probabilities: bool
) -> JudgedRows:
    """Every model on every row: what the last one would have said says how much the others are
    worse.
    """
    if truth is None:
        raise InputError(
            "what a cascade promises shows on labelled rows only; give the true labels."
        )
    if not gate.has_classes:
        return _judged_scores(gate, given, truth)
    tables: list[Any] = [
        stage.source.to_rows(table) for stage, table in zip(gate.stages, given, strict=True)
    ]
    if len({len(table) for table in tables}) > 1:
        counts = " and ".join(f"{len(table):,}" for table in tables)
        raise InputError(
            f"the models of a cascade must have seen the same rows; got tables of {counts}."
        )
    decision = gate.decide(*tables, probabilities=probabilities)
    codes = encode_known_labels(truth, len(decision), gate.classes)
    answers = [table.collect(kernels.predicted) for table in tables]
    correct, known = decision.top == codes, codes >= 0
    worse = (~correct & (answers[-1] == codes)).astype(np.float64)
    losses = Losses.from_graded(worse - (correct & (answers[-1] != codes)))
    if gate.certificate is not None and not known.all():
        if not gate.certificate.quantity.is_paired_difference:
            raise InputError(
                f"{int((~known).sum()):,} rows have no label, and an accuracy needs them all."
            )
        if missing := int((~known & (decision.top != answers[-1])).sum()):
            raise InputError(
                f"{missing:,} rows on which the two models disagree have no label; label them."
            )
    models_agree = np.asarray(answers[0] == answers[-1])
    return JudgedRows(
        decision=decision,
        correct=correct,
        losses=losses,
        row_subgroups=None,
        has_label=known,
        fit_rows=gate.find_fit_rows(decision.doubt, models_agree),
        row_indices=np.arange(len(decision)),
    )


def _judged_scores(gate: Gate, given: Sequence[Any], truth: Any) -> JudgedRows:
    """A cascade of scores: which rows are answered otherwise than the last model, or people,
    would.
    """
    decision = gate.decide(*given)
    name = "agrees" if gate.reads_agreement else "correct"
    agrees, known = read_model_flags(truth, len(decision), name)
    n_flags = len(gate.stages) - gate.reads_agreement
    if agrees.shape[1] != n_flags:
        raise InputError(
            f"{name} has {agrees.shape[1]} columns; this cascade needs {n_flags}, one for each"
            " model."
        )
    if not known.all():
        raise InputError(f"row {int(np.argmin(known))} has no entry in {name}; leave it out.")
    places, by, m = np.arange(len(decision)), np.asarray(decision.by), agrees.shape[1]
    same = (by >= m) | agrees[
        places, np.minimum(by, m - 1)
    ]  # whom `agrees` lacks answers as the last one would
    losses = Losses.from_graded((~same).astype(np.float64))
    return JudgedRows(
        decision=decision,
        correct=same,
        losses=losses,
        row_subgroups=None,
        has_label=known,
        fit_rows=gate.find_fit_rows(decision.doubt, agrees[:, 0]),
        row_indices=places,
    )


def check_watchable(gate: Gate) -> None:
    """Refuse a cascade whose promise does not show on the answers that were given."""
    if (
        gate.is_cascade
        and gate.has_classes
        and gate.certificate
        and gate.certificate.quantity.is_paired_difference
    ):
        raise InputError(
            "MaxLoss over tables compares two answers to every row, and a watch sees the one that"
            " was given; verify it on labelled rows (mc.verify, metacal verify), or fit the cascade"
            " on scores."
        )


def check_measurable(gate: Gate) -> None:
    """Refuse a cascade that was fitted on agreement: its rows do not say which answers are
    correct.
    """
    if gate.reads_agreement:
        raise InputError(
            "This cascade was fitted on agreement with the large model. Its rows do not say which"
            " answers are correct, so no accuracy can be measured. Use verify (metacal verify),"
            " which tests the promise."
        )


def stack_model_outputs(gate: Gate, X: Any) -> NDArray[Any]:
    """What each model of a cascade says of all rows, as one array of rows and models."""
    if not isinstance(X, list | tuple) or (gate.n_classes and len(X) != len(gate.stages)):
        raise InputError(
            "of a cascade give what each of its models says: watch.update([small, large], y)."
        )
    given = X if gate.has_classes else find_gate_and_inputs(gate, X)[1]
    tables = [
        np.asarray(stage.source.read(one)) for stage, one in zip(gate.stages, given, strict=True)
    ]
    if len({len(one) for one in tables}) > 1:
        raise InputError(
            "give what each model says of all rows: NaN for a score where it was not asked."
        )
    return np.stack(tables, axis=1)


def split_model_outputs(gate: Gate, rows: NDArray[Any]) -> Any:
    """Rows as a watch takes them: of a cascade what each model says of all, from an array of rows
    and models.
    """
    return list(np.moveaxis(rows, 1, 0)) if gate.is_cascade and len(rows) else rows


def select_labels_of_given_answers(gate: Gate, X: NDArray[Any], y: Any) -> Any:
    """Of a cascade of scores whether the answer that was given is good, where `y` says it of each
    model; else `y`.
    """
    if y is None or not gate.is_cascade or gate.has_classes or not any(map(np.ndim, y)):
        return y
    by, good = np.asarray(gate.decide(*np.moveaxis(X, 1, 0)).by), []
    for who, label in zip(by.tolist(), y if len(y) == len(X) else zip(*y), strict=True):
        if np.ndim(
            label
            # Behind the models it speaks of stands the one, or the people, that is right by
            # definition.
        ):
            known = any(one is not None and one == one for one in label)
            label = (*label, known or None)[min(who, len(label))]
        good.append(label)
    return good
