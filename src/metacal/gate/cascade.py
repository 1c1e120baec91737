"""CascadeGate: a small gate, a large one behind it and a certificate over both, a frozen value; fit_cascade makes one.

`needs_large` says for which rows the large model has to be run at all, `decide` who answers what.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from metacal import kernels
from metacal.decision import CascadeDecision, Decision
from metacal.errors import InputError, MetacalWarning
from metacal.gate.gate import Flags, Gate
from metacal.maps.heldout import FitMap
from metacal.maps.temperature import TemperatureMap
from metacal.promises.fingerprint import data_hash
from metacal.promises.notes import cascade_not_calibrated
from metacal.promises.rules.cascade import PLAN, CascadePromise, Paired, Plan, as_promise, aside_rows, certify_cascade
from metacal.promises.rules.cascade_certificate import CascadeCertificate
from metacal.rows import Rows
from metacal.scores import Score, grid_of, name_of, score_rows

#: What is said of probabilities where no calibrator could be fitted.


@dataclass(frozen=True, eq=False)
class CascadeGate:
    """The small model answers iff its score is at most its threshold, the large one what is left, people the rest.

    Attributes
    ----------
    small, large : Gate
        Map, score and threshold of each; neither has a certificate of its own. The large one's threshold is +inf where
        it answers all of the rest.
    certificate : CascadeCertificate
        What is promised of the two together.
    data_hash : str or None
        A fingerprint of the calibration rows: the small model's scores, and where the two disagree.

    Examples
    --------
    >>> from metacal.promises.rules.cascade import MaxLoss
    >>> from metacal.maps.temperature import fit_temperature
    >>> rng = np.random.default_rng(0)
    >>> labels = rng.integers(3, size=1000)
    >>> small = Rows(rng.normal(size=(1000, 3)) + 2.0 * np.eye(3)[labels])
    >>> large = Rows(rng.normal(size=(1000, 3)) + 5.0 * np.eye(3)[labels])
    >>> gate = fit_cascade(small, large, labels, MaxLoss(0.01), "entropy", fit_temperature)
    >>> rest = gate.needs_large(small)
    >>> decision = gate.decide(small, Rows(large.table[rest]))  # the large model ran on these rows only
    >>> sorted(set(decision.answered_by.tolist())), bool((decision.answered_by == "large").sum() == rest.sum())
    (['large', 'small'], True)
    """

    small: Gate
    large: Gate
    certificate: CascadeCertificate
    data_hash: str | None = None

    def __post_init__(self) -> None:
        if not np.array_equal(self.small.classes, self.large.classes):
            raise InputError("the two models of a cascade need the same classes, in the same order.")

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, CascadeGate):
            return NotImplemented
        return all(getattr(self, name) == getattr(other, name) for name in self.__dataclass_fields__)

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"CascadeGate({self.small!r}, {self.large!r}: {self.certificate.statement})"

    def _repr_html_(self) -> str:
        return self.certificate._repr_html_()

    @property
    def classes(self) -> NDArray[Any]:
        """The labels in column order, of both models."""
        return self.small.classes

    @property
    def n_classes(self) -> int:
        """K."""
        return self.small.n_classes

    @property
    def reject_label(self) -> Any:
        """What stands in place of the answer where a row is left to people."""
        return self.small.reject_label

    def tables(self, small: Any, large: Any) -> tuple[NDArray[Any], NDArray[Any]]:
        """What both models say about the same rows, as checked logits."""
        if large is None:
            raise InputError("give the large model's table of the same rows too: large=large_logits.")
        return self.small.read(small), self.large.read(large)

    def needs_large(self, small: Rows) -> Flags:
        """The rows that the small model does not answer: the large one has to be run on these, and on no other."""
        return ~self.small.accepts(small)

    def decide(self, small: Rows, large: Rows | None = None, *, probabilities: bool = True) -> CascadeDecision:
        """Who answers each row, and what: the small model's rows, and the large one's for all rows or for the rest.

        `large` holds the large model's logits of every row, or only of those that `needs_large` names, in their order;
        None where it names none.
        """
        first = self.small.decide(small, probabilities=probabilities)
        rest = np.flatnonzero(~first.accept)
        second = self._second(large, rest, len(small), probabilities)
        by = np.full(len(small), "small", dtype="<U6")
        if second is None:
            return _joined(first, None, rest, by)
        by[rest] = np.where(second.accept, "large", "person")
        return _joined(first, second, rest, by)

    def _second(self, large: Rows | None, rest: NDArray[np.intp], n: int, probabilities: bool) -> Decision | None:
        """What the large model says about the rows of `rest`."""
        if not len(rest):
            return None
        if large is None:
            raise InputError(
                f"{len(rest):,} of {n:,} rows need the large model: give its logits for them (needs_large says which)."
            )
        if len(large) not in (n, len(rest)):
            raise InputError(
                f"the large model's table has {len(large):,} rows; give all {n:,}, or the {len(rest):,} that "
                "needs_large names, in their order."
            )
        keep = np.zeros(len(large), dtype=bool)
        keep[rest if len(large) == n else slice(None)] = True
        return self.large.decide(large if keep.all() else _some(large, keep), probabilities=probabilities)

    def fitted_on(self, small: Rows, large: Rows) -> bool:
        """Whether these are the very rows that it was fitted on, by the fingerprint it has recorded."""
        agree = small.collect(kernels.predicted) == large.collect(kernels.predicted)
        return self.data_hash is not None and self.data_hash == data_hash(self.small.scores(small), agree)


def fit_cascade(
    small: Rows,
    large: Rows,
    codes: NDArray[np.intp],
    promise: CascadePromise,
    score: str | Score,
    fit_map: FitMap,
    *,
    plan: Plan = PLAN,
    large_score: str | Score | None = None,
    classes: NDArray[Any] | None = None,
    **known: Any,
) -> CascadeGate:
    """Certify the thresholds of a cascade on the same rows seen by both models, and calibrate each.

    A code of -1 is a label that nobody knows, which MaxLoss allows where the two models agree. The calibrators are
    fitted on all rows, and only where every label is known: labels known just where models disagree would teach them
    nonsense. `plan` says which rows choose thresholds and whether people are in the cascade; `known` are further fields
    of the two gates.
    """
    promise = as_promise(promise)
    scores = (score, score if large_score is None else large_score)
    rows = paired(small, large, codes, scores)
    certificate = certify_cascade(promise, rows, plan, (grid_of(scores[0]), grid_of(scores[1])))
    certificate = replace(certificate, score=name_of(scores[0]), large_score=name_of(scores[1]))
    if rows.known.all():
        maps = [fit_map(small, codes, None), fit_map(large, codes, None)]
    else:
        note = cascade_not_calibrated()
        warnings.warn(str(note), MetacalWarning, stacklevel=2)
        certificate = replace(certificate, notes=(*certificate.notes, note))
        maps = [TemperatureMap(1.0), TemperatureMap(1.0)]
        known = {**known, "recipe": None}
    columns = np.arange(small.n_classes) if classes is None else classes
    return CascadeGate(
        Gate(maps[0], columns, score=scores[0], threshold=certificate.threshold, **known),
        Gate(maps[1], columns, score=scores[1], threshold=certificate.large_threshold, **known),
        certificate,
        data_hash(rows.small_score, rows.agree),
    )


def paired(small: Rows, large: Rows, codes: NDArray[np.intp], scores: tuple[str | Score, str | Score]) -> Paired:
    """What both models say about the same rows, as a certificate sees it."""
    if len(small) != len(large) or small.n_classes != large.n_classes:
        raise InputError(
            f"both models must have seen the same rows and classes; got tables of {len(small):,} x {small.n_classes} "
            f"and {len(large):,} x {large.n_classes}."
        )
    one, other = small.collect(kernels.predicted), large.collect(kernels.predicted)
    known = codes >= 0
    return Paired(
        score_rows(small, scores[0]),
        score_rows(large, scores[1]),
        (one == codes) & known,
        (other == codes) & known,
        np.asarray(one == other),
        np.asarray(known),
    )


def labels_needed(small: Rows, large: Rows, score: str | Score, plan: Plan = PLAN) -> NDArray[np.intp]:
    """The rows that need a label before `MaxLoss` can be certified: those tested on which the two models disagree.

    In the order of the small model's score: labels of the first ones certify that it answers little, more of them that
    it answers more. Rows that are set aside to choose thresholds need none; `plan` must be the one to be fitted with.

    Examples
    --------
    >>> table = np.eye(2)[np.arange(100) % 2]
    >>> other = table.copy()
    >>> other[:10] = other[:10, ::-1]
    >>> labels_needed(Rows(table), Rows(other), "entropy").tolist()
    [0, 1, 2, 3, 4, 6, 7]
    """
    differ = small.collect(kernels.predicted) != large.collect(kernels.predicted)
    differ[aside_rows(len(small), plan)] = False
    rows = np.flatnonzero(differ)
    return rows[np.argsort(score_rows(small, score)[rows], kind="stable")]


def _some(rows: Rows, keep: Flags) -> Rows:
    """Some of the rows; on a device as a table of their own, since maps there write whole tables."""
    return Rows(rows.table[np.flatnonzero(keep)]) if rows.on_device else rows.where(keep)


def _joined(first: Decision, second: Decision | None, rest: NDArray[np.intp], by: NDArray[Any]) -> CascadeDecision:
    """The small model's decision, the large one's in the rows of `rest`."""
    columns = {}
    for name in ("label", "answer", "confidence", "accept", "probabilities", "top"):
        column = getattr(first, name)
        if column is not None and second is not None:
            other = getattr(second, name)
            column = column.astype(np.result_type(column.dtype, other.dtype))
            column[rest] = other
        columns[name] = column
    large_score = np.full(len(by), np.nan)
    if second is not None:
        large_score[rest] = second.score
    return CascadeDecision(**columns, score=first.score, answered_by=by, large_score=large_score)
