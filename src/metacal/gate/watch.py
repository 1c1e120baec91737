"""Watch: a gate's traffic, row by row: decisions, labels that come later, alarms, and what a page
shows of them.

What comes in is rows, each with an id if its label is to follow, and labels. Labels are taken in
the order in which they become known; a label with its row counts at once, one for an earlier id
when it comes, each once. Nothing depends on how rows are cut into batches: a watch that is stopped,
saved and taken up again ends where it would have ended.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import count
from typing import Any

import numpy as np
from numpy.typing import NDArray

from metacal import display
from metacal.certificates.circumstances import Circumstances
from metacal.certificates.estimate import AccuracyEstimate, estimate_accuracy_from_sums
from metacal.errors import InputError
from metacal.formulas import Codes, Flags, Float
from metacal.gate.find_gate import find_gate
from metacal.gate.gate import Gate
from metacal.gate.judged import check_watchable, select_labels_of_given_answers, stack_model_outputs
from metacal.gate.thresholds import check_groups
from metacal.gate.traffic import (
    BatchLines,
    Counts,
    Id,
    LateLabel,
    PendingRow,
    Point,
    assign_rows_to_units,
    make_stored_id,
    read_unit_ids,
    to_list_without_nan,
)
from metacal.promises.max_risk import CostPromise
from metacal.promises.sequential.alarms import Alarms
from metacal.promises.sequential.drift import DEFAULT_TOLERANCE

#: Rows between two points of the history; doubled, with every second point dropped, when there are
#: too many.
STRIDE, MOST_POINTS = 250, 400
#: Rows that wait for their label, and complete units that are remembered; the oldest are forgotten
#: first.
MOST_WAITING = 40_000
#: Classes that are counted one by one: more cannot be read anyway.
MOST_CLASSES = 2000


@dataclass
class Watch:
    """The traffic of a gate, and the alarms on it.

    Parameters
    ----------
    gate : Gate
        What decides. Of a cascade X has a column of scores, or a table, of each model; abstentions
        are the first one's.
    alarms : Alarms
        `Watch.of(gate, delta=0.05)` makes them.

    Examples
    --------
    >>> import metacal as mc
    >>> data = mc.datasets.load("cifar10-resnet110")
    >>> cal = mc.MetaCal(mc.MinAccuracy(0.97)).fit(data.logits[:5000], data.labels[:5000])
    >>> watch = Watch.of(cal, delta=0.05)
    >>> watch.update(data.logits[5000:7000], data.labels[5000:7000]).raised
    ()
    >>> watch.update(data.logits[7000:9000], ids=range(2000)).counts.labelled  # labels follow
    2000
    >>> watch.label(range(1000), (data.labels[7000:8000] + 1) % 10).raised
    ('promise', 'calibration')
    """

    gate: Gate
    alarms: Alarms
    counts: Counts = field(default_factory=Counts)
    classes: list[Counts] = field(default_factory=list)
    waiting: dict[Id, PendingRow] = field(default_factory=dict)
    unknown: int = 0
    forgotten: int = 0
    gaps: int = 0
    confidence: float = 0.0
    variance: float = 0.0
    stride: int = STRIDE
    history: list[Point] = field(default_factory=list)
    first: dict[str, int] = field(default_factory=dict)
    horizon: int = 0
    unlabelled: int = 0
    #: Units that are complete, the latest; how many in all; rows that came later or of far too
    #: large a unit.
    closed: dict[Id, None] = field(default_factory=dict)
    complete: int = 0
    strays: int = 0

    @classmethod
    def of(
        cls,
        gate: Any,
        delta: float = 0.05,
        *,
        least_probability: float = 1.0,
        tolerance: float = DEFAULT_TOLERANCE,
        most_unreadable: float | None = None,
        horizon: int = 0,
    ) -> Watch:
        """A watch on a gate, or on an estimator that holds one, at delta in all.

        With `most_unreadable` the lines of a stream are watched too: more unreadable ones are an
        alarm.

        Labels may come by outcome, those of wrong answers first: complaints, chargebacks. What is
        known of recent rows is then no sample of them. With a `horizon` a row counts once so many
        rows have come after it, by which time its label has come or never will: in the order of the
        rows, whatever that of the labels. Later labels are not counted, and said. Without (0)
        labels count as they come, which holds where their delay does not depend on them.

        A gate that was certified by units is watched by units: one counts as a whole, when it is
        complete. That is with the first row of another, or with a horizon once so many rows have
        come after its first. Labels that came by then count; later rows of the unit do not, and are
        said.
        """
        if not 0 <= horizon < MOST_WAITING:
            raise InputError(
                f"horizon must be a number of rows from 0 to {MOST_WAITING - 1:,}, got {horizon!r}."
            )
        held = find_gate(gate)
        check_watchable(held)
        largest = held.promise.largest if isinstance(held.promise, CostPromise) else None
        alarms = Alarms.from_certificate(
            held.certificate,
            held.profile,
            delta,
            largest=largest,
            least_probability=least_probability,
            tolerance=tolerance,
            calibrated=held.is_calibrated,
            most_unreadable=most_unreadable,
        )
        n = held.n_classes if held.n_classes <= MOST_CLASSES else 0
        return cls(held, alarms, classes=[Counts() for _ in range(n)], horizon=int(horizon))

    @property
    def raised(self) -> tuple[str, ...]:
        """The names of the alarms that are raised: "promise", "abstention", "score", "calibration",
        ...
        """
        return self.alarms.raised

    def to_frame(self) -> Any:
        """A `pandas.DataFrame`, a row for each alarm."""
        return self.alarms.to_frame()

    def __repr__(self) -> str:
        seen = (
            f"{self.counts.rows:,} rows, {self.counts.accepted:,} accepted,"
            f" {self.counts.labelled:,} labelled"
        )
        said = f"ALARM on {', '.join(self.raised)}" if self.raised else "no alarm"
        return f"Watch({seen}: {said})"

    def _repr_html_(self) -> str:
        return f"<div>{display.make_paragraphs_html(repr(self))}{self.alarms._repr_html_()}</div>"

    @property
    def estimate(self) -> AccuracyEstimate | None:
        """How many of the accepted rows are right by their confidence alone; None where it cannot
        be said.
        """
        certificate = self.gate.certificate
        if (
            certificate is None
            or not certificate.labelled
            or not self.alarms.calibration
            or self.by_unit
        ):
            return None
        return estimate_accuracy_from_sums(
            certificate,
            self.gate.profile,
            n_rows=self.counts.rows,
            n_accepted=self.counts.accepted,
            confidence=self.confidence,
            variance=self.variance,
        )

    def update(
        self,
        X: Any,
        y: Any = None,
        *,
        ids: Sequence[Id | None] | None = None,
        probability: Any = None,
        groups: Any = None,
        units: Sequence[Id] | None = None,
        late: Sequence[LateLabel] = (),
        lines: BatchLines | None = None,
    ) -> Watch:
        """Take in rows in the order they came: what the gate reads, and labels where they are
        known.

        `y` are labels, None or NaN where there is none; of a gate on scores, whether each row is
        right, or its loss; of a cascade over scores, whether the answer that was given is the last
        model's (MaxLoss) or right (MinAccuracy), or the same for each model, as `fit` took it. Rows
        with an id and without a label wait for theirs, which comes by `label` or, where rows and
        labels come mixed, as `late`. `units` names the unit of each row, where the gate was
        certified by units. `probability` is with which each row is chosen to be labelled. There may
        be no row, only late labels. `lines` says what they stood on, where rows come as lines.
        """
        X = self.read(X)
        n, upto = len(X), 0
        codes, names = (
            self._codes(select_labels_of_given_answers(self.gate, X, y), n),
            read_unit_ids(self.gate.certificate, units, n),
        )
        coming = deque(zip(late, self._codes([one.label for one in late], len(late)).tolist()))
        chances = None if probability is None else np.asarray(probability, dtype=np.float64)
        for start, stop in self._blocks(n):
            part = slice(start, stop)
            own = None if groups is None else np.asarray(groups)[part]
            rows = self._decide(
                X[part], codes[part], own, None if chances is None else chances[part]
            )
            told = []
            for k, row in enumerate(rows, start):
                name = None if ids is None else ids[k]
                told += self._complete(row.position)
                while coming and coming[0][0].after <= k:
                    told += self._late(*coming.popleft())
                if names is not None:
                    row.unit = names[k]
                    told += self._complete(row.position, row.unit)
                if row.unit in self.closed:
                    self.strays += 1
                elif row.code >= 0 and not self.horizon and row.unit is None:
                    told.append(row)
                elif row.code >= 0 or row.unit is not None or name is not None:
                    self._wait(f"\0{row.position}" if name is None else name, row)
            told += self._complete(self.counts.rows)
            self._labelled(told)
            if lines is not None:
                read, upto = upto, lines.rows[stop - 1] + 1
                self.alarms.add_lines(lines.unreadable[read:upto])
            if self.counts.rows % self.stride == 0:
                self._remember()
        self._labelled([row for one in coming for row in self._late(*one)])
        if lines is not None:
            self.alarms.add_lines(lines.unreadable[upto:])
            self._notice()
        return self

    def read(self, X: Any) -> Any:
        """Rows as the gate reads them; InputError where it cannot."""
        if not len(X):
            return np.empty(0)
        return (
            stack_model_outputs(self.gate, X)
            if self.gate.is_cascade
            else np.asarray(self.gate.source.read(X))
        )

    def label(self, ids: Sequence[Id], y: Any, probability: Any = None) -> Watch:
        """Take in labels of earlier rows by their ids; those that nobody waits for are counted as
        unknown.
        """
        chances = (
            [None] * len(ids)
            if probability is None
            else np.asarray(probability, dtype=np.float64).tolist()
        )
        labels = list(zip(list(ids), self._codes(y, len(ids)).tolist(), chances, strict=True))
        late = [
            (LateLabel(0, name, None, chance), code) for name, code, chance in labels if code >= 0
        ]
        self._labelled([row for one in late for row in self._late(*one)])
        return self

    def _late(self, one: LateLabel, code: float) -> list[PendingRow]:
        """The row that a label is for, with its code; nothing where nobody waits for it."""
        name = make_stored_id(one.id)
        row = self.waiting.get(name)
        if row is None or row.code >= 0:
            self.unknown += 1
            return []
        row.code = code
        row.probability = row.probability if one.probability is None else one.probability
        return [] if self.horizon or row.unit is not None else [self.waiting.pop(name)]

    def _complete(self, n_rows: int, unit: Id | None = None) -> list[PendingRow]:
        """The rows whose horizon has passed when so many have come, in their order, those that have
        a label.

        Of a unit all rows, labelled or not; without a horizon once a row of another `unit` has
        come.
        """
        told: list[PendingRow] = []
        while self.waiting:
            name, row = next(iter(self.waiting.items()))
            if row.position + self.horizon >= n_rows if self.horizon else unit in (None, row.unit):
                break
            told += self._ended(
                [name]
                if row.unit is None
                else [k for k, r in self.waiting.items() if r.unit == row.unit]
            )
        return told

    def _ended(self, names: list[Id]) -> list[PendingRow]:
        """Rows that wait no longer, whatever comes: one, or those of a unit."""
        rows = [self.waiting.pop(name) for name in names]
        if (unit := rows[0].unit) is not None:
            self.closed[unit] = None
            if len(self.closed) > MOST_WAITING:
                del self.closed[next(iter(self.closed))]
            if len(rows) >= 2 * (self._certified.largest_unit or len(rows)):  # a bet could lose all
                self.strays += len(rows)
                return []
            self.complete += 1
        self.unlabelled += sum(row.code < 0 for row in rows)
        return [row for row in rows if row.code >= 0 or unit is not None]

    def _blocks(self, n: int) -> list[tuple[int, int]]:
        """Batches cut where the history has its points: the same points whatever the batches."""
        cuts = list(range(STRIDE - self.counts.rows % STRIDE, n, STRIDE))
        return list(zip([0, *cuts], [*cuts, n])) if n else []

    def _codes(self, y: Any, n: int) -> NDArray[Any]:
        """Labels as column numbers, -1 where there is none; of a gate on scores 1 for right, 0 for
        wrong, 1 - loss.
        """
        codes = np.full(n, -1, dtype=np.float64 if self.gate.reads_losses else np.intp)
        if y is None:
            return codes
        given = y.tolist() if hasattr(y, "tolist") else list(y)
        if len(given) != n:
            raise InputError(
                f"there are {n} rows but {len(given)} labels; give None where one is not known."
            )
        for k, label in enumerate(given):
            if label is None or label != label:
                continue
            if (code := self.gate.source.encode_one_truth(label)) is None:
                what = (
                    "no loss between 0 and 1"
                    if self.gate.reads_losses
                    else "none of the gate's classes"
                )
                raise InputError(f"the label {label!r} is {what}; give None where it is not known.")
            codes[k] = code
        return codes

    def _decide(
        self, X: Any, codes: NDArray[Any], groups: Any, chances: Float | None
    ) -> list[PendingRow]:
        """Decide a block of rows, count them, and say of each what its label will be compared
        with.
        """
        given = [X] if not self.gate.is_cascade else np.moveaxis(X, 1, 0)
        read = [stage.source.wrap_checked(one) for stage, one in zip(self.gate.stages, given)]
        decision = self.gate.decide(*read, groups=groups)
        accept, top, confidence, nothing = (
            decision.accept,
            decision.top,
            decision.confidence,
            [None] * len(X),
        )
        if not self.by_unit:
            first = accept if decision.by is None else decision.by == 0
            self.alarms.add_decisions(
                first, decision.doubt, self.gate.get_row_subgroups(top, groups)
            )
        number = self.counts.rows
        self._count(top, rows=np.ones_like(accept), accepted=accept)
        self._notice()
        sure: list[Any] = nothing
        if confidence is not None:
            # Where there is no score there is no confidence; such a row is never accepted: nothing
            # is made of it.
            confidence = np.nan_to_num(np.asarray(confidence, dtype=np.float64))
            sure, kept = confidence.tolist(), confidence[accept]
            self.confidence = float(np.cumsum(np.append(self.confidence, kept))[-1])
            self.variance = float(np.cumsum(np.append(self.variance, kept * (1.0 - kept)))[-1])
        named = check_groups(groups).tolist() if self.gate.by_group else nothing
        chance = nothing if chances is None else to_list_without_nan(chances)
        doubts = to_list_without_nan(decision.doubt) if self.by_unit else nothing
        # In the order of a waiting row's fields.
        columns = (
            accept.tolist(),
            top.tolist(),
            sure,
            named,
            chance,
            count(number),
            codes.tolist(),
            nothing,
            doubts,
        )
        return [PendingRow(*row) for row in zip(*columns)]

    def _parts(self, rows: list[PendingRow]) -> NDArray[Any] | None:
        return self.gate.get_row_subgroups(
            np.array([row.top for row in rows]), [row.group for row in rows]
        )

    def _wait(self, name: Id, row: PendingRow) -> None:
        name = make_stored_id(name)
        self.waiting.pop(name, None)  # the later row of that name is the one that a label will mean
        self.waiting[name] = row
        if len(self.waiting) > MOST_WAITING:
            del self.waiting[next(iter(self.waiting))]
            self.forgotten += 1

    @property
    def by_unit(self) -> bool:
        """Whether the gate was certified by units, and is watched by units."""
        return self._certified.units is not None

    @property
    def _certified(self) -> Circumstances:
        return (
            Circumstances()
            if self.gate.certificate is None
            else self.gate.certificate.circumstances
        )

    def _labelled(self, rows: list[PendingRow]) -> None:
        """Rows whose truth has become known, in that order; of units that are complete all rows,
        known or not.
        """
        units = None
        if rows and self.by_unit:
            units = assign_rows_to_units(
                rows, 0 if self._certified.units == "mean" else self._certified.largest_unit
            )
            accept, doubt = (
                np.array([row.accept for row in rows]),
                np.array([row.doubt for row in rows], np.float64),
            )
            self.alarms.add_decisions(accept, doubt, self._parts(rows), units)
            units = units.select(np.array([row.code >= 0 for row in rows]))
            rows = [row for row in rows if row.code >= 0]
            self._notice()
        if not rows:
            return
        accept, top, codes = (
            np.array([getattr(row, name) for row in rows]) for name in ("accept", "top", "code")
        )
        sure, chance = [row.confidence for row in rows], [row.probability for row in rows]
        if None in chance and any(one is not None for one in chance):
            raise InputError(
                "some labelled rows say with which probability they were chosen, others do not; say"
                " all."
            )
        correct = top == codes
        if self.gate.is_cascade:
            correct |= ~accept  # what people answer is good
        confidence, probability = (
            None if None in own else np.array(own, dtype=np.float64) for own in (sure, chance)
        )
        costs, parts = self.gate.losses(codes, top), self._parts(rows)
        self.alarms.add_labelled_rows(
            accept,
            correct,
            confidence,
            losses=costs,
            row_subgroups=parts,
            probability=probability,
            units=units,
        )
        self._count(
            top,
            labelled=np.ones_like(accept),
            labelled_accepted=accept,
            right_accepted=accept & correct,
        )
        self._notice()

    def _count(self, top: Codes, **columns: Flags) -> None:
        """Count rows, all of them and by their answer."""
        self.counts.add(**{name: int(flags.sum()) for name, flags in columns.items()})
        for k in np.unique(top) if self.classes else ():
            self.classes[k].add(
                **{name: int(flags[top == k].sum()) for name, flags in columns.items()}
            )

    def _notice(self) -> None:
        for name in self.raised:
            self.first.setdefault(name, self.counts.rows)

    @property
    def now(self) -> Point:
        """The state as a point of the history."""
        counts = self.counts
        evidence = tuple(round(alarm.log_evidence, 4) for alarm in self.alarms)
        return Point(
            counts.rows, counts.accepted, counts.labelled_accepted, counts.right_accepted, evidence
        )

    def _remember(self) -> None:
        self.history.append(self.now)
        if len(self.history) > MOST_POINTS:
            self.history = self.history[1::2]
            self.stride *= 2
