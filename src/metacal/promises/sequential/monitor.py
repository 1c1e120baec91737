"""Monitor of a promise on labelled traffic: an anytime-valid e-process.

A certificate is about rows from the source of the calibration rows. If the source changes, the
promise may be broken without notice, so labelled traffic has to be monitored. Frequent inspection
must not cause false alarms. You may inspect an e-process after every row: while the promise is kept,
it ever reaches 1/δ with probability at most δ (Ville's inequality).

References
----------
Ville, "Étude critique de la notion de collectif", 1939. Waudby-Smith & Ramdas, "Estimating means of
bounded random variables by betting", JRSS-B 2024. Ramdas, Grünwald, Vovk & Shafer, "Game-theoretic
statistics and safe anytime-valid inference", Statistical Science 2023.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Self

import numpy as np
from numpy.typing import ArrayLike

from metacal import display
from metacal.certificates.certificate import Certificate
from metacal.certificates.number_format import format_percent_ceil
from metacal.certificates.quantities import get_quantity
from metacal.certificates.quantity import Quantity, format_cost_ceil
from metacal.certificates.stored_fields import stored_as
from metacal.certificates.subgroups import Name
from metacal.errors import InputError, MissingLabelsError, ShapeError
from metacal.promises.sequential.monitor_base import MAX_LOG_OF_FINITE_NUMBER, Monitor, check_flags
from metacal.promises.sequential.monitored_rows import (
    ClusterMembership,
    MonitoredRows,
    compute_relative_costs,
    compute_sampling_weights,
)
from metacal.promises.sequential.wager import Capital, Wager, build_bets_on_mean_above
from metacal.rows.arrays import check_fraction

if TYPE_CHECKING:
    from metacal.certification.row_losses import Losses

#: Fields that must be equal in monitors of the same promise.
_PROMISE_SETTINGS = (
    "quantity",
    "limit",
    "delta",
    "largest_cost",
    "subgroup_names",
    "predicted_class",
    "promised_class",
    "least_probability",
)


@dataclass
class PromiseMonitor(Monitor):
    """Evidence against a promise, updated row by row.

    The promise determines which rows count, and which of them are events:

    - selective accuracy >= β: accepted rows count, incorrect ones are events, and the limit on the
      rate of events is 1 - β;
    - miscoverage <= α: correct rows count, rejected ones are events, and the limit is α;
    - review rate <= B: all rows count, labelled or not, rejected ones are events, and the limit is
      B;
    - cost <= c: accepted rows count. Each is an event to a degree x, its cost as a fraction of the
      largest cost, and the limit is c / largest.

    Let x = 1 for an event, and let q be a predictable plug-in rate of the *earlier* events, never
    below the limit. A row multiplies the evidence by the likelihood ratio
    (q/limit)^x · ((1-q)/(1-limit))^(1-x), and by linear interpolation if x is between 0 and 1. Each
    factor has a mean of at most one while the rate is at most the limit, so P(evidence ever >= 1/δ)
    <= δ. Four such products share the capital, with rates over all rows and over the latest 3,000,
    600 and 120 rows (`sequential.wager`). They also detect a promise that is broken after a long
    good period.

    Labels must not depend on the outcome. Label all rows, or a random sample, for an accuracy also
    a random sample of the accepted rows. If rows are labelled with different known probabilities π,
    all at least `least_probability`, pass them to `update`. A row then has the weight
    least_probability/π. The payoff ξ·(least_probability/π)·(x - limit), where ξ = 1 for a labelled
    row, has mean least_probability · E[x - limit] for every π, and loses nothing on unlabelled rows.

    **Clusters.** Dependent rows, such as the visits of a patient or the frames of a video, form a
    cluster (`units`), and clusters are independent. A bet is on a whole cluster, when it is
    complete. If the promise is about a random row of a random cluster, the payoff is the sum of
    w·(x - limit) over its rows, divided by their number: the mean payoff of a random row. If the
    promise is about rows, the sum is divided by one number S for all clusters. In both cases the
    mean is at most zero while the promise is kept. With fewer than 2S rows no stake loses more than
    the capital. So the capital is the same supermartingale, over clusters.

    Parameters
    ----------
    quantity : "selective accuracy", "miscoverage", "review rate", "cost" or "cost per row"
        Promised quantity.
    limit : float
        Largest rate of events that the promise allows: 1 - β or α. For a cost, its limit as a
        fraction of `largest_cost`.
    delta : float, default=0.05
        Probability of ever raising an alarm while the promise is kept.
    n_rows : int
        Number of rows that counted so far.
    event_sum : float
        Number of events among these rows. For a cost, the sum of the costs as fractions of
        `largest_cost`.
    largest_cost : float, default=1.0
        Largest cost of a row, if a cost is monitored.
    subgroup_names : tuple of str or int, optional
        Classes or groups that are monitored, several if they are pooled. Empty for all rows.
    capital : Capital, optional
        Evidence so far.
    least_probability : float, default=1.0
        Smallest probability with which a row is selected for labelling.
    predicted_class : str or int, optional
        Predicted class of the monitored rows, if both predicted classes of a group are certified.
    promised_class : str or int, optional
        Class that the quantity is about, for promises about two classes.

    Notes
    -----
    The fields contain the whole state: `dataclasses.asdict(monitor)` can be written as JSON, and
    `PromiseMonitor(**saved_fields)` continues from there. `merged` combines monitors of several
    processes, each of which observed rows of its own.

    Examples
    --------
    >>> monitor = PromiseMonitor("selective accuracy", limit=0.03)
    >>> monitor.update(accepted=[True] * 200, correct=[True] * 196 + [False] * 4).alarm
    False
    >>> monitor.update(accepted=[True] * 200, correct=[True, True, True, False, True] * 40).alarm
    True
    """

    quantity: str
    limit: float
    delta: float = 0.05
    n_rows: int = field(default=0, metadata=stored_as("rows"))
    event_sum: float = field(default=0, metadata=stored_as("events"))
    largest_cost: float = field(default=1.0, metadata=stored_as("largest"))
    subgroup_names: tuple[Name, ...] = field(default=(), metadata=stored_as("parts"))
    capital: Capital | None = None
    least_probability: float = 1.0
    predicted_class: Name | None = field(
        default=None, metadata=stored_as("called", is_optional=True)
    )
    promised_class: Name | None = field(default=None, metadata=stored_as("about", is_optional=True))

    def __post_init__(self) -> None:
        self.quantity = get_quantity(self.quantity)
        if not self.monitored_quantity.is_mean_cost:
            # Saved files may contain the number of events as a float, such as 3.0.
            self.event_sum = int(self.event_sum)
        check_fraction("limit", self.limit)
        if not 0.0 < self.least_probability <= 1.0:
            raise InputError(
                "least_probability must be greater than 0 and at most 1, but got"
                f" {self.least_probability!r}."
            )
        # The wager starts with 1/limit imaginary rows, whose event rate is twice the limit.
        self.initialize_capital(Wager(n_imaginary_rows=1.0 / self.limit, imaginary_payoff_sum=1.0))

    @classmethod
    def of(
        cls,
        certificate: Certificate,
        delta: float = 0.05,
        *,
        largest: float | None = None,
        least_probability: float = 1.0,
    ) -> tuple[Self, ...]:
        """Build a monitor for each promise that a certificate states.

        There is one monitor for each promised quantity. If each class or group has its own promise,
        there is one monitor for each class or group that accepts rows. The monitors share delta
        equally. Call `update` of all monitors with all rows, and pass the class or group of each
        row as `row_subgroups`. If the promise is about cases, call `update` with the outcomes of whole cases
        (`metacal.certification.case_outcomes`), not with their items.

        Parameters
        ----------
        certificate : Certificate
            Certificate of the promise.
        delta : float, default=0.05
            Probability of ever raising an alarm while the promise is kept, for all monitors
            together.
        largest : float, optional
            Largest cost of a row, `MaxCost(...).largest`. It is required if a cost is promised.
        least_probability : float, default=1.0
            Smallest probability with which a row is selected for labelling.

        Examples
        --------
        >>> import metacal as mc
        >>> data = mc.datasets.load("cifar10-resnet110")
        >>> cal = mc.MetaCal(mc.MinAccuracy(0.97)).fit(data.logits[:5000], data.labels[:5000])
        >>> [(monitor.quantity, round(monitor.limit, 6)) for monitor in PromiseMonitor.of(cal.certificate_)]
        [('selective accuracy', 0.03)]
        """
        if certificate.has_promise_per_subgroup:
            return cls._build_subgroup_monitors(
                certificate, delta=delta, least_probability=least_probability
            )
        if largest is None and any(quantity.is_mean_cost for quantity, _ in certificate.limits):
            raise MissingLabelsError(
                "A monitor of a cost requires the largest cost of a row. Pass"
                " largest=gate.promise.largest."
            )
        largest_cost = 1.0 if largest is None else largest
        delta_per_monitor = delta / len(certificate.limits)
        monitors = []
        for quantity, target in certificate.limits:
            max_event_rate = quantity.max_violation_rate(target) / largest_cost
            monitor = cls(
                quantity,
                limit=max_event_rate,
                delta=delta_per_monitor,
                largest_cost=largest_cost,
                least_probability=least_probability,
            )
            monitors.append(monitor)
        return tuple(monitors)

    @classmethod
    def _build_subgroup_monitors(
        cls, certificate: Certificate, *, delta: float, least_probability: float
    ) -> tuple[Self, ...]:
        """Build a monitor for each class or group that accepts rows, with equal deltas."""
        assert certificate.subgroups is not None
        # Subgroups that are always rejected have no accepted row, so they have no monitor.
        monitored_subgroups = []
        for accepting_status in ("certified", "accepts everything"):
            for subgroup in certificate.subgroups.items:
                if subgroup.status == accepting_status:
                    monitored_subgroups.append(subgroup)
        delta_per_monitor = delta / max(1, len(monitored_subgroups))
        monitors = []
        for subgroup in monitored_subgroups:
            quantity = subgroup.quantity or certificate.quantity
            target = subgroup.target or certificate.target
            max_event_rate = quantity.max_violation_rate(target)
            monitor = cls(
                quantity,
                limit=max_event_rate,
                delta=delta_per_monitor,
                subgroup_names=subgroup.names,
                least_probability=least_probability,
                predicted_class=subgroup.predicted_class,
                promised_class=subgroup.promised_class,
            )
            monitors.append(monitor)
        return tuple(monitors)

    @property
    def monitored_quantity(self) -> Quantity:
        """Promised quantity that `quantity` names."""
        return get_quantity(self.quantity)

    @property
    def evidence(self) -> float:
        """Evidence against the promise: 1 at the start, 1/delta raises an alarm."""
        return math.exp(min(self.log_evidence, MAX_LOG_OF_FINITE_NUMBER))

    @property
    def highest_evidence(self) -> float:
        """Highest evidence against the promise so far."""
        return math.exp(min(self.log_highest_evidence, MAX_LOG_OF_FINITE_NUMBER))

    def update(
        self,
        accepted: ArrayLike,
        correct: ArrayLike | None = None,
        losses: Losses | None = None,
        *,
        row_subgroups: ArrayLike | None = None,
        probability: ArrayLike | None = None,
        clusters: ClusterMembership | None = None,
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
        row_subgroups : array-like, optional
            Class or group of each row. A monitor of one class or group counts only its own rows.
        probability : array-like of float, optional
            Probability with which each row was selected for labelling. By default all rows were
            selected with the same probability.
        clusters : ClusterMembership, optional
            Cluster of each row. All rows of a cluster must be given at once.
        """
        is_accepted = check_flags(accepted, "accepted")
        n_rows = len(is_accepted)
        sampling_weights = compute_sampling_weights(probability, n_rows, self.least_probability)
        is_correct = None
        if correct is not None:
            is_correct = check_flags(correct, "correct")
        if is_correct is not None and is_accepted.shape != is_correct.shape:
            raise ShapeError(
                f"accepted and correct must have the same length, but got {n_rows} and"
                f" {len(is_correct)} entries."
            )
        monitored_rows = MonitoredRows(is_accepted, is_correct, sampling_weights, clusters=clusters)
        if self.monitored_quantity.conditions_on_true_class:
            monitored_rows = self._convert_to_rows_about_class(monitored_rows, row_subgroups)
        else:
            monitored_rows = monitored_rows.select_rows(
                self.select_monitored_rows(n_rows, row_subgroups)
            )
        self._bet_on_rows(monitored_rows, losses)
        return self

    def _convert_to_rows_about_class(
        self, rows: MonitoredRows, row_subgroups: ArrayLike | None
    ) -> MonitoredRows:
        """Convert acceptance and correctness of rows to flags about the monitored class."""
        n_rows = len(rows.is_accepted)
        is_predicted_as_class = np.zeros(n_rows, dtype=bool)
        is_predicted_as_class[self.select_monitored_rows(n_rows, row_subgroups)] = True
        # Rows of another predicted class stay, because their true class may be the monitored one.
        rows_about_class = rows.make_flags_about_class(is_predicted_as_class)
        includes_all_groups = not self.monitors_predicted_class_in_groups
        if includes_all_groups:
            return rows_about_class
        is_in_monitored_group = self.select_rows_of_either_predicted_class(n_rows, row_subgroups)
        return rows_about_class.select_rows(is_in_monitored_group)

    def _bet_on_rows(self, rows: MonitoredRows, losses: Losses | None) -> None:
        """Bet on the counted rows, and add their events to the total."""
        quantity = self.monitored_quantity
        if quantity.is_mean_cost:
            # Correctness is not needed here, because only acceptance decides whether a cost counts.
            unused_correctness = np.zeros_like(rows.is_accepted)
            _, is_counted = quantity.compute_numerator_and_denominator_masks(
                rows.is_accepted, unused_correctness
            )
            event_values = compute_relative_costs(
                losses,
                rows.is_accepted,
                quantity=self.monitored_quantity,
                largest_cost=self.largest_cost,
            )
        else:
            _, is_counted = quantity.compute_numerator_and_denominator_masks(
                rows.is_accepted, rows.is_correct
            )
            is_event = quantity.find_violations(rows.is_accepted, rows.is_correct)
            event_values = is_event.astype(np.float64)
        if len(event_values) == 0:
            return
        bet_values = event_values
        bet_weights = rows.sampling_weights[is_counted]
        if rows.clusters is not None:
            counted_clusters = rows.clusters.select_rows(is_counted)
            bet_values, bet_weights = counted_clusters.compute_cluster_means_and_weights(
                event_values, bet_weights
            )
        bets = build_bets_on_mean_above(bet_values, limit=self.limit, weights=bet_weights)
        self.current_capital.bet([bets])
        self.n_rows += len(event_values)
        new_event_sum = float(event_values.sum())
        if quantity.is_mean_cost:
            self.event_sum += new_event_sum
        else:
            self.event_sum += int(new_event_sum)

    @property
    def rate(self) -> float | None:
        """Weighted rate of events since the last merge, or None without rows."""
        (wager,) = self.current_capital.wagers
        if wager.weight_sum <= 0.0:
            return None
        return self.limit + wager.payoff_sum / wager.weight_sum

    def merged(self, other: Self) -> Self:
        """Merge two monitors of the same promise that observed different rows.

        The new evidence is the product of both, and its peak is its current value. The proof is in
        `Capital.multiply_with`. You may merge as often as you like, but only original monitors: if you
        merge a merged monitor with one of its sources, rows are counted twice. Raises InputError if
        the settings of the monitors differ.

        >>> one, two = (PromiseMonitor("selective accuracy", limit=0.03) for _ in range(2))
        >>> bad = [True, True, False, True] * 10
        >>> _ = one.update([True] * 40, bad), two.update([True] * 40, bad)
        >>> both = one.merged(two)
        >>> both.n_rows, both.event_sum, abs(both.log_evidence - one.log_evidence - two.log_evidence) < 1e-9
        (80, 20, True)
        """
        for name in _PROMISE_SETTINGS:
            if getattr(self, name) != getattr(other, name):
                raise InputError(
                    f"Only monitors for the same promise can be merged, but {name} is"
                    f" {getattr(self, name)!r} in one monitor and {getattr(other, name)!r} in the"
                    " other."
                )
        return replace(
            self,
            n_rows=self.n_rows + other.n_rows,
            event_sum=self.event_sum + other.event_sum,
            capital=self.current_capital.multiply_with(other.current_capital),
        )

    def restart(self) -> Self:
        """Return a copy of the monitor with its evidence reset, for later rows."""
        return replace(self, n_rows=0, event_sum=0, capital=None)

    @property
    def subgroup_text(self) -> str:
        """Monitored classes or groups in words, with the quantity if it is about a class."""
        if self.promised_class is None:
            return super().subgroup_text
        quantity_name = self.monitored_quantity.name_with_class(self.promised_class)
        if self.monitors_predicted_class_in_groups:
            return f"{', '.join(map(str, self.subgroup_names))}, {quantity_name}"
        return quantity_name

    @property
    def summary(self) -> str:
        """Number of observed events and their limit, as a phrase."""
        quantity = self.monitored_quantity
        if quantity.is_mean_cost:
            mean_cost = self.largest_cost * self.event_sum / max(self.n_rows, 1)
            limit_text = format_cost_ceil(self.largest_cost * self.limit)
            summary = f"{quantity} {mean_cost:.6g} over {self.n_rows:,} rows, limit {limit_text}"
        else:
            events_text = quantity.violations_suffix.format(name=self.promised_class)
            limit_text = format_percent_ceil(self.limit)
            summary = (
                f"{round(self.event_sum):,} of {self.n_rows:,} {events_text}, limit {limit_text}"
            )
        if self.subgroup_names:
            return f"{self.subgroup_text}: {summary}"
        return summary

    def to_frame(self) -> Any:
        """Return the state as a `pandas.DataFrame` with one row.

        For several monitors use `pandas.concat([monitor.to_frame() for monitor in monitors])`.

        >>> monitor = PromiseMonitor("selective accuracy", limit=0.03)
        >>> monitor.update(accepted=[True] * 200, correct=[True] * 196 + [False] * 4).to_frame()["events"].item()
        4
        """
        shown_event_sum = self.event_sum
        if self.monitored_quantity.is_mean_cost:
            total_cost = self.largest_cost * self.event_sum
            shown_event_sum = total_cost
        record = {
            "quantity": self.monitored_quantity.name,
            "parts": self.subgroup_text or None,
            "class": self.promised_class,
            "limit": self.largest_cost * self.limit,
            "delta": self.delta,
            "rows": self.n_rows,
            "events": shown_event_sum,
            "evidence": self.evidence,
            "highest_evidence": self.highest_evidence,
            "alarm": self.alarm,
        }
        return display.make_frame([record])

    def __str__(self) -> str:
        return f"{self.summary}: evidence {self.evidence:.3g}, {self._format_verdict()}."

    def _repr_html_(self) -> str:
        verdict = self._format_verdict()
        verdict_sentence = f"{verdict[0].upper()}{verdict[1:]}."
        facts = [
            ("watched", self._describe_monitored_rows()),
            ("seen", self.summary),
            ("evidence", f"{self.evidence:.3g}; {self.highest_evidence:.3g} at its highest"),
            ("alarm at", f"{1.0 / self.delta:.6g}"),
        ]
        return display.make_facts_html(verdict_sentence, facts)

    def _describe_monitored_rows(self) -> str:
        """Describe the monitored quantity with its classes or groups, if any."""
        if self.promised_class is not None:
            return self.subgroup_text
        if self.subgroup_names:
            return f"{self.monitored_quantity}, {self.subgroup_text}"
        return self.monitored_quantity.name

    def _format_verdict(self) -> str:
        """Describe whether the alarm is raised."""
        if self.alarm:
            return f"ALARM, at a false-alarm rate of {format_percent_ceil(self.delta)}"
        return "no alarm"
