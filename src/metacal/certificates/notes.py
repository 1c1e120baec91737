"""Notes: what a reader should know about a fit. A note is its kind and its facts; the sentence is
made from them.

Each kind is a function from facts to a sentence. `@register_note` makes of it what gives a `Note`, under
the function's name; a file holds that name and the facts, each of the type that the function says.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from hashlib import blake2b
from typing import TYPE_CHECKING, Any, Literal, ParamSpec

import numpy as np
from numpy.typing import NDArray

from metacal.certificates.number_format import ceil_to_4_decimals
from metacal.errors import option, spelled, warn_caller
from metacal.formulas import Float
from metacal.rows.plausibility import Suspected, Suspicion

if TYPE_CHECKING:
    from metacal.certification.ranking import Ranking
    from metacal.rows import Rows

Facts = ParamSpec("Facts")
#: Sentences by the kind of their note.
NOTE_TEXTS: dict[str, Callable[..., str]] = {}


@dataclass(frozen=True)
class Note:
    """One note: its kind, and its facts by name.

    >>> note = few_errors(errors=0, rows=1200)
    >>> note.kind, note.to_dict()
    ('few_errors', {'kind': 'few_errors', 'errors': 0, 'rows': 1200})
    >>> str(note)[:44]
    '0 errors in 1,200 rows: is this the training'
    """

    kind: str
    facts: tuple[tuple[str, Any], ...] = ()

    def __str__(self) -> str:
        return NOTE_TEXTS[self.kind](**dict(self.facts))

    def issue_warning(self) -> Note:
        """The same, once whoever called metacal is warned of it."""
        warn_caller(str(self))
        return self

    def to_dict(self) -> dict[str, Any]:
        """As a file has it."""
        return {"kind": self.kind, **dict(self.facts)}


def register_note(sentence: Callable[Facts, str]) -> Callable[Facts, Note]:
    """A function from facts to the note that says this sentence; facts are given by name."""
    kind = sentence.__name__
    NOTE_TEXTS[kind] = sentence

    def note(*args: Facts.args, **facts: Facts.kwargs) -> Note:
        assert not args
        return Note(kind, tuple(facts.items()))

    note.__name__, note.__doc__, note.__module__ = kind, sentence.__doc__, sentence.__module__
    return note


@register_note
def remark(*, text: str) -> str:
    """What somebody else says, in their own words."""
    return text


# ── about the promise ─────────────────────────────────────────────────────────────────────────────


@register_note
def too_few_right(*, right: int, alpha: float, best: float, needed: int) -> str:
    """No right row can be rejected."""
    return (
        f"everything is accepted: {right} correct rows are too few to reject any at a miscoverage"
        f" of {alpha:g}; rejecting starts at {ceil_to_4_decimals(best):g} with these rows, or with {needed}"
        " correct rows."
    )


@register_note
def too_few_to_review(*, rows: int, share: float, best: float, needed: int) -> str:
    """No row can be sent to review."""
    return (
        f"everything is accepted: {rows} rows are too few to send any to review at a share of at"
        f" most {share:g}; that starts at {ceil_to_4_decimals(best):g} with these rows, or with {needed}"
        " rows."
    )


@register_note
def too_few_units(*, units: int, rows: int) -> str:
    """Nothing can be rejected where whole units are bet on."""
    return (
        f"everything is accepted: {units:,} units of {rows:,} rows are too few to reject any row."
    )


@register_note
def review_is_cheapest(*, review: float) -> str:
    """Nothing is accepted."""
    return (
        f"nothing is accepted: on these rows reviewing everything, at {review:g} a row, costs"
        " least."
    )


@register_note
def one_row_of_each_unit(*, units: int, rows: int) -> str:
    """Which rows count where some belong together."""
    return f"{units:,} units of {rows:,} rows: one row of each, drawn at random, is counted."


@register_note
def whole_units_counted(*, units: int, rows: int) -> str:
    """Every row of a unit counts."""
    return (
        f"{units:,} units of {rows:,} rows: every row is counted, by bets on whole units; the"
        " scores of a tenth of the units, drawn at random, say where they begin and which"
        " thresholds they are on."
    )


@register_note
def kept_by_weight(*, kept: int, rows: int) -> str:
    """Which rows count where they have weights."""
    return (
        f"{kept:,} of {rows:,} rows are counted, kept at random in proportion to their weights: the"
        " promise is about the target that the weights describe."
    )


@register_note
def cross_fitted(*, folds: int) -> str:
    """Why a cross-fitted promise is approximate."""
    return (
        f"cross-fitted: the rows were scored by {folds} classifiers that had not seen them, not by"
        " the one in use; so the confidence is not exact. No distribution-free guarantee exists"
        " for this (Barber et al. 2021); CV+ and cross-conformal prediction (Vovk 2015) promise no"
        " more than twice the limit. Hold rows out for an exact one."
    )


@register_note
def score_chosen(*, score: str, shares: tuple[tuple[str, float], ...]) -> str:
    """Which scores shared delta."""
    told = ", ".join(f"{name} {share:g}" for name, share in shares)
    return f"{score} was chosen among scores that shared delta: {told} of it."


@register_note
def decision_learned(*, aside: int, at: float) -> str:
    """Of two classes: where the decision between them lies, and who chose it."""
    return (
        f"what is promised is about this decision: the second class where log-odds > {at:.6g},"
        f" chosen on {aside:,} rows drawn for it, which certify nothing."
    )


@register_note
def decision_disagrees(*, rows: int, differ: int) -> str:
    """Of two classes: the answers are not the more probable classes."""
    return (
        f"{differ:,} of {rows:,} accepted rows are answered by the class that is the less probable"
        " one by the calibrated probabilities: the promise is about the classifier's own decision."
        f" {option('decision', 'calibrated')} decides by them."
    )


@register_note
def weights_not_certified() -> str:
    """Sample weights are the calibrator's."""
    return "sample weights are not used by the certificate."


@register_note
def about_largest_logit() -> str:
    """The base calibrator may change the answer."""
    return (
        "the base calibrator may change the largest class; the promise is about the largest logit,"
        " which predict returns."
    )


# ── about the rows ────────────────────────────────────────────────────────────────────────────────


@register_note
def suspicion(*, looks: Suspected, lowest: float | None) -> str:
    """Rows that look like something else than logits."""
    return Suspicion(looks, lowest).remark


@register_note
def few_errors(*, errors: int, rows: int) -> str:
    """Rows that look like training data."""
    return (
        f"{errors} errors in {rows:,} rows: is this the training data? Promises hold only for rows"
        " from the same source as the calibration rows."
    )


#: Whose scores tie: those of logits, those of a sample of such rows, or scores that came from
#: elsewhere.
Tied = Literal["logits", "sampled logits", "given scores"]


@register_note
def tied_scores(*, tied: int, rows: int, of: Tied) -> str:
    """Scores that tie."""
    sampled = "sampled " if of == "sampled logits" else ""
    remedy = (
        "A finer score breaks them."
        if of == "given scores"
        else "Logits in higher precision break them."
    )
    return (
        f"{tied:,} of {rows:,} {sampled}rows share their score with other rows: ties are accepted"
        f" or rejected together, which costs coverage. {remedy}"
    )


@register_note
def repeated_rows(*, repeated: int, rows: int) -> str:
    """Rows that repeat an earlier one."""
    return (
        f"{repeated:,} of {rows:,} rows repeat the logits of an earlier row: if these are copies,"
        " and not different inputs, the rows are not independent and the stated confidence does"
        " not hold. Keep one row of each, or say which rows belong together with"
        f" {spelled('fit(..., units=...)', '--unit-key NAME')}."
    )


@register_note
def rows_without_score(*, missing: int, rows: int) -> str:
    """Rows that were left out."""
    return (
        f"{missing:,} of {rows:,} rows have no score: they were left out, such rows are always"
        " rejected, and the promise is about rows that have one."
    )


@register_note
def pool_without_score(*, missing: int, rows: int) -> str:
    """Rows of a pool that are never asked about."""
    return f"{missing:,} of {rows:,} rows of the pool have no score: such rows are always rejected."


@register_note
def declared_extension(*, rows: int, extended: int, shares: tuple[float, float]) -> str:
    """How delta is shared by the rows that were drawn first and those of the extension."""
    return (
        f"{rows:,} rows at {shares[0]:g} of delta, and by a declared extension {extended:,} at"
        f" {shares[1]:g}."
    )


@register_note
def upside_down(*, higher_is: Literal["surer", "doubtful"], losses: bool = False) -> str:
    """A score that seems to be the other way round: its higher values are what is said here; or a
    loss that is none.
    """
    other = (
        " If the loss says how good an answer is, give 1 minus it: a loss of 1 is entirely wrong."
        if losses
        else ""
    )
    return (
        "the rows that the score calls sure are wrong more often than the others: if a higher"
        f" score is {higher_is}, say so with {option('higher_is', higher_is)}.{other}"
    )


# ── about the probabilities ───────────────────────────────────────────────────────────────────────

#: A measure with the calibrator, without it, and the standard error of the difference.
Compared = tuple[float, float, float]


@register_note
def calibration_harms(
    *, rows: int, log_loss: Compared | None, ece: Compared | None, softmax: bool
) -> str:
    """The calibrator does not help; `softmax`: it has given way."""
    measures = (("log loss", log_loss), ("ECE", ece))
    told = " and ".join(
        f"{name} {one[0]:.4f}, without {one[1]:.4f} (± {one[2]:.4f})"
        for name, one in measures
        if one
    )
    end = "; the probabilities are the softmax of the logits, not calibrated." if softmax else "."
    return f"calibration does not help: cross-fitted on {rows:,} accepted rows, {told}{end}"


@register_note
def off_by_class(*, gap: float, predicted: str | None, rows: int, right: float, said: float) -> str:
    """The marginal check fails: `gap` on average, most for the rows that are predicted so."""
    which = "of classes with few rows" if predicted is None else f"predicted {predicted}"
    return (
        f"confidence is off by predicted class, by {100 * gap:.1f} points on average beyond chance:"
        f" of {rows:,} rows {which} {100 * right:.1f}% are right where {100 * said:.1f}% is said; a"
        " calibrator with parameters for each class, VectorScaling say, may mend it."
    )


@register_note
def not_compared() -> str:
    """Fitting it anew takes too long."""
    return (
        "whether calibration helps the accepted rows was not compared: fitting this calibrator anew"
        " would take too long; compare on new rows."
    )


@register_note
def not_calibrated() -> str:
    """No labels, no calibrator."""
    return (
        "the rows had no labels: no calibrator was fitted, and probabilities are the softmax of the"
        " logits, as honest as the classifier is."
    )


@register_note
def cascade_not_calibrated() -> str:
    """Labels are known where models disagree alone."""
    return (
        "labels are missing where the models agree: the probabilities are the models' own, not"
        " calibrated."
    )


@register_note
def labels_ran_out() -> str:
    """The walk of a cascade ended for want of labels."""
    return (
        "the walk ended where labels are missing: label more of the rows on which the two models"
        " disagree, in the order of the small one's score, and fit again."
    )


# ── what is odd about calibration rows, if anything: said in a warning and in the certificate befor

#: A smaller share of repeated rows changes no confidence by much.
_REPEATED_SHARE = 0.01


def check_scores(ranking: Ranking, of: Tied = "logits", *, ties: bool = True) -> list[Note]:
    """Rows that look like training data and, unless the reason is known, scores that tie.

    >>> from metacal.certification.ranking import Ranking
    >>> check_scores(Ranking.from_scores(np.arange(100.0), np.ones(100, dtype=bool)))[0].kind
    'few_errors'
    """
    remarks = check_error_count(int(ranking.cumulative_errors[-1]), ranking.n_rows)
    return [*remarks, *(check_ties(ranking, of) if ties else [])]


def check_error_count(errors: int, n: int) -> list[Note]:
    """Rows that look like training data."""
    return [] if n < 50 or errors > 0.001 * n else [few_errors(errors=errors, rows=n)]


def check_ties(ranking: Ranking, of: Tied = "logits") -> list[Note]:
    """Scores that tie, if there are many."""
    if (
        1.5 * (ranking.n_rows - len(ranking.block_end_ranks)) <= 0.01 * ranking.n_rows
    ):  # of c > 2 rows with one score c - 1 are repeats
        return []
    counts = np.diff(ranking.block_end_ranks, prepend=0)
    tied = int(
        counts[counts > 2].sum()
    )  # among millions of rows some pairs share a grid point by chance
    return (
        []
        if tied <= 0.01 * ranking.n_rows
        else [tied_scores(tied=tied, rows=ranking.n_rows, of=of)]
    )


def check_repeated_rows(rows: Rows, values: Float, distinct: int | None = None) -> list[Note]:
    """Rows that repeat an earlier one: copies are not independent, and what is certified from them
    is not as sure.

    `distinct` scores there are, where that is known.

    >>> from metacal.rows import Rows
    >>> table = np.array([[2.0, 0.0], [1.0, 0.0], [2.0, 0.0]])
    >>> str(check_repeated_rows(Rows(table), table[:, 0])[0])[:50]
    '1 of 3 rows repeat the logits of an earlier row: i'
    """
    n, distinct = len(values), len(np.unique(values)) if distinct is None else distinct
    if rows.on_device or n - distinct <= _REPEATED_SHARE * n:
        return []
    # Bit for bit equal rows have equal scores, so only rows that share theirs are read again.
    _, place, count = np.unique(values, return_inverse=True, return_counts=True, equal_nan=False)
    marks = rows.where(count[place] > 1).collect(_row_marks)
    repeated = len(marks) - len(np.unique(marks))
    return [repeated_rows(repeated=repeated, rows=n)] if repeated > _REPEATED_SHARE * n else []


def _row_marks(block: NDArray[Any]) -> NDArray[np.int64]:
    """A number for each row that equal rows share, in any process, and others only by accident."""
    marks = b"".join(
        blake2b(row.tobytes(), digest_size=8).digest() for row in np.ascontiguousarray(block)
    )
    return np.frombuffer(marks, dtype=np.int64)
