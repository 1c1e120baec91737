"""Certifier: labels one by one, from a pool without any, until a promise is certified; then an ordinary gate.

What is asked, what is certified and why is in `metacal.promises.labelling` and `metacal.promises.evidence`; here are
the rows that people have, their answers, and the gate at the end.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, NamedTuple, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray

from metacal import kernels
from metacal.decision import Recipe
from metacal.errors import InfeasibleTargetError, InputError
from metacal.gate.fitting import check_score
from metacal.gate.gate import Gate
from metacal.gate.scored import HigherIs, ScoredGate, check_scored, doubt_name, doubt_of, plain_name
from metacal.maps.curves.confidence import fit_confidence
from metacal.maps.map import Map
from metacal.maps.methods import METHODS
from metacal.maps.temperature import TemperatureMap, fit_temperature
from metacal.promises.anytime import ANYTIME
from metacal.promises.certificate import Certificate, accepts
from metacal.promises.fingerprint import data_hash
from metacal.promises.labelling import Labelling, Round
from metacal.promises.notes import Note, not_calibrated, pool_without_score
from metacal.promises.profile import Profile, profile_of
from metacal.promises.promise import Promise
from metacal.promises.ranking import Ranking
from metacal.promises.wagers import RIGHT
from metacal.rows import Rows, validate
from metacal.rows.given import correct_column, score_column
from metacal.rows.labels import reject_label_of
from metacal.scores import Score, grid_of, name_of, score_rows

#: A calibrator learns from true labels where there are at least so many of them, with a wrong prediction among them.
_FEWEST_LABELS = 30


_NO_SCORE = "{:,} of {:,} rows of the pool have no score: such rows are always rejected."


class Asked(NamedTuple):
    """A row that was asked about: its number in the pool, with which probability, and the answer."""

    row: int
    probability: float
    right: bool


class Certifier:
    """Propose rows of an unlabelled pool to label, take the answers, stop as soon as the promise is certified.

    The promise holds with probability 1 - `delta` at whatever moment somebody stops, and is about the source of the
    pool, of which the pool is taken to be a random sample. How many labels it takes depends on the classifier.

    Parameters
    ----------
    constraint : MinCoverageAccuracy or MaxMiscoverage
        What shall be promised, with a `delta`.
    scores : array of shape (n,) or (n, K)
        The pool: a score for each row, as for `ScoreGate`, or logits, as for `MetaCal`. Rows without a score are never
        asked about.
    coverage : float, optional
        The share of rows that shall be accepted. Evidence is sought for that one; without it the first `pilot` labels
        plan how much can be had at a fair price, and prove nothing.
    batch : int
        Labels in a round; between rounds it is decided anew where to ask. Smaller is sharper.
    pilot : int
        Labels of the first round where it plans.
    random_state : int
        Seed of all draws.
    higher_is, score_name : str
        Of given scores: what a higher one says ("surer" or "doubtful"), and what it is called.
    score, input, classes
        Of logits: as for `MetaCal`.

    Examples
    --------
    >>> import metacal as mc
    >>> data = mc.datasets.load("cifar10-resnet110")
    >>> certifier = mc.Certifier(mc.MinCoverageAccuracy(0.97), data.logits, coverage=0.8)
    >>> while not certifier.finished:
    ...     rows = certifier.propose()
    ...     certifier = certifier.update(rows, labels=data.labels[rows])  # an annotator's work
    >>> print(certifier)
    certified with 350 labels, at a coverage of 80%: What is accepted is right at least 97% of the time, ...
    >>> bool(certifier.gate().accepts(mc.Rows(data.logits)).mean() > 0.78)
    True
    """

    def __init__(
        self,
        constraint: Promise,
        scores: ArrayLike,
        *,
        coverage: float | None = None,
        batch: int = 50,
        pilot: int = 100,
        random_state: int = 0,
        higher_is: HigherIs = "surer",
        score_name: str = "score",
        score: str | Score = "entropy",
        input: str = "logits",
        classes: Sequence[Any] | None = None,
    ) -> None:
        self.constraint, self.higher_is, self.score_name = constraint, higher_is, plain_name(score_name)
        self.score, self.input, self.classes = score, input, classes
        self.rows: Rows | None = None
        #: The column of the true class, by row, where that was the answer.
        self.codes: dict[int, int] = {}
        check_scored(constraint, higher_is)
        doubts = self._doubts(scores)
        self.n_pool = len(doubts)
        #: The numbers of the rows that have a score.
        self._there = np.flatnonzero(~np.isnan(doubts))
        self.labelling = Labelling(constraint, doubts[self._there], coverage, batch, pilot, random_state)

    def _doubts(self, scores: ArrayLike) -> NDArray[np.float64]:
        if np.ndim(scores) == 1:
            return doubt_of(score_column(scores), self.higher_is)
        check_score(self.score, self.input)
        self.rows = Rows(validate.logits_from(scores, self.input)).looked_over()
        self.classes_ = validate.class_list(self.classes, self.rows.n_classes)
        self.predicted = self.rows.collect(kernels.predicted)
        return score_rows(self.rows, self.score)

    # ── labels ───────────────────────────────────────────────────────────────────────────────────────────────────────

    def propose(self, n: int | None = None) -> NDArray[np.intp]:
        """The numbers of the next rows to label, in order: those of the round that wait, or the first `n` of them.

        The same rows come again until they are answered; none come once the promise is certified or the pool used up.
        """
        return self._there[self.labelling.propose(n)]

    def update(self, rows: ArrayLike, right: ArrayLike | None = None, *, labels: ArrayLike | None = None) -> Self:
        """Take answers: whether the prediction of each row is right or, for a pool of logits, its true label.

        Rows may come in any number and order; evidence counts them in the order in which they were proposed, up to the
        first that is missing.
        """
        numbers = np.atleast_1d(np.asarray(rows))
        if numbers.dtype.kind not in "iu" and numbers.size:
            raise InputError(f"rows must be the numbers that propose gives, got {numbers.dtype}.")
        numbers = numbers.astype(np.intp).reshape(-1)
        if (right is None) == (labels is None):
            raise InputError(
                "give right=... (whether each prediction is right) or labels=... (the true ones), not both."
            )
        if labels is not None:
            codes = self._codes_of(labels, len(numbers))
            answers = codes == self.predicted[numbers]
        else:
            answers = correct_column(np.atleast_1d(np.asarray(right)))
        if answers.shape != numbers.shape:
            raise InputError(f"there are {len(numbers)} rows but {len(answers)} answers; give one each.")
        places = np.searchsorted(self._there, numbers)
        known = (places < len(self._there)) & (self._there[np.minimum(places, len(self._there) - 1)] == numbers)
        if not known.all():
            raise InputError(f"row {int(numbers[~known][0])} was not asked about; answer the rows that propose gives.")
        self.labelling.answer(places, answers)
        if labels is not None:
            self.codes |= dict(zip(numbers.tolist(), codes.tolist()))
        return self

    def _codes_of(self, labels: ArrayLike, n: int) -> NDArray[np.intp]:
        if self.rows is None:
            raise InputError("a pool of scores has no predictions to compare labels with; give right=... instead.")
        return validate.label_codes(labels, n, self.classes_)

    def resume(
        self, rounds: Sequence[Round], rows: NDArray[Any], right: NDArray[np.bool_], codes: NDArray[Any]
    ) -> None:
        """Go on where a file left off; see `Labelling.resume`."""
        places = np.searchsorted(self._there, rows)
        if (self._there[np.minimum(places, len(self._there) - 1)] != rows).any():
            raise InputError("a row without a score was answered.")
        self.labelling.resume(rounds, dict(zip(places.tolist(), right.tolist())))
        self.codes = {row: code for row, code in zip(rows.tolist(), codes.tolist()) if code >= 0}

    @property
    def log(self) -> tuple[Asked, ...]:
        """Every row that was asked about and answered, in order, with the probability it had."""
        found, own = [], self.labelling
        for one in own.rounds:
            for place in one.asked[own.outcome[one.asked] >= 0]:
                chance = float(one.design.probability[own.cell[place]])
                row = int(self._there[own.rows[place]])
                found.append(Asked(row, chance, bool(own.outcome[place] == RIGHT)))
        return tuple(found)

    def ranking_of(self, rows: NDArray[np.intp]) -> NDArray[np.float64]:
        """The ranking score of rows that have one: higher is less sure."""
        return self.labelling.doubts[np.searchsorted(self._there, rows)]

    # ── where it stands ──────────────────────────────────────────────────────────────────────────────────────────────

    @property
    def n_labels(self) -> int:
        """How many answers there are."""
        return self.labelling.labels

    @property
    def certified(self) -> bool:
        """Whether the promise is certified at the coverage that was aimed at, or a better one."""
        return self.labelling.reached

    @property
    def finished(self) -> bool:
        """Whether there is nothing more to ask."""
        return self.labelling.finished

    def forecast(self) -> int | None:
        """About how many labels are still needed, by what is known of the error rates so far: an estimate, no promise.

        None while nothing is known, or where no number of labels is in sight.
        """
        found = self.labelling.forecast()
        return None if found is None else math.ceil(found)

    @property
    def coverage(self) -> float | None:
        """The share of the pool that the best certified threshold accepts; None while nothing is certified."""
        threshold = self.labelling.threshold
        return None if threshold is None else float(accepts(self.labelling.doubts, threshold).mean())

    def __str__(self) -> str:
        said = f"{self.n_labels:,} label{'s' * (self.n_labels != 1)}"
        if self.certified:
            return f"certified with {said}, at a coverage of {self.coverage:.0%}: {self.certificate.statement}"
        own, ahead = self.labelling, self.forecast()
        goal = "" if own.chain is None else f" at a coverage of {own.cells.coverage[own.aim]:.0%}"
        if self.finished:
            so_far = "nothing is" if self.coverage is None else f"a coverage of {self.coverage:.0%} is"
            return f"the pool is used up: {said} did not certify it{goal}; {so_far} certified."
        likely = (
            "how many more it takes is not known yet" if ahead is None else f"by forecast it takes about {ahead:,} more"
        )
        return f"{said}, not certified yet{goal}; {likely}."

    # ── what comes out ───────────────────────────────────────────────────────────────────────────────────────────────

    @property
    def certificate(self) -> Certificate:
        """What is certified by now; InfeasibleTargetError where nothing is."""
        own, threshold = self.labelling, self.labelling.threshold
        (quantity, target), *_ = self.constraint.limits
        if threshold is None:
            ahead = self.forecast()
            more = (
                "bring a larger pool, or ask for less"
                if ahead is None
                else f"go on: about {ahead:,} labels are missing"
            )
            raise InfeasibleTargetError(
                f"{quantity} {target:g} is not certified by {self.n_labels:,} labels; {more}.",
                target=target,
                best=None,
                rows_needed=None if ahead is None else self.n_labels + ahead,
            )
        doubts, accepted = own.doubts, accepts(own.doubts, threshold)
        errors = own.rates().errors[own.cells.numbers(doubts)]
        right, kept = float((1.0 - errors).sum()), float((1.0 - errors)[accepted].sum())
        n_accepted = int(accepted.sum())
        n_kept = min(round(kept), n_accepted)
        grid = grid_of(self.score) if self.rows is not None else None
        missing = self.n_pool - len(doubts)
        return Certificate(
            quantity=quantity,
            target=target,
            delta=self.constraint.delta,
            guarantee="certified",
            threshold=threshold if grid is None else grid.settled(threshold),
            rule=ANYTIME,
            n_rows=len(doubts),
            n_correct=max(1, n_kept + min(round(right - kept), len(doubts) - n_accepted)),
            n_accepted=n_accepted,
            n_correct_accepted=n_kept,
            highest_accepted=float(doubts[accepted].max()) if n_accepted else None,
            lowest_rejected=float(doubts[~accepted].min()) if n_accepted < len(doubts) else None,
            score=name_of(self.score) if self.rows is not None else doubt_name(self.score_name, self.higher_is),
            notes=(pool_without_score(missing=missing, rows=self.n_pool),) if missing else (),
            labels=self.n_labels,
        )

    def gate(self) -> Gate | ScoredGate:
        """The gate that is certified by now: saved, applied, exported and reported on like any other.

        For a pool of logits whose rows were answered by their true labels, its map is a temperature fitted on them;
        otherwise the softmax. For a pool of scores its confidence is a curve fitted on the answers.
        """
        certificate, own = self.certificate, self.labelling
        pool = data_hash(own.doubts, np.zeros(len(own.doubts), dtype=bool))
        if self.rows is None:
            asked = np.searchsorted(self._there, [one.row for one in self.log])
            right = np.array([one.right for one in self.log])
            return ScoredGate(
                certificate,
                certificate.threshold,
                score=self.score_name,
                higher_is=self.higher_is,
                constraint=self.constraint,
                curve=fit_confidence(own.doubts[asked], right),
                data_hash=pool,
                profile=self._profile(),
            )
        base, notes = self._base(self.rows)
        return Gate(
            base,
            self.classes_,
            score=self.score,
            threshold=certificate.threshold,
            certificate=replace(certificate, notes=(*certificate.notes, *notes)),
            constraint=self.constraint,
            data_hash=pool,
            recipe=Recipe(METHODS["temperature"].public_name),
            reject_label=reject_label_of(None, self.classes_),
            input=self.input,
            classes_given=self.classes is not None,
            profile=self._profile(),
        )

    def _profile(self) -> Profile:
        """What the scores of the pool look like, for whoever watches new rows."""
        doubts = self.labelling.doubts
        return profile_of(Ranking.of(doubts, np.zeros(len(doubts), dtype=bool)))

    def _base(self, rows: Rows) -> tuple[Map, tuple[Note, ...]]:
        """A temperature from the true labels: which rows have one depends on their scores alone, so that it is fair."""
        numbers = np.array(sorted(self.codes), dtype=np.intp)
        codes = np.array([self.codes[row] for row in numbers.tolist()], dtype=np.intp)
        wrong = len(numbers) and (codes != self.predicted[numbers]).any()
        if len(numbers) < _FEWEST_LABELS or not wrong:
            return TemperatureMap(1.0), (not_calibrated(),)
        labelled = np.zeros(len(rows), dtype=bool)
        labelled[numbers] = True
        return fit_temperature(rows.where(labelled), codes), ()
