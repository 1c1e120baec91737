"""State of a watch: as JSON for the live page and `--json`, and as lines of text.

The keys of the state are read by the live page and by users, and must not change.
"""

from __future__ import annotations

from collections.abc import Callable
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
from metacal.reports.evidence import format_evidence
from metacal.reports.next_steps import list_next_steps

#: Largest number of classes on the live page.
_MAX_CLASSES = 50
#: Largest number of facts about an alarm that have a line of their own.
_MAX_FACT_LINES = 5


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


def format_status_lines(state: dict[str, Any]) -> list[str]:
    """Format the state of a watch, as returned by `status`, as lines of text."""
    text_lines = [state["headline"], ""]
    text_lines.append(
        _format_row_counts_line(
            n_rows=state["rows"], n_accepted=state["accepted"], coverage=state["coverage"]
        )
    )
    text_lines.append(
        _format_label_counts_line(
            n_labelled=state["labelled"],
            n_labelled_accepted=state["labelled_accepted"],
            n_correct_accepted=state["correct_accepted"],
            selective_accuracy=state["selective_accuracy"],
            labels_are_agreement=state["agreement"],
            n_waiting_rows=state["waiting"],
            clusters=state["units"],
        )
    )
    text_lines += _format_unknown_label_lines(
        n_unknown_labels=state["unknown"], has_horizon=bool(state["horizon"])
    )
    text_lines += _format_counting_rule_lines(
        clusters=state["units"], horizon=state["horizon"], n_unlabelled=state["unlabelled"]
    )
    text_lines += _format_gap_lines(n_gaps=state["gaps"])
    text_lines += _format_unreadable_lines(
        n_unreadable=state["unreadable"], n_lines=state["lines"], quarantine=state["quarantine"]
    )
    text_lines += _format_silence_lines(state["silence"])
    text_lines += _format_estimate_lines(state)
    text_lines.append("")
    for alarm in state["alarms"]:
        text_lines += _format_alarm_lines(alarm)
    for acknowledgement in state["acknowledged"]:
        text_lines.append(_format_acknowledgement_line(acknowledgement))
    for missing_alarm in state["missing"]:
        missing_text = f"cannot be watched: {missing_alarm['why']}"
        text_lines.append(_format_line(missing_alarm["name"], missing_text))
    text_lines.append("")
    text_lines.append(_format_line("levels", state["levels"]))
    return text_lines


def _format_line(heading: str, text: str) -> str:
    """Format a line of text with its heading in a column of 12 characters."""
    return f"  {heading:<12} {text}"


def _format_row_counts_line(n_rows: int, n_accepted: int, coverage: float | None) -> str:
    """Format a line about the numbers of rows and of accepted rows."""
    row_text = f"{n_rows:,}, accepted {n_accepted:,}"
    if coverage is not None:
        row_text += f" ({100 * coverage:.1f}%)"
    return _format_line("rows", row_text)


def _format_label_counts_line(
    *,
    n_labelled: int,
    n_labelled_accepted: int,
    n_correct_accepted: int,
    selective_accuracy: float | None,
    labels_are_agreement: bool,
    n_waiting_rows: int,
    clusters: dict[str, Any] | None,
) -> str:
    """Format a line about the labelled rows, and the rows that wait for a label.

    Parameters
    ----------
    n_labelled, n_labelled_accepted, n_correct_accepted : int
        Numbers of labelled rows, of accepted rows among them, and of correct rows among these.

    selective_accuracy : float or None
        Share of correct rows among the accepted ones. None without an accepted row with a label.

    labels_are_agreement : bool
        Whether a label tells if the large model of a cascade makes the same prediction.

    n_waiting_rows : int
        Number of rows that wait for a label or for the rest of their cluster.

    clusters : dict or None
        Output of `_count_clusters`.

    Returns
    -------
    str
    """
    label_text = f"{n_labelled:,}, accepted {n_labelled_accepted:,}"
    if selective_accuracy is not None:
        share_text = f"{100 * selective_accuracy:.2f}%"
        if labels_are_agreement:
            label_text += f", {n_correct_accepted:,} as the large model predicts ({share_text})"
        else:
            label_text += f", {n_correct_accepted:,} correct (selective accuracy {share_text})"
    if n_waiting_rows:
        awaited_text = _describe_awaited_input(clusters)
        label_text += f", {n_waiting_rows:,} wait for {awaited_text}"
    return _format_line("labelled", label_text)


def _describe_awaited_input(clusters: dict[str, Any] | None) -> str:
    """Describe the input that a row waits for until it is counted."""
    if clusters is None:
        return "a label"
    if clusters["are_cases"]:
        return "the rest of their case or its labels"
    return "the rest of their unit"


def _format_unknown_label_lines(n_unknown_labels: int, *, has_horizon: bool) -> list[str]:
    """Format a line about the labels that match no waiting row, if there are any."""
    if not n_unknown_labels:
        return []
    unknown_text = f"{n_unknown_labels:,} labels match no row that waits for one"
    if has_horizon:
        unknown_text += ", or came after the horizon and were not counted"
    return [_format_line("unknown", unknown_text)]


def _format_counting_rule_lines(
    clusters: dict[str, Any] | None, horizon: int, n_unlabelled: int
) -> list[str]:
    """Format a line that explains when a row or a cluster of rows is counted.

    Parameters
    ----------
    clusters : dict or None
        Output of `_count_clusters`.

    horizon : int
        Number of later rows after which a row is counted. 0 if there is no horizon.

    n_unlabelled : int
        Number of rows whose label had not come by then.

    Returns
    -------
    list of str
        One line, or none if rows are counted as soon as they are labelled.
    """
    unlabelled_text = ""
    if n_unlabelled:
        unlabelled_text = f"; {n_unlabelled:,} had no label by then"
    if clusters is None:
        if not horizon:
            return []
        row_text = f"a row counts once {horizon:,} rows have come after it{unlabelled_text}"
        return [_format_line("horizon", row_text)]

    completion_text = "another begins"
    if horizon:
        completion_text = f"{horizon:,} rows have come after its first"
    if clusters["are_cases"]:
        completion_text += " and it has all of its labels"
    n_complete_clusters = clusters["complete"]
    n_stray_rows = clusters["strays"]
    cluster_text = f"{n_complete_clusters:,} are complete; one counts once {completion_text}"
    cluster_text += unlabelled_text
    if n_stray_rows:
        cluster_text += f"; {n_stray_rows:,} rows came later or are of far too large a unit"
    return [_format_line("cases" if clusters["are_cases"] else "units", cluster_text)]


def _format_gap_lines(n_gaps: int) -> list[str]:
    """Format a line about the files that were lost before their end, if there are any."""
    if not n_gaps:
        return []
    gap_text = f"{n_gaps:,} times a file was gone or cut off before it was read to its end"
    return [_format_line("gaps", gap_text)]


def _format_unreadable_lines(n_unreadable: int, n_lines: int, quarantine: str | None) -> list[str]:
    """Format a line about the unreadable input and the file that it was moved to."""
    if not n_unreadable:
        return []
    unreadable_text = f"{n_unreadable:,} of {n_lines:,} lines, which cannot be read"
    if quarantine:
        unreadable_text += f", in {quarantine}"
    return [_format_line("put aside", unreadable_text)]


def _format_silence_lines(silence: dict[str, Any] | None) -> list[str]:
    """Format a line about the alarm for missing input, if it was ever raised."""
    if silence is None:
        return []
    n_times_raised = silence["times"]
    if not (n_times_raised or silence["raised"]):
        return []
    silent_seconds = silence["after"]
    times_text = "once" if n_times_raised == 1 else f"{n_times_raised:,} times"
    silence_text = f"ALARM: nothing came in for {silent_seconds:g} seconds, {times_text}"
    return [_format_line("silence", silence_text)]


def _format_estimate_lines(state: dict[str, Any]) -> list[str]:
    """Format a line about the accuracy that the confidence alone implies."""
    estimate = state["estimate"]
    if estimate is None:
        return []
    estimate_text = (
        f"selective accuracy {100 * estimate['accuracy']:.2f}%"
        f" ({100 * estimate['low']:.2f}% to {100 * estimate['high']:.2f}%), from confidence alone:"
        " not valid if the rows have changed"
    )
    return [_format_line("estimate", estimate_text)]


def _format_alarm_lines(alarm: dict[str, Any]) -> list[str]:
    """Format lines about an alarm: its verdict, its evidence, and the observed facts."""
    verdict = "no alarm"
    if alarm["raised"]:
        verdict = f"ALARM by row {alarm['at_row']:,}: {alarm['meaning']}"
    peak_evidence = format_evidence(alarm["log_peak"])
    needed_evidence = format_evidence(alarm["log_needed"])
    first_fact, *other_facts = alarm["seen"]
    verdict_text = f"{verdict}; {first_fact}; evidence {peak_evidence}, alarm at {needed_evidence}"
    text_lines = [_format_line(alarm["name"], verdict_text)]
    for fact in other_facts[:_MAX_FACT_LINES]:
        text_lines.append(_format_line("", fact))
    return text_lines


def _format_acknowledgement_line(acknowledgement: dict[str, Any]) -> str:
    """Format a line about one acknowledgement and its alarms."""
    alarm_texts = [
        f"{alarm['name']} (by row {alarm['at_row']:,})" for alarm in acknowledgement["alarms"]
    ]
    return _format_line(
        "acknowledged",
        f"at row {acknowledgement['at_row']:,}, {acknowledgement['time']}:"
        f" {', '.join(alarm_texts)}: {acknowledgement['reason']}",
    )


def format_next_step_lines(state: dict[str, Any], wrap: Callable[[str], str]) -> list[str]:
    """Format the next steps as lines of text, without wrapping the commands."""
    text_lines = []
    for number, step in enumerate(state["next_steps"]):
        heading = "to do" if number == 0 else ""
        text_lines.append(wrap(_format_line(heading, step["text"])))
        if step["command"] is not None:
            text_lines.append(_format_line("", step["command"]))
    return text_lines
