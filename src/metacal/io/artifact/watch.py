"""State of a watch as a JSON object.

A *watch* monitors the traffic of a gate with several alarms. Its state belongs to one gate: it
contains the fingerprint of the gate's document, and the alarms must be those of that gate, at the
same significance levels. The state is checked before it is used.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any, Literal

from metacal.certificates.stored_fields import stored_as
from metacal.errors import ArtifactError, ForeignFileError
from metacal.gate import Gate
from metacal.gate.traffic import ConfidenceSums, Counts, Id, PendingRow, Point
from metacal.gate.waiting_rows import CompleteClusters
from metacal.gate.watch import Watch
from metacal.gate.watch_acknowledgement import (
    Acknowledgement,
)
from metacal.gate.watch_history import History
from metacal.io.artifact.document import SavedContent, encode_document
from metacal.io.artifact.encoding import decode, encode
from metacal.io.artifact.registry import (
    STORED_FORM_OF_TYPE,
    StoredForm,
    build_list_form,
)
from metacal.io.artifact.watch_checks import check_watch_state
from metacal.io.artifact.wrapping import checksum
from metacal.promises.sequential.alarms import ALARM_NAMES, Alarms
from metacal.promises.sequential.calibration_monitor import DEFAULT_TOLERANCE

#: Kind of a monitor's journal, and of the JSON object of its watch.
MONITOR = "monitor"

# Maximum number of rows that a monitor has bet on. Counts up to it are exact as floats.
_MAX_ROWS = 2**53

# Attributes of a monitor that change with the observed rows. The others are its settings.
_OBSERVED_ATTRIBUTES = {
    "n_rows",
    "event_sum",
    "n_rejected",
    "n_correct",
    "bin_counts",
    "confidence_sum",
    "n_lines",
    "n_unreadable",
    "n_rows_before_restart",
    "capital",
}


def _dict_to_pairs(mapping: dict[Any, Any], location: str) -> list[tuple[Any, Any]]:
    """Convert a dict to a list of its items."""
    return list(mapping.items())


def _dict_from_pairs(pairs: tuple[tuple[Any, Any], ...], location: str) -> dict[Any, Any]:
    """Convert a list of items to a dict. Raise ArtifactError if a key occurs twice."""
    mapping = dict(pairs)
    if len(mapping) < len(pairs):
        raise ArtifactError("an id waits twice for its label, or an alarm has two first times.")
    return mapping


def _dict_to_keys(mapping: dict[Any, None], location: str) -> list[Any]:
    """Convert a dict whose values are None to a list of its keys."""
    return list(mapping)


def _dict_from_keys(keys: tuple[Any, ...], location: str) -> dict[Any, None]:
    """Convert a list of keys to a dict whose values are None."""
    return dict.fromkeys(keys)


def _pairs_form(stored_type: Any) -> StoredForm:
    """Return the stored form of a dict as a list of its items."""
    return StoredForm(
        stored_type=stored_type, to_stored=_dict_to_pairs, from_stored=_dict_from_pairs
    )


# A file contains many of these objects, so they are stored as short lists.
for _record_class in (Counts, PendingRow, Point):
    STORED_FORM_OF_TYPE[_record_class] = build_list_form(_record_class)
STORED_FORM_OF_TYPE[dict[Id, PendingRow]] = _pairs_form(tuple[tuple[Id, PendingRow], ...])
STORED_FORM_OF_TYPE[dict[str, int]] = _pairs_form(
    tuple[tuple[Literal[ALARM_NAMES], int], ...]  # type: ignore[valid-type]
)
STORED_FORM_OF_TYPE[dict[Id, None]] = StoredForm(
    stored_type=tuple[Id, ...], to_stored=_dict_to_keys, from_stored=_dict_from_keys
)


@dataclass
class WatchState:
    """State of a watch as it is stored in a file.

    Attributes
    ----------
    alarms : Alarms
        Monitors with their evidence.

    counts, counts_by_class : Counts, and list of Counts
        Numbers of rows, in total and for each class.

    waiting_rows : dict of row id to PendingRow
        Rows that wait for their label, or for the rest of their cluster.

    n_unknown_labels, n_dropped_rows, n_released_without_label : int
        Labels without a waiting row, rows that were dropped because too many were waiting, and
        rows that were released without a label.

    n_gaps : int
        Number of times that rows were lost before they were read.

    confidence_sum, variance_sum : float
        Sums over the accepted rows, see `ConfidenceSums`.

    history_stride, history_points : int, and list of Point
        Interval and points of the history.

    first_raised : dict of alarm name to int
        Number of rows when each alarm was first raised.

    horizon : int
        Number of later rows after which a row is used.

    recent_cluster_ids : dict of cluster id to None
        Ids of the latest complete clusters, in order.

    n_complete_clusters, n_stray_rows : int
        Number of all complete clusters, and of stray rows, see `CompleteClusters`.

    acknowledgements : list of Acknowledgement
        Acknowledged alarms, the oldest first.
    """

    alarms: Alarms
    counts: Counts
    counts_by_class: list[Counts] = field(metadata=stored_as("classes"))
    waiting_rows: dict[Id, PendingRow] = field(metadata=stored_as("waiting"))
    n_unknown_labels: int = field(metadata=stored_as("unknown"))
    n_dropped_rows: int = field(metadata=stored_as("forgotten"))
    n_gaps: int = field(metadata=stored_as("gaps"))
    confidence_sum: float = field(metadata=stored_as("confidence"))
    variance_sum: float = field(metadata=stored_as("variance"))
    history_stride: int = field(metadata=stored_as("stride"))
    history_points: list[Point] = field(metadata=stored_as("history"))
    first_raised: dict[str, int] = field(metadata=stored_as("first"))
    horizon: int
    n_released_without_label: int = field(metadata=stored_as("unlabelled"))
    recent_cluster_ids: dict[Id, None] = field(metadata=stored_as("closed"))
    n_complete_clusters: int = field(metadata=stored_as("complete"))
    n_stray_rows: int = field(metadata=stored_as("strays"))
    acknowledgements: list[Acknowledgement]

    @classmethod
    def from_watch(cls, watch: Watch) -> WatchState:
        """Copy the state of a watch that a file stores, without its gate."""
        waiting = watch.waiting
        complete_clusters = waiting.complete_clusters
        return cls(
            alarms=watch.alarms,
            counts=watch.counts,
            counts_by_class=watch.counts_by_class,
            waiting_rows=waiting.rows_by_id,
            n_unknown_labels=waiting.n_unknown_labels,
            n_dropped_rows=waiting.n_dropped_rows,
            n_gaps=watch.gaps,
            confidence_sum=watch.confidence_sums.confidence,
            variance_sum=watch.confidence_sums.variance,
            history_stride=watch.history.stride,
            history_points=watch.history.points,
            first_raised=watch.first_raised,
            horizon=waiting.horizon,
            n_released_without_label=waiting.n_released_without_label,
            recent_cluster_ids=complete_clusters.recent_ids,
            n_complete_clusters=complete_clusters.n_complete,
            n_stray_rows=complete_clusters.n_stray_rows,
            acknowledgements=watch.acknowledgements,
        )

    def restore_to(self, new_watch: Watch) -> Watch:
        """Return a copy of a new watch that continues from this state."""
        complete_clusters = CompleteClusters(
            recent_ids=self.recent_cluster_ids,
            n_complete=self.n_complete_clusters,
            n_stray_rows=self.n_stray_rows,
        )
        waiting = replace(
            new_watch.waiting,
            horizon=self.horizon,
            rows_by_id=self.waiting_rows,
            complete_clusters=complete_clusters,
            n_unknown_labels=self.n_unknown_labels,
            n_dropped_rows=self.n_dropped_rows,
            n_released_without_label=self.n_released_without_label,
        )
        return replace(
            new_watch,
            alarms=self.alarms,
            counts=self.counts,
            counts_by_class=self.counts_by_class,
            waiting=waiting,
            history=History(stride=self.history_stride, points=self.history_points),
            first_raised=self.first_raised,
            gaps=self.n_gaps,
            confidence_sums=ConfidenceSums(
                confidence=self.confidence_sum, variance=self.variance_sum
            ),
            acknowledgements=self.acknowledgements,
        )


def encode_watch(watch: Watch) -> dict[str, Any]:
    """Convert the state of a watch to a JSON object, with the fingerprint of its gate."""
    entries = encode(WatchState.from_watch(watch), "the watch")
    return {"kind": MONITOR, "gate": _gate_checksum(watch.gate), **entries}


def decode_watch(document: Any, gate: Any) -> Watch:
    """Convert a JSON object to a watch that continues to monitor a gate.

    Parameters
    ----------
    document : JSON value
        Object from `encode_watch`.

    gate : Gate or estimator
        Gate that is watched, or an estimator that contains it.

    Returns
    -------
    Watch

    Raises
    ------
    ArtifactError
        If the object is not a valid state, or belongs to another gate.
    """
    if not isinstance(document, dict) or document.get("kind") != MONITOR:
        raise ForeignFileError(
            "the file does not hold the state of a monitor. Pass the file that --state names."
        )
    state_entries = {
        name: entry for name, entry in document.items() if name not in ("kind", "gate")
    }
    state = decode(WatchState, state_entries, "the state")
    # A fitted estimator contains its gate.
    watched_gate: Gate = getattr(gate, "gate_", gate)
    if document.get("gate") != _gate_checksum(watched_gate):
        raise ForeignFileError(
            "the state belongs to another gate. Pass the gate that the monitor was started with,"
            " or start again."
        )
    new_watch = _build_watch_for_alarms(state.alarms, watched_gate)
    if len(state.counts_by_class) != len(new_watch.counts_by_class):
        raise ForeignFileError(
            f"the state counts {len(state.counts_by_class)} classes, but the gate has"
            f" {len(new_watch.counts_by_class)}."
        )
    watch = state.restore_to(new_watch)
    check_watch_state(watch)
    return watch


def _gate_checksum(gate: Gate) -> str:
    """Return the checksum of the saved form of a gate."""
    return checksum(encode_document(SavedContent(gate)))


def watch_settings(watch: Watch) -> dict[str, Any]:
    """Return the settings of a watch, which stay the same while it runs.

    Parameters
    ----------
    watch : Watch
        Watch whose settings are returned.

    Returns
    -------
    dict
        The horizon, delta, and the settings of all monitors by the name of their alarm.
    """
    settings: dict[str, Any] = {"horizon": watch.waiting.horizon, "delta": watch.alarms.delta}
    for name in ALARM_NAMES:
        settings[name] = _list_alarm_settings(watch.alarms, name)
    return settings


def _list_alarm_settings(alarms: Alarms, name: str) -> list[dict[str, Any]]:
    """Return the settings of all monitors of an alarm."""
    return [_select_monitor_settings(monitor) for monitor in getattr(alarms, name)]


def _select_monitor_settings(monitor: Any) -> dict[str, Any]:
    """Return the attributes of a monitor that do not depend on the observed rows."""
    return {
        name: value for name, value in vars(monitor).items() if name not in _OBSERVED_ATTRIBUTES
    }


def _build_watch_for_alarms(alarms: Alarms, gate: Gate) -> Watch:
    """Build a new watch on a gate, with the settings of stored alarms.

    Parameters
    ----------
    alarms : Alarms
        Alarms from a file.

    gate : Gate
        Gate to watch.

    Returns
    -------
    Watch

    Raises
    ------
    ArtifactError
        If the alarms of the gate would have other settings.
    """
    # A file contains the monitors but not the parameters of `Watch.of`, which are read from them.
    monitors_of_labels: list[Any] = [*alarms.promise, *alarms.calibration]
    least_probability = min(
        (monitor.least_probability for monitor in monitors_of_labels), default=1.0
    )
    calibration_tolerance = DEFAULT_TOLERANCE
    if alarms.calibration:
        calibration_tolerance = alarms.calibration[0].tolerance
    max_unreadable_share = None
    if alarms.unreadable:
        max_unreadable_share = alarms.unreadable[0].limit
    try:
        new_watch = Watch.of(
            gate,
            alarms.delta,
            least_probability=least_probability,
            tolerance=calibration_tolerance,
            most_unreadable=max_unreadable_share,
        )
    except ValueError as error:
        raise ArtifactError(f"alarms: {error}") from error

    _check_alarms(alarms, new_watch.alarms)
    return new_watch


def _check_alarms(stored_alarms: Alarms, new_alarms: Alarms) -> None:
    """Raise ArtifactError unless stored alarms can have developed from new ones."""
    for alarm_name in ALARM_NAMES:
        stored_settings = _list_alarm_settings(stored_alarms, alarm_name)
        new_settings = _list_alarm_settings(new_alarms, alarm_name)
        if stored_settings != new_settings:
            raise ArtifactError(
                f"the state has the alarm {alarm_name}, but the gate does not have the quantity"
                " that this alarm watches."
            )
        stored_monitors = getattr(stored_alarms, alarm_name)
        new_monitors = getattr(new_alarms, alarm_name)
        for stored_monitor, new_monitor in zip(stored_monitors, new_monitors):
            _check_evidence(stored_monitor, new_monitor)


def _check_evidence(stored_monitor: Any, new_monitor: Any) -> None:
    """Raise ArtifactError if a stored monitor cannot have developed from a new one."""
    capital = stored_monitor.capital
    if _list_initial_guesses(stored_monitor) != _list_initial_guesses(new_monitor):
        raise ArtifactError("the wagers of a monitor differ from those that it started with.")
    is_peak_valid = capital.log_highest_evidence >= max(0.0, capital.log_evidence)
    has_too_many_rows = any(wager.n_rows > _MAX_ROWS for wager in capital.wagers)
    if not is_peak_valid or has_too_many_rows:
        raise ArtifactError("the evidence of a monitor is greater than its highest value.")


def _list_initial_guesses(monitor: Any) -> list[tuple[Any, Any]]:
    """Return the initial imaginary rows and payoffs of the wagers of a monitor."""
    return [
        (wager.n_imaginary_rows, wager.imaginary_payoff_sum) for wager in monitor.capital.wagers
    ]
