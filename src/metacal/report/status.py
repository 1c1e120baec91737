"""The state of a watch, for machines and people: JSON for the page and for --json, Prometheus'
text, a few lines.
"""

from __future__ import annotations

import math
from typing import Any

from metacal.gate.watch import Watch
from metacal.promises.sequential.alarms import NAMES, not_comparable, stated

#: Classes that the page lists: those with the most rows.
_MOST_CLASSES = 50
#: exp of more is no float.
_LARGEST_LOG = 700.0


def status(
    watch: Watch,
    *,
    artifact: str | None = None,
    file: str | None = None,
    ended: bool = False,
    quarantine: str | None = None,
    silence: dict[str, Any] | None = None,
) -> dict[str, Any]:
    """All there is to say of a watch, as JSON types.

    Of a `silence`: `after` how many seconds without anything it is an alarm, `raised` now or not,
    `times` that it was.

    Examples
    --------
    >>> import metacal as mc
    >>> data = mc.datasets.load("cifar10-resnet110")
    >>> cal = mc.MetaCal(mc.MinAccuracy(0.97)).fit(data.logits[:5000], data.labels[:5000])
    >>> found = status(mc.Watch.of(cal).update(data.logits[5000:6000], data.labels[5000:6000]))
    >>> found["rows"], found["alarm"], [alarm["name"] for alarm in found["alarms"]]
    (1000, False, ['promise', 'abstention', 'score', 'calibration'])
    """
    counts, certificate, estimate = watch.counts, watch.gate.certificate, watch.estimate
    known = counts.labelled_accepted
    raised = [*watch.raised, *(["silence"] if silence is not None and silence["raised"] else [])]
    return {
        "artifact": artifact,
        "file": file,
        "ended": ended,
        "promise": None if certificate is None else certificate.statement,
        "headline": _headline(None if certificate is None else certificate.statement, raised),
        "levels": stated(watch.alarms),
        "alarm": bool(raised),
        "raised": raised,
        **vars(counts),
        "coverage": counts.accepted / counts.rows if counts.rows else None,
        "accuracy": counts.right_accepted / known if known else None,
        "agreement": watch.gate.reads_agreement,
        "waiting": len(watch.waiting),
        **{
            name: getattr(watch, name)
            for name in ("unknown", "forgotten", "horizon", "unlabelled", "gaps")
        },
        "units": {"complete": watch.complete, "strays": watch.strays} if watch.by_unit else None,
        "lines": sum(one.lines for one in watch.alarms.unreadable),
        "unreadable": sum(one.unreadable for one in watch.alarms.unreadable),
        "quarantine": quarantine,
        "silence": silence,
        "estimate": None if estimate is None or estimate.accuracy is None else estimate.to_dict(),
        "alarms": [_told(alarm, watch.first.get(alarm.name)) for alarm in watch.alarms],
        "missing": _missing(watch),
        "history": _history(watch),
        "classes": _classes(watch),
    }


def _headline(promise: str | None, raised: list[str]) -> str:
    """The promise as it stands: under an alarm it is no fact any more."""
    if promise is None:
        return "Nothing is promised; the confidence is watched."
    if "promise" in raised:
        return f"No longer kept: {promise}"
    return f"In doubt: {promise}" if raised else promise


def _told(alarm: Any, at: int | None) -> dict[str, Any]:
    return {
        "name": alarm.name,
        "meaning": alarm.meaning,
        "raised": alarm.raised,
        "at_row": at,
        "delta": alarm.delta,
        "log_evidence": alarm.evidence,
        "log_peak": alarm.peak,
        "log_needed": alarm.needed,
        "seen": list(alarm.texts),
    }


def _missing(watch: Watch) -> list[dict[str, str]]:
    """What cannot be watched of this gate, and why."""
    have = {alarm.name for alarm in watch.alarms}
    without = watch.gate.certificate is None or watch.gate.kind == "cascade"
    why = {
        "promise": "it promises nothing",
        "abstention": "it promises nothing, and rejects nothing",
        "score": (
            "it was saved without a profile of its calibration scores, or fitted on fewer than 20"
            " rows; fit again"
            if not without
            else "a calibrator or a cascade keeps no profile of its calibration scores"
        ),
        "calibration": "its confidence was not fitted to labels",
    }
    if other := not_comparable(watch.gate.certificate):
        why |= dict.fromkeys(("abstention", "score", "calibration"), other)
    return [{"name": name, "why": why[name]} for name in NAMES if name not in have and name in why]


def _history(watch: Watch) -> dict[str, Any]:
    points = list(watch.history)
    if not points or points[-1].rows != watch.counts.rows:
        points.append(watch.now)
    columns = ("rows", "accepted", "labelled_accepted", "right_accepted")
    names = [alarm.name for alarm in watch.alarms]
    evidence = {name: [point.evidence[k] for point in points] for k, name in enumerate(names)}
    return {
        **{name: [getattr(point, name) for point in points] for name in columns},
        "evidence": evidence,
    }


def _classes(watch: Watch) -> list[dict[str, Any]]:
    if not watch.classes:
        return []
    named = [
        (str(name), counts)
        for name, counts in zip(watch.gate.classes.tolist(), watch.classes)
        if counts.rows
    ]
    named.sort(key=lambda pair: -pair[1].rows)
    return [{"name": name, **vars(counts)} for name, counts in named[:_MOST_CLASSES]]


def lines(found: dict[str, Any]) -> list[str]:
    """A status for people, one line each."""
    told = [found["headline"], ""]
    coverage = "" if found["coverage"] is None else f" ({100 * found['coverage']:.1f}%)"
    told.append(f"  rows         {found['rows']:,}, accepted {found['accepted']:,}{coverage}")
    what = "a label" if found["units"] is None else "the rest of their unit"
    waits = f", {found['waiting']:,} wait for {what}" if found["waiting"] else ""
    good = "as the large model answers" if found["agreement"] else "right"
    right = ""
    if found["accuracy"] is not None:
        right = f", {found['right_accepted']:,} {good} ({100 * found['accuracy']:.2f}%)"
    told.append(
        f"  labelled     {found['labelled']:,}, accepted"
        f" {found['labelled_accepted']:,}{right}{waits}"
    )
    if found["unknown"]:
        late = ", or came after the horizon and were not counted" if found["horizon"] else ""
        told.append(
            f"  unknown      {found['unknown']:,} labels match no row that waits for one{late}"
        )
    gone = f"; {found['unlabelled']:,} had no label by then" if found["unlabelled"] else ""
    if (units := found["units"]) is not None:
        after = (
            f"{found['horizon']:,} rows have come after its first"
            if found["horizon"]
            else "another begins"
        )
        stray = (
            f"; {units['strays']:,} rows came later or are of far too large a unit"
            if units["strays"]
            else ""
        )
        one = f"one counts once {after}{gone}{stray}"
        told.append(f"  units        {units['complete']:,} are complete; {one}")
    elif found["horizon"]:
        told.append(
            f"  horizon      a row counts once {found['horizon']:,} rows have come after it{gone}"
        )
    if found["gaps"]:
        told.append(
            f"  gaps         {found['gaps']:,} times a file was gone or cut off before it was read"
            " to its end"
        )
    if found["unreadable"]:
        where = f", in {found['quarantine']}" if found["quarantine"] else ""
        told.append(
            f"  put aside    {found['unreadable']:,} of {found['lines']:,} lines, which cannot be"
            f" read{where}"
        )
    if found["silence"] is not None and (found["silence"]["times"] or found["silence"]["raised"]):
        often = found["silence"]["times"]
        times = "once" if often == 1 else f"{often:,} times"
        told.append(
            f"  silence      ALARM: nothing came in for {found['silence']['after']:g} seconds,"
            f" {times}"
        )
    if found["estimate"] is not None:
        bar = found["estimate"]
        told.append(
            f"  estimate     {100 * bar['accuracy']:.2f}% of the accepted rows are right by their"
            f" confidence alone, {100 * bar['low']:.2f}% to {100 * bar['high']:.2f}%: an estimate,"
            " wrong if the rows have changed"
        )
    told.append("")
    for alarm in found["alarms"]:
        verdict = (
            f"ALARM by row {alarm['at_row']:,}: {alarm['meaning']}"
            if alarm["raised"]
            else "no alarm"
        )
        share = math.exp(min(alarm["log_evidence"] - alarm["log_needed"], _LARGEST_LOG))
        told.append(
            f"  {alarm['name']:<12} {verdict}; {alarm['seen'][0]}; {share:.3g} times the evidence"
            " needed"
        )
        told += [f"               {seen}" for seen in alarm["seen"][1:6]]
    told += [f"  {gone['name']:<12} cannot be watched: {gone['why']}" for gone in found["missing"]]
    return [*told, "", f"  {'levels':<12} {found['levels']}"]
