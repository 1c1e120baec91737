"""Gate: map, score, threshold and certificate in one frozen value, which is fitted, saved, exported and applied.

`Gate.decide` says of each new row what the answer is, how likely it is to be right, and whether it is accepted, scoring
and mapping every row once. Estimators, files, exports and the command line all hold this value; none rebuilds it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import partial
from html import escape
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from metacal import kernels
from metacal.decision import Decision, Recipe
from metacal.errors import InputError, warn_caller
from metacal.maps.map import Map
from metacal.maps.methods import method_of_map
from metacal.promises.certificate import Certificate, accepts
from metacal.promises.fingerprint import data_hash
from metacal.promises.parts.thresholds import Thresholds, plain_groups
from metacal.promises.promise import Promise
from metacal.promises.rules.costs import Costed, Losses
from metacal.promises.sequential.profile import Profile
from metacal.rows import Rows, run_rows
from metacal.rows.validate import logits_from, room_for_probabilities
from metacal.scores import Score, grid_of, ranked_block, resolve, score_rows

Flags = NDArray[np.bool_]
#: What makes two gates the same, besides their classes.
_COMPARED = ("map", "score", "threshold", "thresholds", "certificate", "reject_label", "input", "data_hash", "profile")
#: What probabilities a rejected row gets: the calibrated ones, or 1/K in every class, the paper's map.
Rejected = Literal["calibrated", "uniform"]


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
        -inf where there are `thresholds`.
    thresholds : Thresholds or None
        One for each predicted class or each group; a row is decided by that of its own.
    certificate : Certificate or None
        What is promised; None for a calibrator that promises nothing.
    promise : Promise or None
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
    profile : Profile or None
        What is kept of the calibration rows, for monitors.

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
    promise: Promise | None = None
    reject_label: Any = -1
    input: str = "logits"
    data_hash: str | None = None
    recipe: Recipe | None = None
    classes_given: bool = False
    thresholds: Thresholds | None = None
    profile: Profile | None = None

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

    def __repr__(self) -> str:
        rule = f"{type(self.map).__name__}, {self.n_classes} classes, accept if {self.score} <= {self.threshold:.6g}"
        return f"Gate({rule}{'' if self.certificate is None else f': {self.certificate.statement}'})"

    def _repr_html_(self) -> str:
        return f"<code>{escape(repr(self))}</code>" if self.certificate is None else self.certificate._repr_html_()

    @property
    def n_classes(self) -> int:
        """K."""
        return len(self.classes)

    @property
    def calibrator_name(self) -> str:
        """The public name of what fitted the map, as far as it is known."""
        if self.recipe is not None:
            return self.recipe.estimator
        method = method_of_map(type(self.map))
        return type(self.map).__name__ if method is None else method.public_name

    @property
    def is_calibrator(self) -> bool:
        """Whether it is a map alone, which promises nothing and has no threshold to reject by."""
        return self.certificate is None and self.threshold == math.inf

    @property
    def by_group(self) -> bool:
        """Whether the threshold depends on a group that has to come with every row."""
        return self.thresholds is not None and self.thresholds.by == "group"

    def limits(self, groups: Any, n_rows: int) -> NDArray[np.float64] | None:
        """The threshold of each row by its group; None where the gate asks for none.

        Groups that the gate has not been fitted on have -inf: their rows are always rejected.
        """
        if not self.by_group:
            if groups is not None:
                raise InputError("this gate has no threshold by group; leave out groups, or fit it with PerGroup.")
            return None
        assert self.thresholds is not None
        if groups is None:
            few = ", ".join(map(repr, self.thresholds.names[:5]))
            raise InputError(
                f"this gate has a threshold for each group ({few}{', ...' if len(self.thresholds.names) > 5 else ''}); "
                "say which group every row belongs to with groups=... (--group-key NAME)."
            )
        codes = self.thresholds.codes(groups)
        if len(codes) != n_rows:
            raise InputError(f"there are {n_rows} rows but {len(codes)} groups; each row needs one.")
        if (codes < 0).any():
            unknown = plain_groups(groups)[codes < 0][0]
            warn_caller(f"rows of groups that this gate was not fitted on ({unknown!s}, for one) are rejected.")
        return self.thresholds.of(codes)

    def part_names(self, top: NDArray[np.intp], groups: Any = None) -> NDArray[Any] | None:
        """The predicted class or the group of each row, where each has its own promise; `top` are the largest logits'.

        What `judge`, `verify_decisions` and monitors ask for.
        """
        if self.thresholds is None:
            return None
        return plain_groups(groups) if self.by_group else self.classes[top]

    def read(self, table: Any, *, by_rows: bool = False) -> Any:
        """A caller's table as checked logits: the right number of columns, finite or masked, never guessed at.

        With `by_rows` no second table is made: what has to be converted is converted when its rows are read.
        """
        logits = logits_from(table, self.input, by_rows=by_rows)
        if logits.shape[1] != self.n_classes:
            raise InputError(
                f"this gate was fitted on {self.n_classes} classes; the table has {logits.shape[1]} columns. Give "
                "predictions of the same classifier."
            )
        return logits

    def with_classes(self, classes: NDArray[Any], reject_label: Any) -> Gate:
        """The same gate where columns have been called by their numbers: other names, in the same order."""
        certificate = self.certificate and self.certificate.with_names(classes.tolist())
        thresholds = self.thresholds
        if thresholds is not None and not self.by_group:
            thresholds = replace(thresholds, names=tuple(classes.tolist()))
        named = replace(self, classes=classes, reject_label=reject_label, classes_given=True)
        return replace(named, certificate=certificate, thresholds=thresholds)

    def scores(self, rows: Rows) -> NDArray[np.float64]:
        """The ranking score of each row."""
        return score_rows(rows, self.score)

    def accepts(self, rows: Rows, groups: Any = None) -> Flags:
        """Whether each row is accepted; `groups` has the group of each row, where the gate goes by them."""
        limits = self.limits(groups, len(rows))
        top = rows.collect(kernels.predicted) if self.thresholds is not None and limits is None else None
        return accepts(self.scores(rows), self._thresholds(top, limits))

    def decide(
        self, rows: Rows, *, rejected: Rejected = "calibrated", probabilities: bool = True, groups: Any = None
    ) -> Decision:
        """Answer, confidence, decision and probabilities of rows of logits, from one walk over the table.

        `rejected="uniform"` gives rejected rows 1/K in every class, the paper's map; their answer and confidence stay.
        Without `probabilities` there is no confidence either, and a gate does not compute its map. `groups` has the
        group of each row, where the gate has a threshold for each.
        """
        if rejected not in ("calibrated", "uniform"):
            raise InputError(f"rejected must be 'calibrated' or 'uniform', got {rejected!r}.")
        limits = self.limits(groups, len(rows))
        if rows.on_device:
            return self._decide_on_device(rows, rejected, probabilities, limits)
        n, dtype = len(rows), np.float64 if rows.table.dtype == np.float64 else np.float32
        score, top, code = np.empty(n), np.empty(n, dtype=np.intp), np.empty(n, dtype=np.intp)
        if not probabilities:
            rows.fill(partial(self._answer_block, dtype), score, top, code, whole=self._whole_blocks)
            return self._decision(code, top, None, score, None, limits)
        table, confidence = np.empty((n, rows.n_classes), dtype=dtype), np.empty(n, dtype=dtype)
        columns = (table, confidence, score, top, code, *(() if limits is None else (limits,)))
        rows.fill(partial(self._decide_block, rejected), *columns, whole=self._whole_blocks)
        return self._decision(code, top, confidence, score, table, limits)

    def write(self, block: NDArray[Any], out: NDArray[Any], limits: NDArray[np.float64] | None = None) -> None:
        """Write the probabilities of a block of logits into `out`, 1/K where it is rejected."""
        # First: `out` may be the block itself.
        accept = self._accepts_block(resolve(self.score).unrounded(block), block, limits)
        self.map.write(block, out)
        if not accept.all():
            out[~accept] = 1.0 / block.shape[1]

    def losses(self, codes: NDArray[np.intp], answers: NDArray[np.intp]) -> Losses | None:
        """What each answer costs, true classes and answers as column numbers; None where no cost is promised."""
        return self.promise.losses(codes, answers) if isinstance(self.promise, Costed) else None

    def fitted_on(self, values: NDArray[np.float64], correct: Flags | None) -> bool:
        """Whether these are the very rows that the gate was fitted on, by the fingerprint it has recorded.

        `values` are the scores of the rows, `correct` says whether the largest logit is right. A gate that was fitted
        without labels has a fingerprint without them.
        """
        if self.data_hash is None or self.certificate is None or len(values) < self.certificate.n_rows:
            return False
        if not self.certificate.labelled:
            correct = np.zeros(len(values), dtype=bool)
        if correct is None:
            return False  # nobody can tell
        return self.data_hash == data_hash(values, correct, run_rows(len(self.classes)))

    def __call__(
        self,
        logits: NDArray[Any],
        *,
        accept: Flags | None = None,
        rows: Rows | None = None,
        out: NDArray[Any] | None = None,
        groups: Any = None,
    ) -> NDArray[Any]:
        """The paper's map: calibrated probabilities, 1/K where rejected. Pass `accept` where it is already known.

        A tensor on a GPU gives a tensor there; a base map that works on arrays only gets it as one.
        """
        rows = rows if rows is not None else Rows(logits)
        if accept is None and not rows.on_device:
            limits = self.limits(groups, len(rows))
            more = () if limits is None else (limits,)
            return rows.fill(self.write, room_for_probabilities(logits, out), *more, whole=self._whole_blocks)
        accept = self.accepts(rows, groups) if accept is None else accept
        probabilities = self.map(logits, rows=rows, out=out)
        if not accept.all():
            if rows.on_device:
                kernels.device_kernels().fill_rows(probabilities, ~accept, 1.0 / logits.shape[1])
            else:
                probabilities[~accept] = 1.0 / logits.shape[1]
        return probabilities

    @property
    def _whole_blocks(self) -> bool:
        """Whether both score and map give the same bits whatever block their rows come in, and want no strips."""
        return self.map.whole_blocks and getattr(resolve(self.score).unrounded, "walks_blocks", False)

    def _accepts_block(
        self, unrounded: NDArray[np.float64], block: NDArray[Any], limits: NDArray[np.float64] | None
    ) -> Flags:
        """The decision on scores that are not rounded yet: a settled threshold decides them alike, for fewer calls."""
        if self.thresholds is None:
            return accepts(unrounded, grid_of(self.score).settled(self.threshold))
        return accepts(unrounded, self._thresholds(kernels.predicted(block) if limits is None else None, limits))

    def _thresholds(
        self, top: NDArray[np.intp] | None, limits: NDArray[np.float64] | None
    ) -> float | NDArray[np.float64]:
        """What the scores are compared with: one threshold, or that of each row, which is settled as it stands."""
        if self.thresholds is None:
            return self.threshold
        if limits is not None:
            return limits
        assert top is not None
        return self.thresholds.of(top)

    def _answer_block(
        self,
        dtype: type[np.floating[Any]],
        block: NDArray[Any],
        score: NDArray[np.float64],
        top: NDArray[np.intp],
        code: NDArray[np.intp],
    ) -> None:
        if self.is_calibrator:
            room = np.empty(block.shape, dtype=dtype)
            self._decide_block("calibrated", block, room, room[:, 0].copy(), score, top, code)
            return
        score[...] = ranked_block(self.score, block, top)
        code[...] = top

    def _decide_block(
        self,
        rejected: Rejected,
        block: NDArray[Any],
        table: NDArray[Any],
        confidence: NDArray[Any],
        score: NDArray[np.float64],
        top: NDArray[np.intp],
        code: NDArray[np.intp],
        limits: NDArray[np.float64] | None = None,
    ) -> None:
        score[...] = ranked_block(self.score, block, top)
        self.map.write(block, table)
        table[np.isnan(score)] = 1.0 / block.shape[1]  # no row of logits: nothing to calibrate
        code[...] = kernels.predicted(table) if self.is_calibrator else top
        confidence[...] = table[np.arange(len(block)), code]
        if rejected == "uniform":
            table[~self._accepts_block(score, block, limits)] = 1.0 / block.shape[1]

    def _decide_on_device(
        self, rows: Rows, rejected: Rejected, probabilities: bool, limits: NDArray[np.float64] | None
    ) -> Decision:
        score, top = self.scores(rows), rows.collect(kernels.predicted)
        if not probabilities and not self.is_calibrator:
            return self._decision(top, top, None, score, None, limits)
        device, share = kernels.device_kernels(), 1.0 / rows.n_classes
        table: Any = self.map(rows.table, rows=rows)
        if np.isnan(score).any():
            device.fill_rows(table, np.isnan(score), share)
        code = Rows(table).collect(kernels.predicted) if self.is_calibrator else top
        if not probabilities:
            return self._decision(code, top, None, score, None, limits)
        confidence = device.own_entries(table, code)
        accept = accepts(score, self._thresholds(top, limits))
        if rejected == "uniform" and not accept.all():
            device.fill_rows(table, ~accept, share)
        return self._decision(code, top, confidence, score, table, limits)

    def _decision(
        self,
        codes: NDArray[np.intp],
        top: NDArray[np.intp],
        confidence: NDArray[Any] | None,
        score: NDArray[np.float64],
        table: NDArray[Any] | None,
        limits: NDArray[np.float64] | None,
    ) -> Decision:
        score = kernels.rounded(score, grid_of(self.score))
        answer, accept = self.classes[codes], accepts(score, self._thresholds(top, limits))
        label = answer if self.is_calibrator else np.where(accept, answer, np.asarray(self.reject_label))
        return Decision(label, answer, confidence, accept, score, table, top)
