"""One look at a gate and its probabilities: accepted rows and all rows side by side, each number
with its interval.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import nan
from typing import Any

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import ndtri

from metacal import display
from metacal.errors import InputError, warn_caller
from metacal.formulas import Flags, Float
from metacal.metrics import registry
from metacal.metrics.binning import mean_statistic
from metacal.metrics.intervals import Interval
from metacal.metrics.marginal import ByClass, MarginalCheck, predicted_columns
from metacal.metrics.ranking import RANKING, Ranking
from metacal.metrics.registry import DECISION, PROBABILITIES, TOP_LABEL, Measured, Metric
from metacal.metrics.resampling import RandomState, Resampling, one_blas_thread
from metacal.metrics.toplabel import (
    CheckedTable,
    TopLabel,
    bool_column,
    checked_table,
    number_column,
    same_length,
)
from metacal.rows.memory import give_back_freed_memory

#: Metrics to compute, each with what it is computed from.
Wanted = list[tuple[Metric, Measured]]

_DILUTED = (
    "Rejected rows have probability 1/K in every class, which dilutes the ECE of all rows and"
    " lowers\ntheir accuracy: judge calibration by the accepted rows, next to the coverage."
)


@dataclass(frozen=True, eq=False)
class Evaluation:
    """What `evaluate` found: prints itself, is a table in a notebook; `to_dict` for machines,
    `to_frame` for pandas.

    Attributes
    ----------
    all_rows : mapping of metric name to Interval
        Probability metrics on every row, rejected ones as they stand in the table (uniform:
        confidence 1/K).
    accepted_rows : mapping of metric name to Interval, or None
        The same on the accepted rows alone; None without `accept` or when nothing was accepted.
    gate : mapping of metric name to Interval
        The gate's numbers; empty without `accept` and `score`.
    n_rows, n_accepted, n_classes : int
        Sizes; `n_accepted` is None without `accept`.
    level, n_bins : float, int
        What was asked for.
    marginal : MarginalCheck or None
        Whether rows predicted as each class are right as often as their confidence says, the
        accepted ones where there is a gate; None where there are no classes.
    """

    all_rows: Mapping[str, Interval]
    accepted_rows: Mapping[str, Interval] | None
    gate: Mapping[str, Interval]
    n_rows: int
    n_accepted: int | None
    n_classes: int
    level: float
    n_bins: int
    marginal: MarginalCheck | None = None

    def to_dict(self) -> dict[str, Any]:
        """JSON-safe: intervals become mappings, and what is not a finite number becomes None."""
        sizes = {
            name: getattr(self, name)
            for name in ("n_rows", "n_accepted", "n_classes", "level", "n_bins")
        }
        groups = {name: getattr(self, name) for name in ("accepted_rows", "all_rows", "gate")}
        found = {
            title: (
                None if group is None else {name: value.to_dict() for name, value in group.items()}
            )
            for title, group in groups.items()
        }
        return {
            **sizes,
            "marginal": None if self.marginal is None else self.marginal.to_dict(),
            **found,
        }

    def to_frame(self) -> Any:
        """A `pandas.DataFrame`: estimate, low, high, level, method, by (rows, metric).

        Examples
        --------
        >>> found = evaluate([[0.9, 0.1], [0.2, 0.8]], [0, 1], intervals=False)
        >>> round(found.to_frame().loc[("all rows", "brier"), "estimate"].item(), 4)
        0.05
        """
        groups = {
            "gate": self.gate,
            "accepted rows": self.accepted_rows or {},
            "all rows": self.all_rows,
        }
        found = {
            (rows, name): value for rows, group in groups.items() for name, value in group.items()
        }
        return display.frame(
            [vars(value) for value in found.values()], list(found), ["rows", "metric"]
        )

    def __str__(self) -> str:
        return self.text(
            [self.size, f"(in brackets: {100 * self.level:g}% intervals)"],
            before=None,
            caveat=self._marginal,
        )

    __repr__ = __str__

    def _repr_html_(self) -> str:
        tables = [
            display.table((head[0], *(name or "value" for name in head[1:])), rows)
            for head, *rows in self._tables()
        ]
        head, below = (
            display.notes(*str(self).splitlines()[:2]),
            display.notes(*self._marginal, *self._remarks),
        )
        return f"<div>{head}{''.join(tables)}{below}</div>"

    @property
    def size(self) -> str:
        """How many rows there are, of how many classes, and how many of them are accepted."""
        classes = f", {self.n_classes} classes" if self.n_classes else ""
        return (
            f"{self.n_rows:,}"
            f" rows{classes}{'' if self.n_accepted is None else f'; {self.n_accepted:,} accepted'}"
        )

    def text(
        self, head: list[str], before: Evaluation | None, caveat: list[str], *, few: bool = False
    ) -> str:
        """All of it for people, below these lines: the probabilities, beside them the estimates
        `before`, and the gate.

        With `few` only the metrics that people are told of, in fewer words; otherwise all.
        """
        tables = ("\n".join(display.aligned(rows)) for rows in self._tables(before, few=few))
        return "\n\n".join(["\n".join(head), next(tables), *caveat, *tables, *self._remarks])

    @property
    def _marginal(self) -> list[str]:
        return [] if self.marginal is None else [str(self.marginal)]

    @property
    def _remarks(self) -> list[str]:
        return [_DILUTED] if self.n_accepted is not None and self.n_classes else []

    def _tables(
        self, before: Evaluation | None = None, *, few: bool = False
    ) -> list[list[tuple[str, ...]]]:
        """The numbers of the probabilities, and the gate's where there are any; the first row is
        the heading.
        """
        both = [self] if before is None else [self, before]
        groups = {"all rows": [one.all_rows for one in both]}
        if self.n_accepted is not None:
            groups = {"accepted rows": [one.accepted_rows or {} for one in both], **groups}
        heads = [
            head for title, held in groups.items() for head in (title, "uncalibrated")[: len(held)]
        ]
        rows: list[tuple[str, ...]] = [
            ("probabilities" if self.n_classes else "confidence", *heads)
        ]
        for name, title in registry.titles_of(self.all_rows, few=few).items():
            found = [(own.get(name), k) for held in groups.values() for k, own in enumerate(held)]
            shown = (
                value if value is None or not k else f"{value.estimate:.4f}" for value, k in found
            )
            rows.append((title, *(str("undefined" if text is None else text) for text in shown)))
        own = [
            (title, str(self.gate[name]))
            for name, title in registry.titles_of(self.gate, few=few).items()
        ]
        return (
            [rows, [("ranking of the rows" if self.n_accepted is None else "gate", ""), *own]]
            if own
            else [rows]
        )


def harm_in_words(after: Evaluation, before: Evaluation) -> str | None:
    """What is worse with the calibrator than without by more than a standard error, on accepted
    rows where some are.

    The standard error is that of the calibrated rows' own interval; without intervals anything
    higher counts.

    Examples
    --------
    >>> labels, sure, unsure = [0, 0, 1], [[0.9, 0.1]] * 3, [[0.6, 0.4]] * 3
    >>> plain, worse = (evaluate(proba, labels, intervals=False) for proba in (unsure, sure))
    >>> harm_in_words(plain, worse) is None
    True
    >>> print(harm_in_words(worse, plain))
    Calibration does not help on these rows: log loss 0.8378 against 0.6460 without, ECE 0.2333 against 0.0667 without.
    """
    rows, now, earlier = "accepted rows", after.accepted_rows, before.accepted_rows
    if now is None or earlier is None:
        rows, now, earlier = "rows", after.all_rows, before.all_rows
    told = []
    for name, word in (("nll", "log loss"), ("ece", "ECE")):
        found, plain = now[name], earlier[name]
        error = (found.high - found.low) / (2.0 * float(ndtri(0.5 * (1.0 + found.level))))
        if found.estimate - plain.estimate > (error if np.isfinite(error) else 0.0):
            told.append(f"{word} {found.estimate:.4f} against {plain.estimate:.4f} without")
    return f"Calibration does not help on these {rows}: {', '.join(told)}." if told else None


def evaluate(
    proba: ArrayLike,
    labels: ArrayLike,
    *,
    accept: ArrayLike | None = None,
    correct: ArrayLike | None = None,
    score: ArrayLike | None = None,
    classes: Sequence[Any] | None = None,
    n_bins: int = 15,
    level: float = 0.95,
    n_resamples: int = 1000,
    random_state: RandomState = 0,
    intervals: bool = True,
) -> Evaluation:
    """Evaluate probabilities and, where given, the gate that accepted or rejected them.

    Parameters
    ----------
    proba : array of shape (n, K)
        What `MetaCal.predict_proba` gives: calibrated on accepted rows, uniform on rejected ones
        (which count 1/K).
    labels : array of shape (n,)
        True classes.
    accept : boolean array, optional
        The gate's decisions.
    correct : boolean array, optional
        Whether the *uncalibrated* model's answer is right. By default read from `proba`, which
        cannot be done for rejected rows that were made uniform: without `correct` the numbers that
        need those rows are then NaN.
    score : array, optional
        The ranking score, higher = less sure; adds AURC, excess AURC, AUGRC and AUROC.
    classes : sequence, optional
        The class of each column, where labels are not column numbers.
    n_bins, level, n_resamples, random_state
        Bins of the binned errors, level of the intervals, resamples of the bootstrap, its seed.
    intervals : bool
        False computes estimates only; the ends of every interval are then NaN.

    Examples
    --------
    >>> proba = [[0.9, 0.1], [0.2, 0.8], [0.5, 0.5], [0.6, 0.4]]
    >>> found = evaluate(proba, [0, 1, 1, 1], accept=[True, True, False, True], correct=[True, True, False, False])
    >>> print(found.gate["coverage"])
    0.7500 [0.1941, 0.9937]
    >>> round(found.accepted_rows["ece"].estimate, 4), round(found.all_rows["ece"].estimate, 4)
    (0.3, 0.225)
    """
    if intervals and n_resamples == 0:
        raise InputError(
            "n_resamples must be at least 1 with intervals; for estimates alone pass"
            " intervals=False."
        )
    checked = checked_table(proba, labels, classes=classes)
    rows = RowMetrics(checked.top_label(), row_losses(checked), checked)
    plan = Resampling(level, n_resamples if intervals else 0, random_state)
    by_class = ByClass(predicted_columns(checked), classes)
    columns = {"accept": accept, "correct": correct, "score": score}
    return evaluate_rows(rows, checked.n_classes, plan, n_bins, by_class=by_class, **columns)


def evaluate_scores(
    doubt: Float,
    correct: Flags,
    plan: Resampling,
    n_bins: int,
    *,
    accept: Flags | None,
    confidence: Float | None,
) -> Evaluation:
    """Evaluate a score by what is right: no table of probabilities, so that there are no classes
    (`n_classes` is 0).

    Parameters
    ----------
    doubt : array
        The score, higher = less sure, of rows that all have one.
    correct : boolean array
    plan, n_bins : Resampling, int
        How intervals are drawn, and bins of the binned errors.
    accept : boolean array or None
        The gate's decisions.
    confidence : array or None
        The calibrated probability of being right; without it there are no calibration errors.

    Examples
    --------
    >>> doubt, correct = np.array([0.1, 0.2, 0.3, 0.4]), np.array([True, True, False, True])
    >>> found = evaluate_scores(doubt, correct, Resampling(), 15, accept=doubt < 0.25, confidence=None)
    >>> found.gate["coverage_accuracy"].estimate, found.gate["coverage"].estimate, list(found.all_rows)
    (1.0, 0.5, ['accuracy'])
    """
    shown = registry.evaluated(TOP_LABEL)
    if confidence is None:
        confidence, shown = (
            np.zeros(len(doubt)),
            [metric for metric in shown if not metric.calibration_error],
        )
    rows = RowMetrics(TopLabel(confidence, correct.astype(np.float64)), {}, metrics=shown)
    return evaluate_rows(rows, 0, plan, n_bins, accept=accept, correct=correct, score=doubt)


@one_blas_thread()
def evaluate_rows(
    rows: RowMetrics,
    n_classes: int,
    plan: Resampling,
    n_bins: int = 15,
    *,
    accept: ArrayLike | None = None,
    correct: ArrayLike | None = None,
    score: ArrayLike | None = None,
    by_class: ByClass | None = None,
) -> Evaluation:
    """The same from columns, where a table has been reduced to them already; what needs all of it
    is undefined then.
    """
    top = rows.top
    accepted = kept = None
    if accept is not None:
        accepted = bool_column(accept, "accept")
        same_length(proba=top.confidence, accept=accepted)
        if accepted.any():
            kept = plan.measure(
                rows.subset(accepted).wanted(n_bins), int(accepted.sum()), _errors(top, accepted)
            )
            give_back_freed_memory(len(top) * n_classes)
    # The gate's numbers come from the same resamples as those of all rows: both are drawn once.
    gate = gate_wanted(top, accepted, correct, score)
    whole = plan.measure([*rows.wanted(n_bins), *gate], len(top), _errors(top, accepted))
    shares = {metric.name: whole.pop(metric.name) for metric, _ in gate}
    return Evaluation(
        all_rows=whole,
        accepted_rows=kept,
        gate=shares if correct is not None else _without_hidden(shares, top, accepted, plan),
        n_rows=len(top),
        n_accepted=None if accepted is None else int(accepted.sum()),
        n_classes=n_classes,
        level=plan.level,
        n_bins=n_bins,
        marginal=None if by_class is None else by_class.checked(top, accepted),
    )


@dataclass(frozen=True, eq=False)
class RowMetrics:
    """All that the probability metrics need, one entry per row, so that a subset costs no second
    reduction.

    Attributes
    ----------
    top : TopLabel
    losses : mapping of metric name to column
        One number per row for each metric that is a mean over rows.
    checked : CheckedTable or None
        The table; without it the metrics that need all of it at once have no interval.
    sums : mapping of metric name to what its `sums` makes
        From which such a metric comes without the table; without either it is undefined.
    accepted : bool
        Whether these are the accepted rows alone.
    metrics : sequence of Metric
        What to show of the probabilities.
    """

    top: TopLabel
    losses: Mapping[str, Float]
    checked: CheckedTable | None = None
    sums: Mapping[str, Any] = field(default_factory=dict)
    accepted: bool = False
    metrics: Sequence[Metric] = field(
        default_factory=lambda: registry.evaluated(PROBABILITIES, TOP_LABEL)
    )

    def subset(self, keep: Flags) -> RowMetrics:
        """The accepted rows; the table is not copied."""
        top = TopLabel(self.top.confidence[keep], self.top.correct[keep])
        losses = {name: column[keep] for name, column in self.losses.items()}
        checked = None if self.checked is None else self.checked.subset(keep)
        return replace(self, top=top, losses=losses, checked=checked, accepted=True)

    def wanted(self, n_bins: int) -> Wanted:
        """Return what each metric is computed from, in the order of the registry."""
        return [(metric, self._measured(metric, n_bins)) for metric in self.metrics]

    def _measured(self, metric: Metric, n_bins: int) -> Measured:
        if metric.losses is not None:
            return mean_statistic(self.losses[metric.name])
        source = self.top if metric.input is TOP_LABEL else self.checked
        if source is not None:
            return metric.measured(source, **({"n_bins": n_bins} if metric.binned else {}))
        return (
            float(self.sums[metric.name].value(self.accepted)) if metric.name in self.sums else nan
        )


def row_losses(checked: CheckedTable) -> dict[str, Float]:
    """One column for each evaluated metric that is a mean over rows of something a row has by
    itself.
    """
    return {
        one.name: one.losses(checked)
        for one in registry.evaluated(PROBABILITIES)
        if one.losses is not None
    }


def gate_wanted(
    top: TopLabel, accept: Flags | None, correct: ArrayLike | None, score: ArrayLike | None
) -> Wanted:
    """The gate's shares where `accept` is given, and the quality of the ranking where `score`
    is.
    """
    right = top.correct == 1.0 if correct is None else bool_column(correct, "correct")
    same_length(proba=top.confidence, correct=right)
    found: Wanted = []
    if accept is not None:
        counted = (
            (metric, metric.counts and metric.counts(accept, right))
            for metric in registry.evaluated(DECISION)
        )
        found += [(metric, counts) for metric, counts in counted if counts is not None]
    if score is not None:
        ranks = number_column(score, "score")
        same_length(proba=top.confidence, score=ranks)
        ranking = Ranking(ranks, right)
        found += [(metric, metric.measured(ranking)) for metric in registry.evaluated(RANKING)]
    return found


def _errors(top: TopLabel, accept: Flags | None) -> float:
    """How many rows are wrong, of those that are accepted where a gate makes the others uniform."""
    return float((top.correct[slice(None) if accept is None else accept] < 1.0).sum())


def _without_hidden(
    found: dict[str, Interval], top: TopLabel, accept: Flags | None, plan: Resampling
) -> dict[str, Interval]:
    """Without what needs the model's own answer on rejected rows, where a tie at the top hides it.

    On an accepted row a tie is simply not a right answer.
    """
    if accept is None or not np.any((top.correct < 1) & (top.correct > 0) & ~accept):
        return found
    warn_caller(
        "rejected rows are uniform, so the model's own answers on them cannot be read from proba;"
        " numbers that need them are NaN. Pass correct=(uncalibrated_logits.argmax(axis=1) =="
        " labels)."
    )
    return {
        name: plan.bare() if registry.METRICS[name].needs_rejected else value
        for name, value in found.items()
    }
