"""LogitsSource: rows of logits or probabilities as the source of a stage, with the map that calibrates
them and a score.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from metacal import kernels
from metacal.certificates.certificate import accepts
from metacal.certificates.counts import OPTIONAL
from metacal.errors import InputError
from metacal.formulas import Codes, Flags, Float
from metacal.gate.decision import Decision, DecisionOptions
from metacal.gate.thresholds import Thresholds, get_decision_offsets
from metacal.maps.map import Map
from metacal.maps.methods import find_map_method
from metacal.rows import Rows
from metacal.rows.stored import ConvertedTable
from metacal.rows.validate import (
    encode_labels,
    has_one_score_per_row,
    read_logits,
    scores_to_two_columns,
)
from metacal.scores import Score, grid_of, name_of, needs_logits, ranked_block, resolve, score_rows


@dataclass(frozen=True)
class Recipe:
    """How a map was fitted: the estimator's public name and its parameters, for whoever wants to
    fit it again.
    """

    estimator: str
    parameters: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, eq=False)
class LogitsSource:
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
    decision_at : float
        Of two classes: the log-odds above which a row is answered by the second. The score ranks
        rows by how far from there they are; probabilities are those of the logits as they come.
    score_column : str or None
        Of two classes: how files call the one score that speaks for the second, where a file did.
    """

    map: Map
    classes: NDArray[Any]
    score: str | Score = "entropy"
    input: str = "logits"
    recipe: Recipe | None = None
    classes_given: bool = False
    decision_at: float = field(default=0.0, metadata=OPTIONAL)
    score_column: str | None = field(default=None, metadata=OPTIONAL)
    kind: ClassVar[str] = "logits"

    def __post_init__(self) -> None:
        classes = np.array(self.classes)
        classes.flags.writeable = False
        object.__setattr__(self, "classes", classes)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, LogitsSource):
            return NotImplemented
        same = all(
            getattr(self, name) == getattr(other, name)
            for name in ("map", "score", "input", "decision_at")
        )
        return same and np.array_equal(self.classes, other.classes)

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"{type(self.map).__name__}, {self.n_classes} classes"

    @property
    def n_classes(self) -> int:
        """K."""
        return len(self.classes)

    @cached_property
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
        method = find_map_method(type(self.map))
        return type(self.map).__name__ if method is None else method.public_name

    @property
    def whole_blocks(self) -> bool:
        """Whether both score and map give the same bits whatever block their rows come in, and want
        no strips.
        """
        return self.map.whole_blocks and getattr(
            resolve(self.score).unrounded, "takes_whole_blocks", False
        )

    def read(self, table: Any, *, by_rows: bool = False) -> Any:
        """A caller's table as checked logits: the right number of columns, finite or masked, never
        guessed at.

        With `by_rows` no second table is made: what has to be converted is converted when its rows
        are read.
        """
        if self.n_classes == 2 and has_one_score_per_row(table):
            table = scores_to_two_columns(table, self.input)
        logits = read_logits(table, self.input, by_rows=by_rows)
        if logits.shape[1] != self.n_classes:
            raise InputError(
                f"this gate was fitted on {self.n_classes} classes; the table has {logits.shape[1]}"
                " columns. Give predictions of the same classifier."
            )
        return logits

    def rows(self, given: Any) -> Rows:
        """What a caller gives, read, unless it is rows already."""
        return given if isinstance(given, Rows) else Rows(self.read(given))

    def checked(self, logits: Any) -> Rows:
        """What `read` gave, to be decided on without being checked again."""
        return Rows(logits)

    def code(self, label: Any) -> int | None:
        """The column of a label; None where it is none of the classes."""
        return self.code_of.get(label)

    def codes(self, truth: Any, n_rows: int) -> Codes:
        """Each label's column."""
        return encode_labels(truth, n_rows, self.classes)

    def doubts(self, rows: Rows) -> Float:
        """The ranking score of each row."""
        return score_rows(moved_rows(rows, self.decision_at), self.score)

    def _moved_by(self, policy: Thresholds, groups: Codes | None) -> float | Float:
        """The log-odds at which rows are decided, of two classes: those of all, or of the group of
        each.
        """
        return (
            get_decision_offsets(policy, groups)
            if policy.decision_offsets and groups is not None
            else self.decision_at
        )

    def _at(self, policy: Thresholds, groups: Codes | None, block: NDArray[Any]) -> NDArray[Any]:
        """A block as it is decided on."""
        at = self._moved_by(policy, groups)
        return moved(at, block) if policy.decision_offsets or at else block

    def accepts(self, rows: Rows, policy: Thresholds, groups: Codes | None) -> Flags:
        """Whether each row is accepted; `groups` are the numbers of the rows' groups, where the
        policy goes by them.
        """
        there = moved_rows(rows, self._moved_by(policy, groups))
        top = (
            there.collect(kernels.predicted)
            if policy.by == "class" or policy.decision_offsets
            else None
        )
        return accepts(
            score_rows(there, self.score),
            policy.get_row_thresholds(top if groups is None else groups, top),
        )

    def decide(self, rows: Rows, asked: DecisionOptions) -> Decision:
        """Answer, confidence, decision and probabilities from one walk over the table; the gate
        gives labels.
        """
        if rows.on_device:
            return self._decide_on_device(rows, asked)
        n, dtype = len(rows), np.float64 if rows.table.dtype == np.float64 else np.float32
        score, top, code = np.empty(n), np.empty(n, dtype=np.intp), np.empty(n, dtype=np.intp)
        made = (
            [np.empty((n, rows.n_classes), dtype=dtype), np.empty(n, dtype=dtype)]
            if asked.with_probabilities
            else []
        )
        columns = (
            [score, top, code, *made]
            if asked.group_codes is None
            else [score, top, code, *made, asked.group_codes]
        )
        rows.fill(partial(self._decide_block, asked, dtype), *columns, whole=self.whole_blocks)
        return self._decision(asked, code, top, score, *made)

    def write(
        self,
        policy: Thresholds,
        block: NDArray[Any],
        out: NDArray[Any],
        groups: Codes | None = None,
    ) -> None:
        """Write the probabilities of a block of logits into `out`, 1/K where it is rejected."""
        # First: `out` may be the block itself.
        there = self._at(policy, groups, block)
        accept = self._accepts_block(policy, resolve(self.score).unrounded(there), there, groups)
        self.map.fill(block, out)
        if not accept.all():
            out[~accept] = 1.0 / block.shape[1]

    def _accepts_block(
        self, policy: Thresholds, unrounded: Float, there: NDArray[Any], groups: Codes | None
    ) -> Flags:
        """The decision on scores that are not rounded yet: a settled threshold decides them alike,
        for fewer calls.
        """
        if policy.by is None:
            return accepts(unrounded, grid_of(self.score).settled(policy.threshold))
        top = kernels.predicted(there) if groups is None or policy.decision_offsets else None
        return accepts(unrounded, policy.get_row_thresholds(top if groups is None else groups, top))

    def _decide_block(
        self,
        asked: DecisionOptions,
        dtype: Any,
        block: NDArray[Any],
        score: Float,
        top: Codes,
        code: Codes,
        *more: Any,
    ) -> None:
        """The columns of a block; `more` are its probabilities, their confidence, if wanted, and
        numbers of groups.
        """
        groups = None if asked.group_codes is None else more[-1]
        more = more[: 2 * asked.with_probabilities]
        there = self._at(asked.thresholds, groups, block)
        score[...] = ranked_block(resolve(self.score).unrounded, there, top)
        code[...] = top
        if not more and not asked.is_calibrator:
            return
        table = more[0] if more else np.empty(block.shape, dtype=dtype)
        self.map.fill(block, table)
        table[np.isnan(score)] = 1.0 / block.shape[1]  # no row of logits: nothing to calibrate
        if asked.is_calibrator:
            code[...] = kernels.predicted(table)
        if more:
            more[1][...] = table[np.arange(len(block)), code]
        if more and asked.rejected == "uniform":
            table[~self._accepts_block(asked.thresholds, score, there, groups)] = (
                1.0 / block.shape[1]
            )

    def _decide_on_device(self, rows: Rows, asked: DecisionOptions) -> Decision:
        there = moved_rows(rows, self._moved_by(asked.thresholds, asked.group_codes))
        score, top = score_rows(there, self.score), there.collect(kernels.predicted)
        if not asked.with_probabilities and not asked.is_calibrator:
            return self._decision(asked, top, top, score)
        device, share = kernels.device_kernels(), 1.0 / rows.n_classes
        table: Any = self.map(rows.table, rows=rows)
        if np.isnan(score).any():
            device.fill_rows(table, np.isnan(score), share)
        code = Rows(table).collect(kernels.predicted) if asked.is_calibrator else top
        if not asked.with_probabilities:
            return self._decision(asked, code, top, score)
        decision = self._decision(asked, code, top, score, table, device.own_entries(table, code))
        if asked.rejected == "uniform" and not decision.accept.all():
            device.fill_rows(table, ~decision.accept, share)
        return decision

    def _decision(
        self,
        asked: DecisionOptions,
        codes: Codes,
        top: Codes,
        score: Float,
        table: Any = None,
        confidence: Any = None,
    ) -> Decision:
        score = kernels.rounded(score, grid_of(self.score))
        accept = accepts(
            score,
            asked.thresholds.get_row_thresholds(
                top if asked.group_codes is None else asked.group_codes, top
            ),
        )
        return Decision(
            accept, score, score, top, confidence, self.classes[codes], probabilities=table
        )


def moved(at: float | Float, block: NDArray[Any]) -> NDArray[np.float64]:
    """A block of two classes where the second is answered above these log-odds: in double, the
    second column less them.

    >>> moved(2.0, np.array([[0.0, 1.5]], dtype=np.float32))
    array([[ 0. , -0.5]])
    """
    return np.asarray(
        np.asarray(block, dtype=np.float64) - np.stack(np.broadcast_arrays(0.0, at), axis=-1)
    )


def moved_rows(rows: Rows, at: float | Float) -> Rows:
    """The same of a whole table; by log-odds of each row it is a table of its own."""
    if not np.any(at):
        return rows
    rows = rows.on_host()
    if isinstance(at, np.ndarray):
        return Rows(moved(at, rows.gathered()), executor=rows.executor)
    return rows.replaced(table=ConvertedTable(rows.table, partial(moved, at), np.float64))


def check_score(score: str | Score, input: str) -> None:
    """Raise unless this score ranks rows of this kind."""
    resolve(score)
    if needs_logits(score) and input == "probabilities":
        raise InputError(
            f"the score {score!r} is the same for every row of probabilities; use 'entropy' or"
            " logits."
        )
