"""State of a watch: as JSON for the live page and `--json`, and as lines of text.

The keys of the state are read by the live page and by users, and must not change.
"""

from __future__ import annotations

from typing import Any

from metacal.gate.watch import Watch
from metacal.gate.watch_acknowledgement import Acknowledgement
from metacal.promises.sequential.alarms import (
    ALARM_MEANINGS,
    ALARM_NAMES,
    Alarm,
    describe_delta_shares,
    explain_incomparable_rows,
)
from metacal.reports.next_steps import list_next_steps

#: Largest number of classes on the live page.
_MAX_CLASSES = 50


def status(
    watch: Watch,
    *,
    artifact: str | None = None,
    file: str | None = None,
    ended: bool = False,
    quarantine: str | None = None,
    silence: dict[str, Any] | None = None,
    command: str | None = None,
    has_state: bool = True,
) -> dict[str, Any]:
    """Return the state of a watch as a JSON-compatible dict.

    Parameters
    ----------
    watch : Watch
        Watch to describe.

    artifact, file : str, default=None
        File of the gate, and file with the watched rows.

    ended : bool, default=False
        Whether the watched file has ended.

    quarantine : str, default=None
        File to which unreadable lines are moved.

    silence : dict, default=None
        State of the alarm for missing input: seconds "after" which it is raised, whether it is
        "raised" now, and how many "times" it was raised.

    command : str, default=None
        Command that goes on with the monitor. None if it does not run on the command line.

    has_state : bool, default=True
        Whether the monitor keeps a state. A watch in Python does.

    Returns
    -------
    dict

    Examples
    --------
    >>> import metacal as mc
    >>> data = mc.datasets.load("cifar10-resnet110")
    >>> cal = mc.MetaCal(mc.MinAccuracy(0.97)).fit(data.logits[:5000], data.labels[:5000])
    >>> watch = mc.Watch.of(cal).update(data.logits[5000:6000], data.labels[5000:6000])
    >>> state = status(watch)
    >>> state["rows"], state["alarm"], [alarm["name"] for alarm in state["alarms"]]
    (1000, False, ['promise', 'abstention', 'score', 'calibration'])
    """
    row_counts = watch.counts
    certificate = watch.gate.certificate
    estimate = watch.estimate
    promise = None if certificate is None else certificate.statement
    raised_alarms = list(watch.raised)
    if silence is not None and silence["raised"]:
        raised_alarms.append("silence")
    coverage = row_counts.accepted / row_counts.rows if row_counts.rows else None
    selective_accuracy = None
    if row_counts.labelled_accepted:
        selective_accuracy = row_counts.correct_accepted / row_counts.labelled_accepted
    estimate_state = None
    if estimate is not None and estimate.accuracy is not None:
        estimate_state = estimate.to_dict()
    return {
        "artifact": artifact,
        "file": file,
        "ended": ended,
        "promise": promise,
        "headline": _format_promise_headline(promise, raised_alarms),
        "levels": _describe_false_alarm_probability(watch),
        "alarm": bool(raised_alarms),
        "raised": raised_alarms,
        **vars(row_counts),
        "coverage": coverage,
        "selective_accuracy": selective_accuracy,
        "agreement": watch.gate.needs_agreement_flags,
        "waiting": len(watch.waiting),
        "unknown": watch.waiting.n_unknown_labels,
        "forgotten": watch.waiting.n_dropped_rows,
        "horizon": watch.waiting.horizon,
        "unlabelled": watch.waiting.n_released_without_label,
        "gaps": watch.gaps,
        "units": _count_clusters(watch),
        "lines": watch.line_counts.n_lines,
        "unreadable": watch.line_counts.n_unreadable,
        "quarantine": quarantine,
        "silence": silence,
        "estimate": estimate_state,
        "alarms": [
            _describe_alarm(alarm, watch.first_raised.get(alarm.name)) for alarm in watch.alarms
        ],
        "acknowledged": [_describe_acknowledgement(period) for period in watch.acknowledgements],
        "next_steps": list_next_steps(
            raised_alarms,
            command=command,
            has_state=has_state,
            is_running=not ended,
            quarantine=quarantine,
        ),
        "missing": _explain_missing_alarms(watch),
        "history": _make_history_columns(watch),
        "classes": _list_class_counts(watch),
    }


def _count_clusters(watch: Watch) -> dict[str, Any] | None:
    """Count complete clusters and stray rows, or return None if rows have no clusters."""
    if not watch.watches_clusters:
        return None
    cluster_counts = watch.waiting.complete_clusters
    return {
        "complete": cluster_counts.n_complete,
        "strays": cluster_counts.n_stray_rows,
        "are_cases": watch.watches_cases,
    }


def _format_promise_headline(promise_statement: str | None, raised_alarm_names: list[str]) -> str:
    """Return the promise as a sentence, after a warning if an alarm is raised."""
    if promise_statement is None:
        return "Nothing is promised; the confidence is watched."
    is_promise_broken = "promise" in raised_alarm_names
    if is_promise_broken:
        return f"No longer kept: {promise_statement}"
    has_other_alarm = len(raised_alarm_names) > 0
    if has_other_alarm:
        return f"In doubt: {promise_statement}"
    return promise_statement


def _describe_alarm(alarm: Alarm, first_row: int | None) -> dict[str, Any]:
    """Convert an alarm, and the row at which it was first raised, to a dict."""
    return {
        "name": alarm.name,
        "meaning": alarm.meaning,
        "raised": alarm.raised,
        "at_row": first_row,
        "delta": alarm.delta,
        "log_evidence": alarm.log_evidence,
        "log_peak": alarm.log_highest_evidence,
        "log_needed": alarm.log_evidence_for_alarm,
        "seen": list(alarm.descriptions),
    }


def _describe_acknowledgement(acknowledgement: Acknowledgement) -> dict[str, Any]:
    """Convert an acknowledgement, and the alarms that it is about, to a dict."""
    return {
        "at_row": acknowledgement.n_rows,
        "time": acknowledgement.time,
        "reason": acknowledgement.reason,
        "alarms": [
            {
                "name": alarm.name,
                "meaning": ALARM_MEANINGS[alarm.name],
                "at_row": alarm.first_row,
                "log_peak": alarm.log_peak,
                "seen": list(alarm.descriptions),
            }
            for alarm in acknowledgement.alarms
        ],
    }


def _describe_false_alarm_probability(watch: Watch) -> str:
    """Describe the probability of a false alarm, in all or in each armed period."""
    levels = describe_delta_shares(watch.alarms)
    if not watch.acknowledgements:
        return levels
    n_periods = len(watch.acknowledgements) + 1
    return f"{levels}; this holds for each of the {n_periods} armed periods"


def _explain_missing_alarms(watch: Watch) -> list[dict[str, str]]:
    """List the alarms that this gate cannot have, each with the reason."""
    gate = watch.gate
    reason_against_score = (
        "it was saved without a profile of its calibration scores, or fitted on fewer than 20"
        " rows; fit again"
    )
    if gate.certificate is None or gate.is_cascade:
        reason_against_score = (
            "a calibrator or a cascade keeps no profile of its calibration scores"
        )
    reason_by_alarm = {
        "promise": "it promises nothing",
        "abstention": "it promises nothing, and rejects nothing",
        "score": reason_against_score,
        "calibration": "its confidence was not fitted to labels",
    }
    # These alarms compare new rows with the calibration rows.
    reason_against_comparison = explain_incomparable_rows(gate.certificate)
    rows_are_comparable = reason_against_comparison == ""
    if not rows_are_comparable:
        for name in ("abstention", "score", "calibration"):
            reason_by_alarm[name] = reason_against_comparison
    present_names = {alarm.name for alarm in watch.alarms}
    return [
        {"name": name, "why": reason_by_alarm[name]}
        for name in ALARM_NAMES
        if name not in present_names and name in reason_by_alarm
    ]


def _make_history_columns(watch: Watch) -> dict[str, Any]:
    """Convert the history of a watch, and its current state, to columns."""
    points = list(watch.history.points)
    if not points or points[-1].rows != watch.counts.rows:
        points.append(watch.current_point)
    history_columns: dict[str, Any] = {}
    for name in ("rows", "accepted", "labelled_accepted", "correct_accepted"):
        history_columns[name] = [getattr(point, name) for point in points]
    history_columns["evidence"] = {
        alarm.name: [point.evidence[index] for point in points]
        for index, alarm in enumerate(watch.alarms)
    }
    return history_columns


def _list_class_counts(watch: Watch) -> list[dict[str, Any]]:
    """List the counts of the predicted classes, the most frequent class first."""
    if not watch.counts_by_class:
        return []
    class_names = watch.gate.classes.tolist()
    class_entries = [
        {"name": str(name), **vars(counts)}
        for name, counts in zip(class_names, watch.counts_by_class)
        if counts.rows
    ]
    class_entries.sort(key=lambda class_entry: -class_entry["rows"])
    return class_entries[:_MAX_CLASSES]
