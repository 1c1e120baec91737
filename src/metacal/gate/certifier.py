"""Certifier: labels as they arrive, for rows drawn from a pool without any; then an ordinary gate.

What is certified by which labels, and why, is in `metacal.certification.arriving`; here are the rows that
people have, their answers, and the gate at the end. `metacal.io.artifact.certifier` keeps one in a
journal.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Sequence
from dataclasses import KW_ONLY, InitVar, dataclass, replace
from typing import Any, Self

import numpy as np
from numpy.typing import ArrayLike

from metacal import kernels
from metacal.certificates.certificate import Certificate, accepts
from metacal.certificates.circumstances import Circumstances
from metacal.certificates.fingerprint import RowSketch, fingerprint_rows, hash_in_order
from metacal.certificates.notes import declared_extension, pool_without_score
from metacal.certification.arriving import (
    CORRECT,
    EXTENSION,
    INCORRECT,
    SHARES,
    UNKNOWN,
    LabellingProgress,
    PartialLabels,
    assess_progress,
    default_number_of_labels,
    sequential_procedure,
)
from metacal.certification.pilot import choose_pilot_rows_of_pool
from metacal.certification.plans import PilotRows
from metacal.errors import InfeasibleTargetError, InputError, spelled
from metacal.formulas import Codes, Flags, Float
from metacal.gate.gate import Gate
from metacal.gate.labelled import check_asked, gate_of, remarks_on_pool
from metacal.gate.logits_source import check_score
from metacal.gate.score_source import HigherIs, ScoreSource, clean_score_name
from metacal.promises.promise import Promise
from metacal.rows import Rows, validate
from metacal.rows.draws import RowDraws, check_random_state
from metacal.rows.score_columns import check_correctness, check_scores
from metacal.scores import Score, grid_of, name_of, score_rows

#: A block has a fortieth of the rows that were drawn, at least five.
_BLOCKS, _SMALLEST_BLOCK = 40, 5


@dataclass(eq=False, repr=False)
class Certifier:
    """Rows of an unlabelled pool to label, from the surest upward; what their labels certify is
    known at every moment.

    `labels` rows of the pool are drawn at random before the first label. Under an accuracy with a
    `delta` labels stop as soon as further ones could change nothing: the threshold is that of `fit`
    on all rows that were drawn. Any other promise takes the labels of all of them. The promise is
    about the source of the pool, of which the pool is taken to be a random sample, and holds with
    probability 1 - `delta` whenever somebody stops.

    Parameters
    ----------
    promise : Promise
        What shall be promised.
    pool : array of shape (n,) or (n, K)
        A score for each row, as for `ScoreGate`, or logits, as for `MetaCal`. Rows without a score
        are never drawn.
    labels : int, optional
        How many rows are drawn: the most labels that it can take. By default 40 / (1 - beta) for an
        accuracy and 40 / alpha for a miscoverage, or the whole pool where it is smaller. It cannot
        be changed later. Of a pool of scores a few rows, at most a square root, stay without a
        label: they say where tests begin where scores tie.
    may_extend : bool
        Whether `extend` may draw on, once, to four times as many rows. It costs a fifth of delta
        from the start.
    random_state : int, optional
        Seed of the draw. By default it is derived from the pool; a seed that you give is recorded
        in the certificate.
    higher_is, score_name : str
        Of given scores: what a higher one says ("surer" or "doubtful"), and what it is called.
    score, input, classes
        Of logits: as for `MetaCal`.
    record : callable, optional
        Is given each answer, and an extension, as a dict before it counts: what it raises, `update`
        raises.

    Examples
    --------
    >>> import metacal as mc
    >>> data = mc.datasets.load("cifar100-resnet110")
    >>> certifier = mc.Certifier(mc.MinAccuracy(0.9), data.logits, labels=1000)
    >>> while not certifier.finished:
    ...     rows = certifier.propose()
    ...     certifier = certifier.update(rows, labels=data.labels[rows])  # an annotator's work
    >>> print(certifier)
    575 of 1,000 labels certify a coverage of 53%, and more would change nothing: What is accepted is right at ...
    """

    promise: Promise
    pool: InitVar[ArrayLike]
    _: KW_ONLY
    labels: InitVar[int | None] = None
    may_extend: bool = False
    random_state: int | None = None
    higher_is: HigherIs = "surer"
    score_name: str = "score"
    score: str | Score = "entropy"
    input: str = "logits"
    classes: Sequence[Any] | None = None
    record: Callable[[dict[str, Any]], None] | None = None

    def __post_init__(self, pool: ArrayLike, labels: int | None) -> None:
        check_asked(self.promise, self.higher_is)
        if self.may_extend and self.promise.delta is None:
            raise InputError(
                "an extension takes a share of delta, and this promise has none; leave may_extend"
                " out."
            )
        self.may_extend, self.score_name = bool(self.may_extend), clean_score_name(self.score_name)
        self.rows: Rows | None = None
        #: What whoever asks people wants to remember with it: which columns they see.
        self.sheet: dict[str, Any] = {}
        self.doubts = self._doubts(pool)
        self.n_pool = len(self.doubts)
        there = np.flatnonzero(~np.isnan(self.doubts))
        #: What is odd about the pool: copies make its rows depend on each other.
        self.remarks = remarks_on_pool(self.rows, self.doubts)
        self.random_state = check_random_state(self.random_state)
        #: Rows that have a score in the order in which they are drawn, which is the same in every
        #: version of NumPy.
        self._order = there[self._draws(there).order("rows to label")]
        self._place = np.full(self.n_pool, self.n_pool, dtype=np.intp)
        self._place[self._order] = np.arange(len(there))
        #: How many rows are drawn, before and after an extension.
        self.sizes = self._sizes(labels, len(there))
        self.wanted = self.sizes[0]
        self.extended = False
        #: What is known of each row of the pool: CORRECT, INCORRECT or UNKNOWN.
        self.right = np.full(self.n_pool, UNKNOWN, dtype=np.int8)
        #: The column of the true class of each row, where that was the answer; -1 elsewhere.
        self.codes = np.full(self.n_pool, -1, dtype=np.intp)
        self._known: tuple[tuple[int, bool], list[LabellingProgress]] | None = None
        #: Of given scores, which may tie: rows of the pool that are never drawn say where tests
        #: begin.
        self.pilot = PilotRows(self.doubts[:0])
        if self.rows is None and self.promise.procedure().pilot_policy() is not None:
            self.pilot = choose_pilot_rows_of_pool(self.doubts[self._order], self.sizes[-1])
            n_available = self.sizes[-1] - self.pilot.n_withheld
            self.sizes = tuple(min(size, n_available) for size in self.sizes)

    def _doubts(self, pool: ArrayLike) -> Float:
        if np.ndim(pool) == 1:
            return ScoreSource(self.score_name, self.higher_is).uncertainty_scores(
                check_scores(pool)
            )
        check_score(self.score, self.input)
        self.rows = Rows(validate.read_logits(pool, self.input)).validated()
        self.classes_ = validate.check_classes(self.classes, self.rows.n_classes)
        self.predicted = self.rows.collect(kernels.predicted)
        return score_rows(self.rows, self.score)

    def _draws(self, there: Codes) -> RowDraws:
        """Return the source of the draw, derived from scores and predictions of the rows that have
        a score.
        """
        predicted = None if self.rows is None else self.predicted[there]
        return RowDraws(self.doubts[there], predicted, random_state=self.random_state)

    def _sizes(self, labels: int | None, n_there: int) -> tuple[int, ...]:
        n = min(default_number_of_labels(self.promise), n_there) if labels is None else labels
        if type(n) is not int or n < 1:
            raise InputError(f"labels must be a whole number from 1, got {labels!r}.")
        if n > n_there:
            raise InputError(
                f"{n:,} rows cannot be drawn from a pool of {n_there:,} rows with a score; ask for"
                " fewer labels, or use a larger pool."
            )
        return (n, min(EXTENSION * n, n_there)) if self.may_extend else (n,)

    # ── labels ────────────────────────────────────────────────────────────────────────────────────

    @property
    def n_drawn(self) -> int:
        """How many rows are drawn by now: the most labels that it can take."""
        return self.sizes[self.extended]

    @property
    def drawn(self) -> Codes:
        """The numbers of these rows."""
        return self._order[: self.n_drawn]

    @property
    def block(self) -> int:
        """How many rows `propose` gives at a time."""
        return max(_SMALLEST_BLOCK, self.n_drawn // _BLOCKS)

    def propose(self, n: int | None = None) -> Codes:
        """The numbers of the next rows to label: a block, or `n` of them, in random order; none
        once it is finished.

        The same rows come again until they are answered.
        """
        for size, standing in reversed(list(zip(self.sizes, self._standings()))):
            if not self._gains(standing):
                continue
            drawn = self._order[:size]
            if sequential_procedure(self.promise) is not None:
                by_rank = np.argsort(self.doubts[drawn], kind="stable")
                drawn = drawn[by_rank[: standing.n_relevant]]
            waiting: Codes = drawn[self.right[drawn] == UNKNOWN][: self.block if n is None else n]
            return waiting[np.argsort(self._place[waiting])]  # in the order of the draw: random
        return np.empty(0, dtype=np.intp)

    def update(
        self, rows: ArrayLike, right: ArrayLike | None = None, *, labels: ArrayLike | None = None
    ) -> Self:
        """Take answers: whether the prediction of each row is right or, for a pool of logits, its
        true label.

        Rows may come in any number and order, and again with the same answer. All are taken, or
        none.
        """
        numbers = np.atleast_1d(np.asarray(rows))
        if numbers.dtype.kind not in "iu" and numbers.size:
            raise InputError(f"rows must be the numbers that propose gives, got {numbers.dtype}.")
        numbers = numbers.astype(np.intp).reshape(-1)
        if (right is None) == (labels is None):
            raise InputError(
                "give right=... (whether each prediction is right) or labels=... (the true ones),"
                " not both."
            )
        if labels is None:
            answers = check_correctness(np.atleast_1d(np.asarray(right)))
            codes = np.full(len(answers), -1, dtype=np.intp)
        elif self.rows is None:
            raise InputError(
                "a pool of scores has no predictions to compare labels with; give right=..."
                " instead."
            )
        else:
            codes = validate.encode_labels(labels, len(numbers), self.classes_)
            answers = codes == self.predicted[np.clip(numbers, 0, self.n_pool - 1)]
        if answers.shape != numbers.shape:
            raise InputError(
                f"there are {len(numbers)} rows but {len(answers)} answers; give one each."
            )
        self.take(numbers, answers, codes)
        return self

    def take(self, numbers: Codes, right: Flags, codes: Codes) -> None:
        """Take answers with the columns of the true classes, -1 where only right or wrong was
        said.
        """
        self.check(numbers, right)
        first = np.unique(numbers, return_index=True)[1]
        fresh = np.sort(first[self.right[numbers[first]] == UNKNOWN])
        if not len(fresh):
            return
        numbers, right, codes = numbers[fresh], right[fresh], codes[fresh]
        self._recorded(
            {
                "rows": numbers.tolist(),
                "right": right.astype(int).tolist(),
                "classes": codes.tolist(),
            }
        )
        self.right[numbers], self.codes[numbers] = np.where(right, CORRECT, INCORRECT), codes

    def check(self, numbers: Codes, right: Flags) -> None:
        """Raise unless these answers can be taken: of rows that were drawn, and none otherwise than
        before.
        """
        known = (numbers >= 0) & (numbers < self.n_pool)
        known[known] = self._place[numbers[known]] < self.n_drawn
        if not known.all():
            foreign = numbers[~known][0]
            raise InputError(
                f"row {foreign} was not drawn: take it out, only rows that were asked about count."
            )
        first, same = np.unique(numbers, return_index=True, return_inverse=True)[1:]
        before, new = self.right[numbers], np.where(right, CORRECT, INCORRECT)
        differs = ((before != UNKNOWN) & (before != new)) | (new != new[first][same])
        if differs.any():
            raise InputError(
                f"row {int(numbers[differs][0])} has been answered otherwise before; the first"
                " answer counts. Take the new one out; if the first was a mistake, begin anew."
            )

    def extend(self) -> Self:
        """Draw on, to four times as many rows, as was declared beforehand; the labels that are
        there count again.
        """
        if not self.may_extend:
            raise InputError(
                f"{self.sizes[0]:,} rows were drawn before the first label, and no extension was"
                " declared: drawing on after labels are seen breaks the promise more often than"
                f" delta. Begin anew with {spelled('may_extend=True', '--may-extend')}."
            )
        if not self.extended:
            self._recorded({"extend": self.sizes[1]})
            self.extended = True
        return self

    def _recorded(self, event: dict[str, Any]) -> None:
        if self.record is not None:
            self.record(event)

    # ── where it stands ───────────────────────────────────────────────────────────────────────────

    @property
    def n_labels(self) -> int:
        """How many answers there are."""
        return int(np.count_nonzero(self.right != UNKNOWN))

    @property
    def finished(self) -> bool:
        """Whether further labels would change nothing."""
        return not any(map(self._gains, self._standings()))

    @property
    def coverage(self) -> float | None:
        """The share of the rows drawn that what is certified by now accepts; None while nothing
        is.
        """
        return self._coverage(self.threshold)

    @property
    def within_reach(self) -> float | None:
        """The coverage that would be certified if every further answer were right; None: nothing
        any more.
        """
        return self._coverage(
            max(
                (
                    s.reachable_threshold
                    for s in self._standings()
                    if s.reachable_threshold is not None
                ),
                default=None,
            )
        )

    def _coverage(self, threshold: float | None) -> float | None:
        return (
            None if threshold is None else float(accepts(self.doubts[self.drawn], threshold).mean())
        )

    def _stages(self) -> list[tuple[Promise, int]]:
        """The promise at its share of delta, and the rows that it is tested on, before and after an
        extension.
        """
        shares = SHARES if self.may_extend else (1.0,)
        return [(self.promise.at(share), size) for share, size in zip(shares, self.sizes)][
            : 1 + self.extended
        ]

    def _labels(self, size: int) -> PartialLabels:
        drawn = self._order[:size]
        return PartialLabels(self.doubts[drawn], self.right[drawn], self.pilot)

    def _standings(self) -> list[LabellingProgress]:
        now = (self.n_labels, self.extended)
        if self._known is None or self._known[0] != now:
            self._known = (
                now,
                [assess_progress(promise, self._labels(size)) for promise, size in self._stages()],
            )
        return self._known[1]

    @property
    def threshold(self) -> float | None:
        """What is certified by now, of the ranking score, higher = less sure; None while nothing
        is.
        """
        return max(
            (s.threshold for s in self._standings() if s.threshold is not None), default=None
        )

    def _gains(self, standing: LabellingProgress) -> bool:
        """Whether more than what is certified can come of it."""
        threshold = self.threshold
        reachable_threshold = standing.reachable_threshold
        if reachable_threshold is None:
            return False
        return threshold is None or reachable_threshold > threshold

    def __str__(self) -> str:
        said = f"{self.n_labels:,} of {self.n_drawn:,} labels"
        reach = self.within_reach
        if self.coverage is None:
            ahead = (
                "nothing can be certified"
                if reach is None
                else f"a coverage of {reach:.0%} is within reach"
            )
            return f"{said} certify nothing{'' if self.finished else ' yet'}; {ahead}."
        if self.finished:
            return (
                f"{said} certify a coverage of {self.coverage:.0%}, and more would change nothing: "
                f"{self.certificate.statement}"
            )
        return (
            f"{said} certify a coverage of {self.coverage:.0%} by now; {reach:.0%} is within reach."
        )

    # ── what comes out ────────────────────────────────────────────────────────────────────────────

    @property
    def certificate(self) -> Certificate:
        """What is certified by now; InfeasibleTargetError where nothing is."""
        standings = self._standings()
        best = max(
            range(len(standings)),
            key=lambda k: -math.inf if (s := standings[k].threshold) is None else s,
        )
        promise, size = self._stages()[best]
        try:
            certificate = promise.certify(self._labels(size))
        except InfeasibleTargetError as error:
            if self.finished:
                raise
            raise InfeasibleTargetError(
                f"nothing is certified by {self.n_labels:,} of {self.n_drawn:,} labels yet; go on.",
                target=error.target,
                rows_needed=error.rows_needed,
            ) from None
        missing, notes = self.n_pool - len(self._order), (*certificate.notes, *self.remarks)
        if missing:
            notes += (pool_without_score(missing=missing, rows=self.n_pool),)
        if self.may_extend:
            notes += (
                declared_extension(rows=self.sizes[0], extended=self.sizes[1], shares=SHARES),
            )
        around = Circumstances(
            by_value=self.pilot.tests_score_values,
            aside=self.pilot.n_withheld,
            random_state=self.random_state,
        )
        found = replace(certificate, delta=self.promise.delta, notes=notes, circumstances=around)
        if self.rows is None:
            return replace(found, score=ScoreSource(self.score_name, self.higher_is).score_name)
        return replace(
            found, score=name_of(self.score), threshold=grid_of(self.score).settled(found.threshold)
        )

    def gate(self) -> Gate:
        """The gate that is certified by now: saved, applied, exported and reported on like any
        other.

        For a pool of logits whose rows were answered by their true labels, its map is a temperature
        fitted on them (all rows that it accepts are among them); otherwise the softmax. For a pool
        of scores its confidence is a curve fitted on the answers.
        """
        return gate_of(self)

    @property
    def fingerprint(self) -> str:
        """Hash of the pool in its order: scores, rows without one, and predictions if there are
        any.

        Journals refer to rows by their number, so another order is another pool.
        """
        missing = np.isnan(self.doubts)
        column = missing if self.rows is None else np.where(missing, -1, self.predicted)
        scores = hash_in_order(self.doubts[~missing])
        return f"{scores}:{hashlib.sha256(column.astype('<i8').data).hexdigest()[:16]}"

    @property
    def data_hash(self) -> str:
        """Digest of the scores of the pool, in any order."""
        scores = self.doubts[~np.isnan(self.doubts)]
        return fingerprint_rows(scores, np.zeros(len(scores), dtype=bool)).data_hash

    @property
    def sketch(self) -> RowSketch:
        """Sample of the rows that have a label; the other rows of the pool may still judge the
        gate.
        """
        scores = self.doubts[self.right != UNKNOWN]
        return fingerprint_rows(scores, np.zeros(len(scores), dtype=bool)).sketch
