"""Is the promise still kept? An e-process on live, labelled traffic, valid at any stopping time.

A certificate speaks about rows from the same source as the calibration rows. When the world drifts
nobody is told, so labelled traffic has to be watched; and whoever looks every day must not be
fooled by looking often. An e-process may be looked at after every row: under a kept promise it ever
reaches 1/δ with probability at most δ (Ville's inequality).

Ville 1939; Waudby-Smith & Ramdas, "Estimating means of bounded random variables by betting", JRSS-B
2024; Ramdas, Grünwald, Vovk & Shafer, "Game-theoretic statistics and safe anytime-valid inference",
Statistical Science 2023.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any, Self

import numpy as np
from numpy.typing import ArrayLike

from metacal import display
from metacal.certificates.certificate import Certificate
from metacal.certificates.counts import OPTIONAL
from metacal.certificates.number_format import format_percent_ceil
from metacal.certificates.quantity import Quantity, format_cost_ceil, get_quantity
from metacal.certificates.subgroups import Name
from metacal.errors import InputError
from metacal.formulas import Flags, Float
from metacal.promises.sequential.monitor_base import Monitor
from metacal.promises.sequential.wager import (
    Capital,
    UnitMembership,
    Wager,
    bet_on_mean_above,
    compute_sampling_weights,
)
from metacal.rows.arrays import check_fraction

if TYPE_CHECKING:
    from metacal.certification.row_losses import Losses


@dataclass
class PromiseMonitor(Monitor):
    """Evidence against a promise, updated row by row.

    Which rows count, and what an event is, depends on the promise:

    - coverage accuracy >= β: the accepted rows; an event is a wrong one; the limit on its rate is 1
      - β;
    - miscoverage <= α: the rows that were predicted right; an event is a rejected one; the limit is
      α;
    - review rate <= B: all rows, labelled or not; an event is a rejected one; the limit is B;
    - cost <= c: the accepted rows; each is an event to the degree of what it costs, as a share x of
      the largest cost; the limit is c / largest.

    With x = 1 for an event and q a predictable plug-in rate (of the events seen *before*, never
    below the limit), a row multiplies the evidence by the likelihood ratio (q/limit)^x ·
    ((1-q)/(1-limit))^(1-x); for x between 0 and 1 by what lies on the straight line between the
    two. Each factor has expectation at most one while the rate is at most the limit, so P(evidence
    ever >= 1/δ) <= δ: look as often as you like. Four such products, with rates over all rows and
    over the latest 3,000, 600 and 120, share the stake (`sequential.wager`): a promise that breaks
    after a long good time is noticed too.

    Labels must not be chosen by the outcome: label all rows, or a random sample (of the accepted
    ones, for the first). Where rows are labelled with different, known probabilities π, all at
    least `least_probability`, give them to `update`: a row then counts with weight
    least_probability/π. The payoff ξ·(least/π)·(x - limit), ξ = 1 for a row that was labelled, has
    mean least · E[x - limit], whatever π is, and loses nothing on rows that were not.

    **Units.** Rows that belong together (visits of a patient, frames of a video) are not
    independent, units are. A unit is bet on once, when it is complete, by the sum of its rows'
    payoffs w·(x - limit) over its number of rows where the promise is about a random row of a
    random unit: that is the payoff of a row drawn from it, on average over draws. Where the promise
    is about rows, the sum is divided by one number S for all units. Either way its mean is at most
    zero while the promise is kept, and with fewer than 2S rows no stake loses more than there is:
    the same supermartingale, over units.

    Parameters
    ----------
    quantity : "coverage accuracy", "miscoverage", "review rate", "cost" or "cost per row"
        Which promise.
    limit : float
        The largest rate of events that it allows: 1 - β or α; of a cost, its limit as a share of
        `largest`.
    delta : float
        The chance of ever raising an alarm while the promise is kept.
    rows, events : int
        Rows that counted so far, and events among them (of a cost: their cost, in shares of the
        largest).
    largest : float
        The most that a row can cost, where a cost is watched.
    parts : tuple of str or int, optional
        The class or group that is watched, several where they are pooled; empty: all rows.
    called : str or int, optional
        Where groups have two sides: the class that the rows which are watched are called by.
    about : str or int, optional
        For promises about two classes: the class that the quantity is about.
    capital : Capital
        What the evidence is made of.
    least_probability : float, default 1
        Every row that counts has at least this probability of being labelled.

    Notes
    -----
    All state is in the fields: `dataclasses.asdict(monitor)` is JSON, `PromiseMonitor(**saved)`
    goes on from there. Monitors of several processes, on rows of their own each, become one by
    `merged`.

    Examples
    --------
    >>> monitor = PromiseMonitor("coverage accuracy", limit=0.03)
    >>> monitor.update(accepted=[True] * 200, correct=[True] * 196 + [False] * 4).alarm
    False
    >>> monitor.update(accepted=[True] * 200, correct=[True, True, True, False, True] * 40).alarm
    True
    """

    quantity: str
    limit: float
    delta: float = 0.05
    rows: int = 0
    events: float = 0
    largest: float = 1.0
    parts: tuple[Name, ...] = ()
    capital: Capital | None = None
    least_probability: float = 1.0
    called: Name | None = field(default=None, metadata=OPTIONAL)
    about: Name | None = field(default=None, metadata=OPTIONAL)

    def __post_init__(self) -> None:
        self.quantity = get_quantity(self.quantity)
        self.events = (
            self.events if self.monitored_quantity.is_mean_cost else int(self.events)
        )  # a file may write 3 as 3.0
        check_fraction("limit", self.limit)
        if not 0.0 < self.least_probability <= 1.0:
            raise InputError(
                "least_probability must lie above 0 and at most at 1, got"
                f" {self.least_probability!r}."
            )
        # The first guess of the rate is twice the limit, held with the weight of 1/limit rows.
        self.start_betting(Wager(guess=1.0 / self.limit, guess_gain=1.0))

    @classmethod
    def of(
        cls,
        certificate: Certificate,
        delta: float = 0.05,
        *,
        largest: float | None = None,
        least_probability: float = 1.0,
    ) -> tuple[Self, ...]:
        """A monitor for each promise of a certificate: one, or two at delta/2 where both are
        promised at once.

        `largest` is the most that a row can cost, `MaxCost(...).largest`, where a cost is promised.
        Where each class or group has its own promise there is one monitor for each that accepts
        rows, at delta over their number; give all of them all rows, with the class or group of each
        as `parts`.

        >>> import metacal as mc
        >>> data = mc.datasets.load("cifar10-resnet110")
        >>> cal = mc.MetaCal(mc.MinAccuracy(0.97)).fit(data.logits[:5000], data.labels[:5000])
        >>> [(monitor.quantity, round(monitor.limit, 6)) for monitor in PromiseMonitor.of(cal.certificate_)]
        [('coverage accuracy', 0.03)]
        """
        if certificate.parts is not None:
            promised, target = certificate.quantity, certificate.target
            named = [part for part in certificate.parts.items if part.status == "certified"]
            named += [part for part in certificate.parts.items if part.accepts_everything]
            made = partial(
                cls, delta=delta / max(1, len(named)), least_probability=least_probability
            )
            own = [(part.quantity or promised, part.target or target, part) for part in named]
            return tuple(
                made(
                    each,
                    each.max_violation_rate(limit),
                    parts=part.names,
                    called=part.called,
                    about=part.about,
                )
                for each, limit, part in own
            )
        if largest is None and any(promised.is_mean_cost for promised, _ in certificate.limits):
            raise InputError(
                "to watch a cost, say what a row can cost at most: largest=gate.promise.largest."
            )
        share, unit = delta / len(certificate.limits), 1.0 if largest is None else largest
        made = partial(cls, delta=share, largest=unit, least_probability=least_probability)
        return tuple(
            made(promised, promised.max_violation_rate(limit) / unit)
            for promised, limit in certificate.limits
        )

    @property
    def monitored_quantity(self) -> Quantity:
        return get_quantity(self.quantity)

    @property
    def evidence(self) -> float:
        """How many times likelier the traffic is under a broken promise: 1 says nothing, 1/delta is
        an alarm.
        """
        return math.exp(min(self.log_evidence, 700.0))

    def update(
        self,
        accepted: ArrayLike,
        correct: ArrayLike | None = None,
        losses: Losses | None = None,
        *,
        parts: ArrayLike | None = None,
        probability: ArrayLike | None = None,
        units: UnitMembership | None = None,
    ) -> Self:
        """Update the evidence with labelled rows, in the order in which they arrived.

        Parameters
        ----------
        accepted : array-like of bool
            True for each accepted row.
        correct : array-like of bool, optional
            True for each correct prediction. A review rate does not need it.
        losses : Losses, optional
            Cost of each row (`Gate.losses`), if a cost is promised.
        parts : array-like, optional
            Class or group of each row. A monitor of one class or group counts only its own rows.
        probability : array-like of float, optional
            Probability with which each row was selected for labelling. By default all rows were
            selected with the same probability.
        together : UnitMembership, optional
            Cluster of each row. All rows of a cluster must be given at once.

        Returns
        -------
        PromiseMonitor
            The monitor itself.
        """
        is_accepted = _check_flags(accepted, "accepted")
        n_rows = len(is_accepted)
        row_weights = compute_sampling_weights(probability, n_rows, self.least_probability)
        is_correct = None if correct is None else _check_flags(correct, "correct")
        if is_correct is not None and is_accepted.shape != is_correct.shape:
            raise InputError(
                f"accepted and correct must have one entry per row each; got {n_rows} and"
                f" {len(is_correct)}."
            )
        monitored_rows = self.find_monitored_rows(n_rows, parts)
        if self.monitored_quantity.conditions_on_true_class:
            # The quantity is about all rows of a class, whatever their prediction. A row belongs to
            # the class if it was predicted so correctly, or predicted otherwise incorrectly.
            is_predicted = np.zeros(n_rows, dtype=bool)
            is_predicted[monitored_rows] = True
            is_accepted = is_accepted & is_predicted
            if is_correct is not None:
                is_correct = is_predicted == is_correct
            monitored_rows = slice(None)
            if self.called is not None:
                monitored_rows = self.find_group_rows(n_rows, parts)
        is_accepted = is_accepted[monitored_rows]
        if is_correct is not None:
            is_correct = is_correct[monitored_rows]
        if units is not None:
            units = units.select(monitored_rows)
        self._bet_on_rows(
            is_accepted, is_correct, losses, weights=row_weights[monitored_rows], units=units
        )
        return self

    def _bet_on_rows(
        self,
        is_accepted: Flags,
        is_correct: Flags | None,
        losses: Losses | None,
        *,
        weights: Float,
        units: UnitMembership | None,
    ) -> None:
        """Bet on monitored rows, and count their events.

        Parameters
        ----------
        is_accepted, is_correct : boolean arrays
            Decision and correctness of each monitored row.
        losses : Losses or None
            Cost of each row, if a cost is promised.
        weights : array
            Sampling weight of each row.
        units : UnitMembership or None
            Cluster of each row.
        """
        is_cost = self.monitored_quantity.is_mean_cost
        if is_cost:
            is_counted = self.monitored_quantity.compute_masks(
                is_accepted, np.zeros_like(is_accepted)
            )[1]
            events = self._relative_costs(is_accepted, losses)
        else:
            is_counted = self.monitored_quantity.compute_masks(is_accepted, is_correct)[1]
            events = self.monitored_quantity.find_violations(is_accepted, is_correct).astype(
                np.float64
            )
        if not len(events):
            return
        bet_values = events
        bet_weights = weights[is_counted]
        if units is not None:
            bet_values, bet_weights = units.select(is_counted).average_by_unit(events, bet_weights)
        self.current_capital.bet([bet_on_mean_above(bet_values, self.limit, bet_weights)])
        self.rows += len(events)
        self.events += float(events.sum()) if is_cost else int(events.sum())

    def _relative_costs(self, is_accepted: Flags, losses: Losses | None) -> Float:
        """Return the cost of each counted row as a fraction of the largest cost."""
        if (
            losses is None
            or len(losses.if_accepted) != len(is_accepted)
            or losses.max_loss != self.largest
        ):
            raise InputError(
                "to watch a cost, give losses=gate.losses(codes, answers) of the same rows and"
                " promise."
            )
        return np.asarray(losses.counted_by(self.monitored_quantity, is_accepted) / self.largest)

    @property
    def rate(self) -> float | None:
        """The rate of events so far, rows weighted as they were sampled (since the last merge);
        None without rows.
        """
        (wager,) = self.current_capital.wagers
        _, _, payoffs, *_ = wager.gamblers[0]  # the one that looks back on all rows
        return self.limit + payoffs / wager.weights if wager.weights > 0.0 else None

    def merged(self, other: Self) -> Self:
        """One monitor from two that watched the same promise on different rows: in two processes,
        say.

        The evidence is the product of theirs, and its peak is what it is now: `Capital.merge_with` has
        the proof. Merge as often as you like, always from the monitors themselves and never a
        merged one with one of its parts, which would count rows twice.

        >>> one, two = (PromiseMonitor("coverage accuracy", limit=0.03) for _ in range(2))
        >>> bad = [True, True, False, True] * 10
        >>> _ = one.update([True] * 40, bad), two.update([True] * 40, bad)
        >>> both = one.merged(two)
        >>> both.rows, both.events, abs(both.log_evidence - one.log_evidence - two.log_evidence) < 1e-9
        (80, 20, True)
        """
        for name in (
            "quantity",
            "limit",
            "delta",
            "largest",
            "parts",
            "called",
            "about",
            "least_probability",
        ):
            if getattr(self, name) != getattr(other, name):
                raise InputError(
                    f"monitors of different promises cannot be merged: {name} is"
                    f" {getattr(self, name)!r} in one and {getattr(other, name)!r} in the other."
                )
        capital = self.current_capital.merge_with(other.current_capital)
        return replace(
            self, rows=self.rows + other.rows, events=self.events + other.events, capital=capital
        )

    @property
    def subgroup_text(self) -> str:
        """The classes or groups that are watched and, for two classes, the quantity with its
        class.
        """
        if self.about is None:
            return super().subgroup_text
        quantity_name = self.monitored_quantity.name_with_class(self.about)
        if self.called is None:  # one side of all rows
            return quantity_name
        return f"{', '.join(map(str, self.parts))}, {quantity_name}"

    @property
    def summary(self) -> str:
        bad_among = self.monitored_quantity.violations_suffix.format(name=self.about)
        seen = f"{round(self.events):,} of {self.rows:,} {bad_among}, limit {format_percent_ceil(self.limit)}"
        if self.monitored_quantity.is_mean_cost:
            mean = self.largest * self.events / max(self.rows, 1)
            seen = (
                f"{self.monitored_quantity} {mean:.6g} over {self.rows:,} rows, limit"
                f" {format_cost_ceil(self.largest * self.limit)}"
            )
        return f"{self.subgroup_text}: {seen}" if self.parts else seen

    def to_frame(self) -> Any:
        """One row of a `pandas.DataFrame`; of several monitors `pandas.concat([m.to_frame() for m
        in monitors])`.

        >>> monitor = PromiseMonitor("coverage accuracy", limit=0.03)
        >>> monitor.update(accepted=[True] * 200, correct=[True] * 196 + [False] * 4).to_frame()["events"].item()
        4
        """
        record = {
            "quantity": self.monitored_quantity.name,
            "parts": self.subgroup_text or None,
            "class": self.about,
            "limit": self.largest * self.limit,
            "delta": self.delta,
            "rows": self.rows,
            "events": self.largest * self.events
            if self.monitored_quantity.is_mean_cost
            else self.events,
            "evidence": self.evidence,
            "highest_evidence": math.exp(min(self.log_peak, 700.0)),
            "alarm": self.alarm,
        }
        return display.make_frame([record])

    def __str__(self) -> str:
        return f"{self.summary}: evidence {self.evidence:.3g}, {self._verdict()}."

    def _repr_html_(self) -> str:
        watched = self.subgroup_text
        if self.about is None:
            watched = (
                f"{self.monitored_quantity}, {watched}"
                if self.parts
                else self.monitored_quantity.name
            )
        lines = [
            ("watched", watched),
            ("seen", self.summary),
            (
                "evidence",
                f"{self.evidence:.3g}; {math.exp(min(self.log_peak, 700.0)):.3g} at its highest",
            ),
            ("alarm at", f"{1.0 / self.delta:.6g}"),
        ]
        verdict = self._verdict()
        return display.make_facts_html(f"{verdict[0].upper()}{verdict[1:]}.", lines)

    def _verdict(self) -> str:
        return (
            f"ALARM, at a false-alarm rate of {format_percent_ceil(self.delta)}"
            if self.alarm
            else "no alarm"
        )


def _check_flags(values: ArrayLike, name: str) -> Flags:
    """Convert values to a boolean array. Raise InputError if they are not booleans."""
    array = np.atleast_1d(np.asarray(values))
    if array.size and (array.dtype != np.bool_ or array.ndim != 1):
        raise InputError(f"{name} must be one boolean per row, got an array of {array.dtype}.")
    return array.astype(np.bool_, copy=False).ravel()
