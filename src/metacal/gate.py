"""The gate: map, score, threshold and certificate in one frozen value, which is fitted, saved, exported and applied.

`fit_gate` certifies a threshold on the rows' scores and fits the base map; `Gate.decide` says of each new row what the
answer is, how likely it is to be right, and whether it is accepted, scoring and mapping every row once. Estimators,
files, exports and the command line all hold this value; none of them rebuilds it.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from metacal import kernels
from metacal.errors import InputError, MetacalWarning
from metacal.maps.map import Map
from metacal.promises.certificate import Certificate, accepts, data_hash, older_data_hash
from metacal.promises.promise import Constraint, require_some_correct
from metacal.promises.quantity import COVERAGE_ACCURACY
from metacal.rows import Rows
from metacal.rows.validate import logits_from, room_for_probabilities
from metacal.scores import Score, grid_of, name_of, resolve, score_rows, unrounded

#: With no error among the accepted rows a temperature would run away; below this many, fitting on all rows gave a lower
#: ECE of accepted rows (embedded sets, 500 to 2,000 rows).
_FEWEST_ERRORS = 50

Flags = NDArray[np.bool_]
#: What makes two gates the same, besides their classes.
_COMPARED = ("map", "score", "threshold", "certificate", "reject_label", "input", "data_hash")
#: Fits the base map on the rows with a flag.
FitBase = Callable[[Flags], Map]
#: What probabilities a rejected row gets: the calibrated ones, or 1/K in every class, the paper's map.
Rejected = Literal["calibrated", "uniform"]


@dataclass(frozen=True)
class Recipe:
    """How a map was fitted: the estimator's public name and its parameters, for whoever wants to fit it again."""

    estimator: str
    parameters: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, eq=False)
class Decision:
    """What a gate says of each row.

    Attributes
    ----------
    label : array
        The answer where the row is accepted, the gate's `reject_label` where it is not.
    answer : array
        The class with the largest logit, of every row: what the promise is about.
    confidence : array or None
        The calibrated probability of that answer, of every row: what a reviewer wants to see.
    accept : boolean array
    score : array
        The ranking score, higher = less sure.
    probabilities : array of shape (n, K) or None
        Calibrated; of rejected rows too, or 1/K there, as asked.
    """

    label: NDArray[Any]
    answer: NDArray[Any]
    confidence: NDArray[Any] | None
    accept: Flags
    score: NDArray[np.float64]
    probabilities: NDArray[Any] | None

    def __len__(self) -> int:
        return len(self.accept)


@dataclass(frozen=True, eq=False)
class Gate:
    """Accept iff score(x) <= threshold; calibrated probabilities by the base map. Without a certificate, accept all.

    Attributes
    ----------
    map : Map
        The base map: logits to calibrated probabilities.
    classes : array of shape (K,)
        The labels in column order.
    score : str or callable
        The ranking score, by its name where it has one.
    threshold : float
        +inf accepts every row that has a score; a row that is not a row of logits has none and is never accepted.
    certificate : Certificate or None
        What is promised; None for a calibrator that promises nothing.
    constraint : Constraint or None
        What was asked for.
    reject_label : label
        What stands in place of the answer where a row is rejected.
    input : "logits" or "probabilities"
        What the columns of a table are.
    data_hash : str or None
        A fingerprint of the calibration rows.
    recipe : Recipe or None
        How the base map was fitted.
    classes_given : bool
        Whether the classes were named, and are not just the column numbers.

    Examples
    --------
    >>> from metacal.maps.temperature import TemperatureMap
    >>> gate = Gate(TemperatureMap(1.0), classes=np.array(["cat", "dog"]), threshold=0.5, reject_label="?")
    >>> found = gate.decide(Rows(np.array([[5.0, 0.0], [0.1, 0.0]])))
    >>> found.label.tolist(), found.answer.tolist(), found.confidence.round(3).tolist()
    (['cat', '?'], ['cat', 'cat'], [0.993, 0.525])
    >>> gate(np.array([[5.0, 0.0], [0.1, 0.0]])).round(3)
    array([[0.993, 0.007], [0.5  , 0.5  ]])
    """

    map: Map
    classes: NDArray[Any]
    score: str | Score = "entropy"
    threshold: float = math.inf
    certificate: Certificate | None = None
    constraint: Constraint | None = None
    reject_label: Any = -1
    input: str = "logits"
    data_hash: str | None = None
    recipe: Recipe | None = None
    classes_given: bool = False

    def __post_init__(self) -> None:
        classes = np.array(self.classes)
        classes.flags.writeable = False
        object.__setattr__(self, "classes", classes)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Gate):
            return NotImplemented
        same = all(getattr(self, name) == getattr(other, name) for name in _COMPARED)
        return same and np.array_equal(self.classes, other.classes)

    __hash__ = None  # type: ignore[assignment]

    @property
    def n_classes(self) -> int:
        """K."""
        return len(self.classes)

    def read(self, table: Any) -> Any:
        """A caller's table as checked logits: the right number of columns, finite or masked, never guessed at."""
        logits = logits_from(table, self.input)
        if logits.shape[1] != self.n_classes:
            raise InputError(
                f"this gate was fitted on {self.n_classes} classes; the table has {logits.shape[1]} columns. Give "
                "predictions of the same classifier."
            )
        return logits

    def scores(self, rows: Rows) -> NDArray[np.float64]:
        """The ranking score of each row."""
        return score_rows(rows, self.score)

    def accepts(self, rows: Rows) -> Flags:
        """Whether each row is accepted."""
        return accepts(self.scores(rows), self.threshold)

    def decide(self, rows: Rows, *, rejected: Rejected = "calibrated", probabilities: bool = True) -> Decision:
        """Answer, confidence, decision and probabilities of rows of logits, from one walk over the table.

        `rejected="uniform"` gives rejected rows 1/K in every class, the paper's map; their answer and confidence stay.
        Without `probabilities` the map is not computed, and there is no confidence.
        """
        if rejected not in ("calibrated", "uniform"):
            raise InputError(f"rejected must be 'calibrated' or 'uniform', got {rejected!r}.")
        if rows.on_device:
            return self._decide_on_device(rows, rejected, probabilities)
        n = len(rows)
        score, answer = np.empty(n), np.empty(n, dtype=np.intp)
        if not probabilities:
            rows.fill(self._rank, score, answer)
            return self._decision(answer, None, score, None)
        double = rows.table.dtype == np.float64
        table = np.empty((n, rows.n_classes), dtype=np.float64 if double else np.float32)
        confidence = np.empty(n, dtype=table.dtype)
        rows.fill(partial(self._decide_block, rejected), table, confidence, score, answer)
        return self._decision(answer, confidence, score, table)

    def write(self, block: NDArray[Any], out: NDArray[Any]) -> None:
        """Write the probabilities of a block of logits into `out`, 1/K where it is rejected."""
        accept = self._accepts_block(resolve(self.score).unrounded(block))  # first: `out` may be the block itself
        self.map.write(block, out)
        if not accept.all():
            out[~accept] = 1.0 / block.shape[1]

    def fitted_on(self, rows: Rows, values: NDArray[np.float64], correct: Flags) -> bool:
        """Whether these are the very rows that the gate was fitted on, by the fingerprint it has recorded.

        `values` are the scores of the rows, `correct` says whether the largest logit is right. Fingerprints from before
        scores were rounded are recognised too; that takes the unrounded scores, and is tried only where the number of
        rows is the certificate's.
        """
        if self.data_hash is None or self.certificate is None or len(correct) < self.certificate.n_rows:
            return False
        if self.data_hash == data_hash(values, correct):
            return True
        same_size = len(correct) == self.certificate.n_rows
        return same_size and self.data_hash == older_data_hash(unrounded(rows, self.score), correct)

    def __call__(
        self,
        logits: NDArray[Any],
        *,
        accept: Flags | None = None,
        rows: Rows | None = None,
        out: NDArray[Any] | None = None,
    ) -> NDArray[Any]:
        """The paper's map: calibrated probabilities, 1/K where rejected. Pass `accept` where it is already known.

        A tensor on a GPU gives a tensor there; a base map that works on arrays only gets it as one.
        """
        rows = rows if rows is not None else Rows(logits)
        if accept is None and not rows.on_device:
            return rows.fill(self.write, room_for_probabilities(logits, out))
        accept = self.accepts(rows) if accept is None else accept
        probabilities = self.map(logits, rows=rows, out=out)
        if not accept.all():
            if rows.on_device:
                kernels.device_kernels().fill_rows(probabilities, ~accept, 1.0 / logits.shape[1])
            else:
                probabilities[~accept] = 1.0 / logits.shape[1]
        return probabilities

    def _accepts_block(self, unrounded: NDArray[np.float64]) -> Flags:
        """The decision on scores that are not rounded yet: a settled threshold decides them alike, for fewer calls."""
        return accepts(unrounded, grid_of(self.score).settled(self.threshold))

    def _rank(self, block: NDArray[Any], score: NDArray[np.float64], answer: NDArray[np.intp]) -> None:
        score[...] = resolve(self.score).unrounded(block)
        answer[...] = kernels.predicted(block)

    def _decide_block(
        self,
        rejected: Rejected,
        block: NDArray[Any],
        table: NDArray[Any],
        confidence: NDArray[Any],
        score: NDArray[np.float64],
        answer: NDArray[np.intp],
    ) -> None:
        self._rank(block, score, answer)
        self.map.write(block, table)
        uniform = np.isnan(score)  # no row of logits: nothing to calibrate
        table[uniform] = 1.0 / block.shape[1]
        confidence[...] = table[np.arange(len(block)), answer]
        if rejected == "uniform":
            table[~self._accepts_block(score)] = 1.0 / block.shape[1]

    def _decide_on_device(self, rows: Rows, rejected: Rejected, probabilities: bool) -> Decision:
        score, answer = self.scores(rows), rows.collect(kernels.predicted)
        if not probabilities:
            return self._decision(answer, None, score, None)
        table: Any = self.map(rows.table, rows=rows)
        confidence = kernels.device_kernels().own_entries(table, answer)
        accept = accepts(score, self.threshold)
        if rejected == "uniform" and not accept.all():
            kernels.device_kernels().fill_rows(table, ~accept, 1.0 / rows.n_classes)
        return self._decision(answer, confidence, score, table)

    def _decision(
        self,
        codes: NDArray[np.intp],
        confidence: NDArray[Any] | None,
        score: NDArray[np.float64],
        table: NDArray[Any] | None,
    ) -> Decision:
        score = grid_of(self.score).rounded(score)
        answer, accept = self.classes[codes], accepts(score, self.threshold)
        bare = self.certificate is None and self.threshold == math.inf  # a calibrator: there is nothing to reject
        label = answer if bare else np.where(accept, answer, np.asarray(self.reject_label))
        return Decision(label, answer, confidence, accept, score, table)


def fit_gate(
    rows: Rows,
    codes: NDArray[np.intp],
    constraint: Constraint,
    score: str | Score,
    fit_base: FitBase,
    *,
    classes: NDArray[Any] | None = None,
    weighted: bool = False,
    **known: Any,
) -> Gate:
    """Certify a threshold on the rows' scores, then fit the base map on the accepted rows.

    A code below 0 is a label that is none of the classes: the row counts as wrong, and no map is fitted on it.

    `fit_base(used)` gets one flag per row. The base map is fitted on all rows (of those that the constraint leaves for
    it) when fewer than 50 of the accepted ones are wrong: a calibrator learns from errors. `known` are further fields
    of the gate: `reject_label`, `input`, `recipe`, `classes_given`.

    Examples
    --------
    >>> from metacal.promises.miscoverage import MaxMiscoverage
    >>> from metacal.maps.temperature import fit_temperature
    >>> rng = np.random.default_rng(0)
    >>> labels = rng.integers(3, size=400)
    >>> rows = Rows(rng.normal(size=(400, 3)) + 3.0 * np.eye(3)[labels])
    >>> fit_one = lambda used: fit_temperature(rows.where(used), labels[used])
    >>> gate = fit_gate(rows, labels, MaxMiscoverage(0.1), "entropy", fit_one)
    >>> gate.threshold == gate.certificate.threshold, gate.certificate.n_rows
    (True, 400)
    """
    values, correct = _scored(rows, score, codes)
    certificate, available = _certified(constraint, values, correct, score)
    repeated = _repeated_rows(rows, values)
    if repeated:
        note = (
            f"{repeated:,} of {len(values):,} rows repeat the logits of an earlier row: if these are copies, and not "
            "different inputs, the rows are not independent and the confidence is void as stated. Keep one row of each."
        )
        warnings.warn(note, MetacalWarning, stacklevel=3)
        certificate = _with_note(certificate, note)
    if weighted:
        certificate = _with_note(certificate, "sample weights are not used by the certificate.")
    if not rows.on_device and (codes < 0).any():
        available = available & (codes >= 0)
    used = _worth_fitting(available, accepts(values, certificate.threshold), correct)
    if not used.any():
        raise InputError("no row is left to fit the base calibrator on; bring more rows or loosen the promise.")
    base = fit_base(used)
    if not base.preserves_accuracy and certificate.quantity == COVERAGE_ACCURACY:
        certificate = _with_note(
            certificate,
            "the base calibrator may change the largest class; the promise is about the largest "
            "logit, which predict returns.",
        )
    return Gate(
        base,
        np.arange(rows.n_classes) if classes is None else classes,
        score=score,
        threshold=certificate.threshold,
        certificate=certificate,
        constraint=constraint,
        data_hash=data_hash(values, correct),
        **known,
    )


def check_gate(constraint: Any, score: str | Score, input: str) -> None:
    """Raise unless these can make a gate."""
    resolve(score)
    if isinstance(constraint, type) or not isinstance(constraint, Constraint):
        raise InputError(
            "constraint must be a promise such as MaxMiscoverage(0.05) or MinCoverageAccuracy(0.97); "
            f"got {constraint!r}."
        )
    if score == "energy" and input == "probabilities":
        raise InputError(
            "the score 'energy' is the same for every row of probabilities; use 'entropy', or pass logits."
        )


def check_reject_label(reject_label: Any, classes: NDArray[Any]) -> None:
    """Raise unless the label is of the classes' type and none of them."""
    label = np.asarray(reject_label)
    strings = classes.dtype.kind in "UO"
    if label.ndim or label.dtype.kind not in ("U" if strings else "iub"):
        kind = "a string, such as reject_label='rejected'," if strings else "an integer of at most 64 bits"
        raise InputError(f"reject_label must be {kind} like the classes; got {reject_label!r}.")
    if not strings and not -(2**63) <= int(label) < 2**63:
        raise InputError(f"reject_label must fit a signed integer of 64 bits; got {reject_label!r}.")
    if label in classes:
        raise InputError(f"reject_label {reject_label!r} is one of the classes; choose a label that is not.")
    if not strings and np.result_type(classes.dtype, label.dtype).kind == "f":  # int64 beside uint64: labels round
        raise InputError(
            f"no integer type holds both the classes ({classes.dtype}) and reject_label {reject_label!r}; "
            "choose a label that the classes' type can hold."
        )


def _scored(rows: Rows, score: str | Score, codes: NDArray[np.intp]) -> tuple[NDArray[np.float64], Flags]:
    """The score of each row and whether its largest logit is the true class, from one pass over the table."""
    if rows.on_device:
        return score_rows(rows, score), rows.collect(kernels.correct, codes)
    resolved = resolve(score)
    both = rows.collect(partial(_score_and_correct, resolved.unrounded), codes)
    return resolved.grid.rounded(both[:, 0]), both[:, 1] > 0.0


def _score_and_correct(unrounded: Score, block: NDArray[Any], codes: NDArray[np.intp]) -> NDArray[np.float64]:
    return np.stack([unrounded(block), kernels.correct(block, codes)], axis=1)


def _certified(
    constraint: Constraint, values: NDArray[np.float64], correct: Flags, score: str | Score
) -> tuple[Certificate, Flags]:
    """The certificate, and the rows that are left for the base map."""
    require_some_correct(correct)
    notes = _warnings_about(values, correct)
    for_threshold, for_base = constraint.split(correct)
    certificate = constraint.certify(values[for_threshold], correct[for_threshold])
    for note in notes:
        warnings.warn(note, MetacalWarning, stacklevel=4)
        certificate = _with_note(certificate, note)
    # A constraint does not know the score; on a coarser grid the middle is a wider one, between the same neighbours.
    threshold = grid_of(score).settled(certificate.threshold)
    return replace(certificate, score=name_of(score), threshold=threshold), for_base


def _worth_fitting(available: Flags, accept: Flags, correct: Flags) -> Flags:
    """The rows to fit the base calibrator on: the accepted ones, if there are enough errors to learn from."""
    accepted = available & accept
    return accepted if int((accepted & ~correct).sum()) >= _FEWEST_ERRORS else available


def _with_note(certificate: Certificate, note: str) -> Certificate:
    return replace(certificate, notes=(*certificate.notes, note))


#: So many rows in a hundred may repeat another before it is worth a word: short tables of few values do by chance.
_REPEATED_SHARE = 0.01


def _repeated_rows(rows: Rows, values: NDArray[np.float64]) -> int:
    """How many rows are equal to an earlier one, bit for bit; 0 where they are too few to matter.

    Equal rows have equal scores, so only rows that share theirs are read again.
    """
    order = np.argsort(values, kind="stable")
    same = values[order[1:]] == values[order[:-1]]
    if rows.on_device or same.sum() <= _REPEATED_SHARE * len(values):
        return 0
    shared = np.zeros(len(values), dtype=bool)
    shared[order[1:][same]] = shared[order[:-1][same]] = True
    marks = rows.where(shared).collect(_row_marks)
    repeated = len(marks) - len(np.unique(marks))
    return repeated if repeated > _REPEATED_SHARE * len(values) else 0


def _row_marks(block: NDArray[Any]) -> NDArray[np.int64]:
    """A number for each row that equal rows share, and others only by accident; masked logits count as they are."""
    return np.array([hash(row.tobytes()) for row in np.ascontiguousarray(block)], dtype=np.int64)


def _warnings_about(values: NDArray[np.float64], correct: Flags) -> list[str]:
    """What is odd about these calibration rows, if anything."""
    found = []
    n, errors = len(correct), int((~correct).sum())
    if n >= 50 and errors <= 0.001 * n:
        found.append(
            f"{errors} errors in {n:,} rows: is this the training data? Promises hold only for rows from the same "
            "source as the calibration rows."
        )
    _, counts = np.unique(values, return_counts=True)
    tied = int(counts[counts > 2].sum())  # among millions of rows some pairs share a grid point by chance
    if tied > 0.01 * n:
        found.append(
            f"{tied:,} of {n:,} rows share their score with other rows: ties are accepted or rejected together, which "
            "costs coverage. Logits in higher precision break them."
        )
    return found
