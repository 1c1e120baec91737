"""Every table of the pages by its name: the results it is made from, and what makes it."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, NamedTuple

from benchmarks import many_classes, precision_gate, two_class
from benchmarks.all.catalogue import CATALOGUE
from benchmarks.all.state import accepted
from benchmarks.pages.numbers import loaded
from benchmarks.paper import tables as paper_tables
from benchmarks.quality import tables as quality_tables
from benchmarks.selective import tables as selective_tables
from benchmarks.tables import calibrators as calibrators_tables
from benchmarks.tables import cases as cases_tables
from benchmarks.tables import constant_threshold as constant_threshold_tables
from benchmarks.tables import cost as cost_tables
from benchmarks.tables import default_base as default_base_tables
from benchmarks.tables import graded_losses as graded_losses_tables
from benchmarks.tables import held_out as held_out_tables
from benchmarks.tables import kills as kills_tables
from benchmarks.tables import labels as labels_tables
from benchmarks.tables import machine as machine_tables
from benchmarks.tables import mapie_on_cases as mapie_on_cases_tables
from benchmarks.tables import monitor as monitor_tables
from benchmarks.tables import promises as promises_tables
from benchmarks.tables import rare_rows as rare_rows_tables
from benchmarks.tables import rules as rules_tables
from benchmarks.tables import two_sided as two_sided_tables
from benchmarks.tables.markdown import table

MARKED = re.compile(
    r"(<!-- (?!end |given)([\w-]+) -->\n)((?:(?!<!-- ).)*)(<!-- end -->)", re.DOTALL
)
EARLIER = "*Measured with an earlier version of the code.*"


class Table(NamedTuple):
    """A table: the result it comes from, and the function that makes its lines from it."""

    result: str
    make: Callable[[Any], list[str]]


def _paper(make: Callable[..., list[str]], *, own: bool = False) -> Table:
    def made(results: Any) -> list[str]:
        sets = paper_tables.by_set(results)
        chosen = {
            name: rows for name, rows in sets.items() if next(iter(rows.values())).of_the_paper
        }
        return make(chosen if own else sets)

    return Table("paper/paper", made)


def _seconds(results: Any) -> list[str]:
    return paper_tables.table_2(
        paper_tables.by_set(results), loaded("paper/paper-seconds")["seconds"]
    )


def _quality(make: Callable[..., list[str]], *more: Any) -> Table:
    return Table("quality/quality", lambda results: make(quality_tables.rows_of(results), *more))


def _selective(make: Callable[..., list[str]], *more: Any) -> Table:
    return Table(
        "selective/selective", lambda results: make(selective_tables.rows_of(results), *more)
    )


_SPEED = "speed"
TABLES: dict[str, Table] = {
    "table-1-paper": _paper(paper_tables.table_1, own=True),
    "table-1": _paper(paper_tables.table_1),
    "table-2": Table("paper/paper", _seconds),
    "table-1-debiased": _paper(paper_tables.debiased_table),
    "dirichlet": _paper(paper_tables.dirichlet_table),
    "dilution": _paper(paper_tables.dilution_table),
    "order": _paper(paper_tables.order_table),
    "promises": _paper(paper_tables.promise_table),
    "trust": _paper(paper_tables.trust_table),
    "threads": Table("threads-16-cores", machine_tables.threads),
    "device": Table("device-h200", machine_tables.device),
    "device-pass": Table("device-pass", machine_tables.device_pass),
    "sixteen-threads": Table("device-pass", machine_tables.sixteen_threads),
    "accuracy-rule": Table("accuracy-rule", rules_tables.accuracy),
    "cost-rule": Table("cost-rule", rules_tables.costs),
    "cheapest": Table("cost-rule", rules_tables.cheapest),
    "per-class": Table("per-class", rules_tables.per_class),
    "score-choice": Table("score-choice", rules_tables.score_choice),
    "cascade": Table("cascade", rules_tables.cascade),
    "cascade-people": Table("cascade", rules_tables.cascade_people),
    "cascade-duel": Table("answers", rules_tables.duel),
    "answer-adversaries": Table("answer-adversaries", rules_tables.adversaries),
    "risk-control": Table("risk-control", rules_tables.risk_control),
    "cascade-stages": Table("answers", rules_tables.stages),
    **{
        name: Table("constant-threshold", make)
        for name, make in constant_threshold_tables.TABLES.items()
    },
    **{name: Table(result, make) for name, (result, make) in mapie_on_cases_tables.TABLES.items()},
    "rare-normal": Table("rare-rows", rare_rows_tables.normal_scores),
    "rare-matching": Table("rare-rows", rare_rows_tables.matching),
    "case-receipts": Table("case-promises", cases_tables.receipts),
    "case-others": Table("case-promises", cases_tables.other_promises),
    "case-synthetic": Table("case-promises", cases_tables.synthetic),
    "graded-losses": Table("graded-losses", graded_losses_tables.populations),
    "near-binary-losses": Table("graded-losses", graded_losses_tables.near_binary),
    "loss-tests": Table("graded-losses", graded_losses_tables.tests),
    "rows-needed": Table("closed-forms", promises_tables.needed),
    "rows-named": Table("how-many-rows", promises_tables.named),
    "units-watched": Table("units", monitor_tables.units),
    "rows-used": Table("closed-forms", promises_tables.used),
    "two-class": Table("two-class", two_class.table),
    "precision-gate": Table("precision-gate", precision_gate.table),
    "two-sided": Table("two-sided", two_sided_tables.beside_mapie),
    "modes": Table("promises", promises_tables.modes),
    "sizes": Table("promises", promises_tables.sizes),
    "after-looking": Table("promises", promises_tables.after_looking),
    "base-rows": Table("promises", promises_tables.base_rows),
    "rankers": Table("rankers", promises_tables.rankers),
    "rankers-order": Table("rankers", promises_tables.rankers_order),
    "rankers-errors": Table("rankers", promises_tables.rankers_errors),
    "rankers-ece": Table("rankers", promises_tables.rankers_ece),
    "held-out": Table("selective-held-out", held_out_tables.comparison),
    "held-out-leads": Table("selective-held-out", held_out_tables.leads),
    "affine": Table("calibrators", calibrators_tables.affine),
    "class-offsets": Table("many-classes", many_classes.offsets),
    "thousand-classes": Table("many-classes", many_classes.thousand),
    "curves": Table("calibrators", calibrators_tables.curves),
    "local": Table("calibrators", calibrators_tables.local),
    "calibrators": Table("calibrators", calibrators_tables.every),
    "data-card": Table("data-card", calibrators_tables.card),
    "scale-constants": Table("scale-cost", cost_tables.constants),
    "scale": Table("scale-cost", cost_tables.scale),
    "billion": Table("billion-rows", cost_tables.billion),
    "evaluate": Table("evaluate-command", cost_tables.evaluate),
    "read-files": Table("read-files", cost_tables.read_files),
    "onnx-latency": Table("onnx-latency", cost_tables.onnx),
    "serving": Table("onnx-latency", cost_tables.serving),
    "speed-machine": Table(_SPEED, cost_tables.speed_machine),
    "speed-bars": Table(_SPEED, cost_tables.speed_bars),
    "speed-peers": Table(_SPEED, cost_tables.speed_peers),
    "speed-rest": Table(_SPEED, cost_tables.speed_rest),
    "monitor-false-alarms": Table("monitor", monitor_tables.false_alarms),
    "monitor-delays": Table("monitor", monitor_tables.delays),
    "monitor-estimates": Table("monitor", monitor_tables.estimates),
    "labels-sets": Table("labels", labels_tables.by_set),
    "labels-coverage": Table("labels", labels_tables.by_coverage),
    "labels-hostile": Table("labels", labels_tables.hostile),
    "label-kills": Table("label-kills", kills_tables.label),
    "cluster-kills": Table("cluster-kills", kills_tables.cluster),
    **{f"quality-{n}": _quality(quality_tables.overall, n) for n in (500, 1000, 5000)},
    **{f"quality-beside-{n}": _quality(quality_tables.beside_auto, n) for n in (500, 1000, 5000)},
    "quality-lowest": _quality(lambda rows: quality_tables.lowest(quality_tables.standings(rows))),
    "quality-second-split": Table(
        "quality/quality",
        lambda results: quality_tables.lowest(quality_tables.of_split(results, 1)),
    ),
    "quality-accepted": _quality(quality_tables.accepted),
    "default-base": Table("default-base", default_base_tables.accepted),
    "default-base-sets": Table("default-base", default_base_tables.by_set),
    "joint-band": Table("joint-band", rules_tables.joint_band),
    "false-coverage": Table("false-coverage", rules_tables.false_coverage),
    "ties": Table("ties", rules_tables.ties),
    "ties-peers": Table("ties", rules_tables.ties_peers),
    "ties-labels": Table("ties-labels", rules_tables.ties_labels),
    "ties-marks": Table("ties", rules_tables.marks),
    "ties-promises": Table("ties", rules_tables.promises_on_marks),
    "ties-hostile": Table("ties", rules_tables.hostile_ties),
    "selective-means": _selective(selective_tables.means),
    "selective-leads": _selective(selective_tables.leads),
    **{f"selective-{n}": _selective(selective_tables.comparison, n) for n in (300, 1000, 5000)},
}


def results() -> list[str]:
    """Every committed result: its command, and whether it is known to be of an earlier version."""
    stale = accepted()
    rows = []
    for entry in CATALOGUE.values():
        command = (
            entry.command.split(" {data}")[0].split(" --data")[0].split(" --jobs")[0].split(" {")[0]
        )
        for option in (" --out", " --json", " --output", " -o"):
            command = command.removesuffix(option)
        state = f"earlier version: {stale[entry.name]}" if entry.name in stale else "current"
        rows.append((f"`{entry.name}`", f"`python -m {command}`", state))
    return table(("`benchmarks/results/…`", "made by", "code that it is about"), rows)


def tables() -> dict[str, list[str]]:
    """The lines of every table by its name; one that is known to be stale says so."""
    stale = accepted()
    found = {name: own.make(loaded(own.result)) for name, own in TABLES.items()}
    found = {
        name: [*lines, "", EARLIER] if TABLES[name].result in stale else lines
        for name, lines in found.items()
    }
    return {**found, "results": results()}


def refreshed(text: str, known: dict[str, list[str]]) -> str:
    """The page with every marked table as the results have it."""
    return MARKED.sub(
        lambda found: found[1] + "\n" + "\n".join(known[found[2]]) + "\n\n" + found[4], text
    )
