"""Every table of the pages by its name: the results it is made from, and what makes it."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, NamedTuple

from benchmarks.all.state import accepted
from benchmarks.pages.numbers import loaded
from benchmarks.paper import tables as paper_tables
from benchmarks.quality import tables as quality_tables
from benchmarks.selective import tables as selective_tables
from benchmarks.tables import default_base as default_base_tables
from benchmarks.tables import kills as kills_tables
from benchmarks.tables import labels as labels_tables
from benchmarks.tables import machine as machine_tables
from benchmarks.tables import monitor as monitor_tables

MARKED = re.compile(r"(<!-- (?!end |given)([\w-]+) -->\n)((?:(?!<!-- ).)*)(<!-- end -->)", re.DOTALL)
EARLIER = "*Measured with an earlier version of the code.*"


class Table(NamedTuple):
    """A table: the result it comes from, and the function that makes its lines from it."""

    result: str
    make: Callable[[Any], list[str]]


def _paper(make: Callable[..., list[str]], *, own: bool = False) -> Table:
    def made(results: Any) -> list[str]:
        sets = paper_tables.by_set(results)
        chosen = {name: rows for name, rows in sets.items() if next(iter(rows.values())).of_the_paper}
        return make(chosen if own else sets)

    return Table("paper/paper", made)


def _seconds(results: Any) -> list[str]:
    return paper_tables.table_2(paper_tables.by_set(results), loaded("paper/paper-seconds")["seconds"])


def _quality(make: Callable[..., list[str]], *more: Any) -> Table:
    return Table("quality/quality", lambda results: make(quality_tables.rows_of(results), *more))


def _selective(make: Callable[..., list[str]], *more: Any) -> Table:
    return Table("selective/selective", lambda results: make(selective_tables.rows_of(results), *more))


TABLES: dict[str, Table] = {
    "table-1-paper": _paper(paper_tables.table_1, own=True),
    "table-1": _paper(paper_tables.table_1),
    "table-2": Table("paper/paper", _seconds),
    "dilution": _paper(paper_tables.dilution_table),
    "order": _paper(paper_tables.order_table),
    "promises": _paper(paper_tables.promise_table),
    "trust": _paper(paper_tables.trust_table),
    "threads": Table("threads-16-cores", machine_tables.threads),
    "device": Table("device-h200", machine_tables.device),
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
        "quality/quality", lambda results: quality_tables.lowest(quality_tables.of_split(results, 1))
    ),
    "quality-accepted": _quality(quality_tables.accepted),
    "default-base": Table("default-base", default_base_tables.accepted),
    "default-base-sets": Table("default-base", default_base_tables.by_set),
    "selective-means": _selective(selective_tables.means),
    "selective-leads": _selective(selective_tables.leads),
    **{f"selective-{n}": _selective(selective_tables.comparison, n) for n in (300, 1000, 5000)},
}


def tables() -> dict[str, list[str]]:
    """The lines of every table by its name; one that is known to be stale says so."""
    stale = accepted()
    found = {name: table.make(loaded(table.result)) for name, table in TABLES.items()}
    return {name: [*lines, "", EARLIER] if TABLES[name].result in stale else lines for name, lines in found.items()}


def refreshed(text: str, known: dict[str, list[str]]) -> str:
    """The page with every marked table as the results have it."""
    return MARKED.sub(lambda found: found[1] + "\n" + "\n".join(known[found[2]]) + "\n\n" + found[4], text)
