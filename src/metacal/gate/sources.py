"""What a stage of a gate ranks rows by: a `Table` of logits with its map and score, or `Marks`, a score that is given.

Both read what a caller gives, turn it into doubts (higher = less sure) and calibrated confidence, and say which code
the true answer has. A row is right where the code of its answer is that of the truth.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray

from metacal import kernels
from metacal.errors import InputError
from metacal.gate.decision import Codes, Decision, Flags
from metacal.kernels.grid import RELATIVE
from metacal.maps.curves.confidence import ConfidenceCurve
from metacal.maps.map import Map
from metacal.maps.methods import method_of_map
from metacal.promises.certificate import Certificate, accepts
from metacal.promises.fingerprint import RUN
from metacal.promises.parts.thresholds import Policy
from metacal.promises.promise import Promise
from metacal.promises.rules.costs import Costed, Losses
from metacal.rows import Rows, run_rows
from metacal.rows.score_columns import correct_column, score_column
from metacal.rows.validate import label_codes, logits_from
from metacal.scores import Score, grid_of, name_of, ranked_block, resolve, score_rows

Float = NDArray[np.float64]
#: What probabilities a rejected row gets: the calibrated ones, or 1/K in every class, the paper's map.
Rejected = Literal["calibrated", "uniform"]
#: What a higher score says of a row.
HigherIs = Literal["surer", "doubtful"]
HIGHER_IS: tuple[HigherIs, ...] = ("surer", "doubtful")
#: Longer names of scores are cut: they stand in certificates.
_LONGEST_NAME = 80


@dataclass(frozen=True)
class Recipe:
    """How a map was fitted: the estimator's public name and its parameters, for whoever wants to fit it again."""

    estimator: str
    parameters: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, eq=False)
class Table:
    """Rows of logits or probabilities: a map to calibrated probabilities, and a ranking score.

    Attributes
    ----------
    map : Map
        The base map: logits to calibrated probabilities.
    classes : array of shape (K,)
        The labels in column order.
    score : str or callable
        The ranking score, by its name where it has one.
    input : "logits" or "probabilities"
        What the columns of a table are.
    recipe : Recipe or None
        How the base map was fitted.
    classes_given : bool
        Whether the classes were named, and are not just the column numbers.
    """

    map: Map
    classes: NDArray[Any]
    score: str | Score = "entropy"
    input: str = "logits"
    recipe: Recipe | None = None
    classes_given: bool = False
    kind: ClassVar[str] = "logits"

    def __post_init__(self) -> None:
        classes = np.array(self.classes)
        classes.flags.writeable = False
        object.__setattr__(self, "classes", classes)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Table):
            return NotImplemented
        same = all(getattr(self, name) == getattr(other, name) for name in ("map", "score", "input"))
        return same and np.array_equal(self.classes, other.classes)

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"{type(self.map).__name__}, {self.n_classes} classes"

    @property
    def n_classes(self) -> int:
        """K."""
        return len(self.classes)

    has_confidence: ClassVar[bool] = True

    @property
    def code_of(self) -> dict[Any, int]:
        """Each label's code: its column."""
        return {name: column for column, name in enumerate(self.classes.tolist())}

    @property
    def score_name(self) -> str:
        """What certificates call the score."""
        return name_of(self.score)

    @property
    def calibrator_name(self) -> str:
        """The public name of what fitted the map, as far as it is known."""
        if self.recipe is not None:
            return self.recipe.estimator
        method = method_of_map(type(self.map))
        return type(self.map).__name__ if method is None else method.public_name

    @property
    def run(self) -> int:
        """Rows that a fingerprint of very many takes together."""
        return run_rows(self.n_classes)

    @property
    def whole_blocks(self) -> bool:
        """Whether both score and map give the same bits whatever block their rows come in, and want no strips."""
        return self.map.whole_blocks and getattr(resolve(self.score).unrounded, "walks_blocks", False)

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

    def rows(self, given: Any) -> Rows:
        """What a caller gives, read, unless it is rows already."""
        return given if isinstance(given, Rows) else Rows(self.read(given))

    def checked(self, logits: Any) -> Rows:
        """What `read` gave, to be decided on without being checked again."""
        return Rows(logits)

    def codes(self, truth: Any, n_rows: int) -> Codes:
        """Each label's column."""
        return label_codes(truth, n_rows, self.classes)

    def losses(self, promise: Promise | None, codes: Codes, answers: Codes) -> Losses | None:
        """What each answer costs; None where no cost is promised."""
        return promise.losses(codes, answers) if isinstance(promise, Costed) else None

    def doubts(self, rows: Rows) -> Float:
        """The ranking score of each row."""
        return score_rows(rows, self.score)

    def accepts(self, rows: Rows, policy: Policy, limits: Float | None) -> Flags:
        """Whether each row is accepted; `limits` are the thresholds of rows by their group."""
        top = rows.collect(kernels.predicted) if policy.by == "class" else None
        return accepts(self.doubts(rows), policy.of(top) if limits is None else limits)

    def decide(
        self,
        rows: Rows,
        policy: Policy,
        limits: Float | None,
        *,
        rejected: Rejected = "calibrated",
        probabilities: bool = True,
        calibrator: bool = False,
    ) -> Decision:
        """Answer, confidence, decision and probabilities from one walk over the table; labels are the gate's to give.

        A `calibrator` promises nothing: its answer is the most probable class.
        """
        if rows.on_device:
            return self._decide_on_device(rows, policy, limits, rejected, probabilities, calibrator)
        n, dtype = len(rows), np.float64 if rows.table.dtype == np.float64 else np.float32
        score, top, code = np.empty(n), np.empty(n, dtype=np.intp), np.empty(n, dtype=np.intp)
        if not probabilities:
            rows.fill(partial(self._answer_block, dtype, calibrator), score, top, code, whole=self.whole_blocks)
            return self._decision(policy, limits, code, top, score)
        table, confidence = np.empty((n, rows.n_classes), dtype=dtype), np.empty(n, dtype=dtype)
        columns = (table, confidence, score, top, code, *(() if limits is None else (limits,)))
        rows.fill(partial(self._decide_block, policy, rejected, calibrator), *columns, whole=self.whole_blocks)
        return self._decision(policy, limits, code, top, score, confidence, table)

    def write(self, policy: Policy, block: NDArray[Any], out: NDArray[Any], limits: Float | None = None) -> None:
        """Write the probabilities of a block of logits into `out`, 1/K where it is rejected."""
        # First: `out` may be the block itself.
        accept = self._accepts_block(policy, resolve(self.score).unrounded(block), block, limits)
        self.map.write(block, out)
        if not accept.all():
            out[~accept] = 1.0 / block.shape[1]

    def _accepts_block(self, policy: Policy, unrounded: Float, block: NDArray[Any], limits: Float | None) -> Flags:
        """The decision on scores that are not rounded yet: a settled threshold decides them alike, for fewer calls."""
        if policy.by is None:
            return accepts(unrounded, grid_of(self.score).settled(policy.threshold))
        return accepts(unrounded, policy.of(kernels.predicted(block)) if limits is None else limits)

    def _answer_block(
        self, dtype: Any, calibrator: bool, block: NDArray[Any], score: Float, top: Codes, code: Codes
    ) -> None:
        score[...] = ranked_block(self.score, block, top)
        code[...] = top
        if calibrator:
            room = np.empty(block.shape, dtype=dtype)
            self.map.write(block, room)
            room[np.isnan(score)] = 1.0 / block.shape[1]
            code[...] = kernels.predicted(room)

    def _decide_block(
        self,
        policy: Policy,
        rejected: Rejected,
        calibrator: bool,
        block: NDArray[Any],
        table: NDArray[Any],
        confidence: NDArray[Any],
        score: Float,
        top: Codes,
        code: Codes,
        limits: Float | None = None,
    ) -> None:
        score[...] = ranked_block(self.score, block, top)
        self.map.write(block, table)
        table[np.isnan(score)] = 1.0 / block.shape[1]  # no row of logits: nothing to calibrate
        code[...] = kernels.predicted(table) if calibrator else top
        confidence[...] = table[np.arange(len(block)), code]
        if rejected == "uniform":
            table[~self._accepts_block(policy, score, block, limits)] = 1.0 / block.shape[1]

    def _decide_on_device(
        self,
        rows: Rows,
        policy: Policy,
        limits: Float | None,
        rejected: Rejected,
        probabilities: bool,
        calibrator: bool,
    ) -> Decision:
        score, top = self.doubts(rows), rows.collect(kernels.predicted)
        if not probabilities and not calibrator:
            return self._decision(policy, limits, top, top, score)
        device, share = kernels.device_kernels(), 1.0 / rows.n_classes
        table: Any = self.map(rows.table, rows=rows)
        if np.isnan(score).any():
            device.fill_rows(table, np.isnan(score), share)
        code = Rows(table).collect(kernels.predicted) if calibrator else top
        if not probabilities:
            return self._decision(policy, limits, code, top, score)
        confidence = device.own_entries(table, code)
        decision = self._decision(policy, limits, code, top, score, confidence, table)
        if rejected == "uniform" and not decision.accept.all():
            device.fill_rows(table, ~decision.accept, share)
        return decision

    def _decision(
        self,
        policy: Policy,
        limits: Float | None,
        codes: Codes,
        top: Codes,
        score: Float,
        confidence: NDArray[Any] | None = None,
        table: NDArray[Any] | None = None,
    ) -> Decision:
        score = kernels.rounded(score, grid_of(self.score))
        accept = accepts(score, policy.of(top) if limits is None else limits)
        return Decision(accept, score, score, top, confidence, self.classes[codes], probabilities=table)


@dataclass(frozen=True)
class Marks:
    """A score that is given for each row: an LLM judge's mark, the log-probability of an answer, a similarity.

    There are no classes and no probabilities. What is known of a row is whether it is right: codes are 1 and 0.

    Attributes
    ----------
    score : str
        The name of the score.
    higher_is : "surer" or "doubtful"
        What a higher score says: a confidence is surer, a loss or a perplexity doubtful.
    curve : ConfidenceCurve or None
        From doubt to the probability of being right.
    beside : (float or None, float or None)
        The calibration doubts on either side of the threshold: scores of fewer bits are told from it by them.
    accepting_is_safe : bool
        Whether a row more that is accepted cannot break the promise.
    """

    score: str = "score"
    higher_is: HigherIs = "surer"
    curve: ConfidenceCurve | None = None
    beside: tuple[float | None, float | None] = (None, None)
    accepting_is_safe: bool = False
    kind: ClassVar[str] = "scores"
    classes: ClassVar[NDArray[Any]] = np.empty(0, dtype=np.intp)
    n_classes: ClassVar[int] = 0
    classes: ClassVar[NDArray[Any]] = np.empty(0, dtype=np.intp)
    classes_given: ClassVar[bool] = False
    code_of: ClassVar[dict[Any, int]] = {False: 0, True: 1}

    def __repr__(self) -> str:
        return f"{self.score}, higher is {self.higher_is}"

    @property
    def score_name(self) -> str:
        """What certificates call the doubt: the score's name, with a minus where a higher one is surer."""
        return f"-{self.score}" if self.higher_is == "surer" else self.score

    @property
    def has_confidence(self) -> bool:
        """Whether there is a curve from doubt to the probability of being right."""
        return self.curve is not None

    @property
    def sign(self) -> float:
        """What turns a score into a doubt, and back."""
        return -1.0 if self.higher_is == "surer" else 1.0

    @property
    def run(self) -> int:
        """Rows that a fingerprint of very many takes together."""
        return RUN

    def of(self, certificate: Certificate) -> Marks:
        """The same with what its certificate says of scores beside the threshold."""
        beside = certificate.highest_accepted, certificate.lowest_rejected
        return replace(self, beside=beside, accepting_is_safe=certificate.quantity.accepting_is_safe)

    def read(self, score: Any, *, by_rows: bool = False) -> NDArray[np.floating[Any]]:
        """A caller's scores, one for each row; NaN where there is none."""
        return score_column(score)

    rows = checked = read

    def codes(self, truth: Any, n_rows: int) -> Codes:
        """1 for right, 0 for wrong."""
        right = correct_column(truth)
        if len(right) != n_rows:
            raise InputError(f"there are {n_rows} scores but {len(right)} entries of correct; give one each per row.")
        return right.astype(np.intp)

    def losses(self, promise: Promise | None, codes: Codes, answers: Codes) -> Losses | None:
        """What each row costs, right or wrong; None where no cost is promised."""
        return promise.losses_of(codes == answers) if isinstance(promise, Costed) else None

    def doubts(self, score: NDArray[np.floating[Any]]) -> Float:
        """The score as promises see it: higher is less sure, on the grid; NaN where there is none."""
        return RELATIVE.rounded(self.turned(score))

    def turned(self, score: NDArray[np.floating[Any]]) -> Float:
        """Scores as doubts, not yet on the grid: a settled threshold decides them alike."""
        return (-score if self.higher_is == "surer" else score).astype(np.float64)

    def accepts(self, score: NDArray[np.floating[Any]], policy: Policy, limits: Float | None) -> Flags:
        """Whether each row is accepted; one without a score is not."""
        threshold = self.threshold_for(score.dtype, policy.threshold) if limits is None else limits
        return accepts(self.turned(score), threshold)

    def decide(
        self,
        score: NDArray[np.floating[Any]],
        policy: Policy,
        limits: Float | None,
        *,
        probabilities: bool = True,
        **_: Any,
    ) -> Decision:
        """Decision and confidence of each row."""
        confidence = self.confidence(score) if probabilities else None
        right = np.ones(len(score), dtype=np.intp)
        return Decision(self.accepts(score, policy, limits), score, self.doubts(score), right, confidence)

    def confidence(self, score: Any) -> Float | None:
        """The calibrated probability that each row is right, NaN without a score; None where there is no curve."""
        return None if self.curve is None else self.curve(self.doubts(self.read(score)))

    def threshold_for(self, dtype: Any, threshold: float) -> float:
        """The threshold for scores of a type: the certificate's, or one that float32 or float16 can tell from scores.

        Calibration scores often stand at the threshold, and many new ones with them: every mark of 0.95, say. In
        float32 that is 0.949999988, on the wrong side. So where rounding to the narrower type would carry the
        calibration score on either side across, the threshold moves along with it, by less than half a unit in the
        last place of the type. Where both become one number, such rows are rejected, or accepted if the promise is
        about rejecting too many: the side that cannot break it.

        Examples
        --------
        >>> import metacal as mc
        >>> marks = np.repeat([0.9, 0.95, 0.4], 50)
        >>> gate = mc.ScoreGate(mc.MaxMiscoverage(0.6)).fit(marks, marks > 0.5).gate_
        >>> gate.condition, gate.accepts(np.float32([0.95, 0.9])), gate.accepts([0.95, 0.9])
        ('score >= 0.95', array([ True, False]), array([ True, False]))
        """
        kind = np.dtype(dtype)
        if kind not in (np.float32, np.float16) or not math.isfinite(threshold):
            return threshold
        with np.errstate(over="ignore"):
            high, low = (None if value is None else float(np.asarray(value).astype(kind)) for value in self.beside)
        if high is not None and high > threshold:
            return RELATIVE.just_below(high) if high == low and not self.accepting_is_safe else high
        if low is not None and low <= threshold:
            return low if high == low and self.accepting_is_safe else math.nextafter(low, -math.inf)
        return threshold


#: What a stage ranks rows by.
Source = Table | Marks


def plain_name(name: str) -> str:
    """A name that can stand in a certificate: one printable line, without the minus that marks a turned score.

    Examples
    --------
    >>> plain_name("--confidence"), plain_name(" ")
    ('confidence', 'score')
    """
    printable = "".join(sign if sign.isprintable() else "?" for sign in str(name))[:_LONGEST_NAME]
    return printable.strip().lstrip("-").strip() or "score"
