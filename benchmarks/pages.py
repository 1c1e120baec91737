"""Put the tables of the committed results into the pages that quote them.

    python -m benchmarks.pages [--check]

A page holds `<!-- NAME -->` and `<!-- end -->` with a table between them; NAME is one of the tables below. `--check`
writes nothing and fails if a page does not say what the results say.
"""

from __future__ import annotations

import argparse
import json
import re
from collections.abc import Callable
from pathlib import Path

from benchmarks.paper import tables as paper_tables
from benchmarks.quality import tables as quality_tables
from benchmarks.selective import tables as selective_tables
from benchmarks.tables import default_base as default_base_tables
from benchmarks.tables import kills as kills_tables
from benchmarks.tables import labels as labels_tables
from benchmarks.tables import machine as machine_tables
from benchmarks.tables import monitor as monitor_tables

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "benchmarks" / "results"
PAGES = (
    ROOT / "README.md",
    *(
        ROOT / "docs" / f"{name}.md"
        for name in ("reproduction", "selective", "quality", "monitoring", "labels", "scale", "speed", "gpu")
    ),
)
_MARKED = re.compile(r"(<!-- (?!end )([\w-]+) -->\n)((?:(?!<!-- ).)*)(<!-- end -->)", re.DOTALL)


def tables() -> dict[str, list[str]]:
    """Every table by its name."""
    paper = json.loads((RESULTS / "paper" / "paper.json").read_text(encoding="utf-8"))
    seconds = json.loads((RESULTS / "paper" / "paper-seconds.json").read_text(encoding="utf-8"))["seconds"]
    selective = selective_tables.rows_of(
        json.loads((RESULTS / "selective" / "selective.json").read_text(encoding="utf-8"))
    )
    qualities = json.loads((RESULTS / "quality" / "quality.json").read_text(encoding="utf-8"))
    quality = quality_tables.rows_of(qualities)
    monitor = json.loads((RESULTS / "monitor.json").read_text(encoding="utf-8"))
    labels = json.loads((RESULTS / "labels.json").read_text(encoding="utf-8"))
    label_kills = json.loads((RESULTS / "label-kills.json").read_text(encoding="utf-8"))
    cluster_kills = json.loads((RESULTS / "cluster-kills.json").read_text(encoding="utf-8"))
    base = json.loads((RESULTS / "default-base.json").read_text(encoding="utf-8"))
    threads = json.loads((RESULTS / "threads-16-cores.json").read_text(encoding="utf-8"))
    device = json.loads((RESULTS / "device-h200.json").read_text(encoding="utf-8"))
    sets = paper_tables.by_set(paper)
    own = {name: rows for name, rows in sets.items() if next(iter(rows.values())).of_the_paper}
    made: dict[str, Callable[[], list[str]]] = {
        "table-1-paper": lambda: paper_tables.table_1(own),
        "table-1": lambda: paper_tables.table_1(sets),
        "table-2": lambda: paper_tables.table_2(sets, seconds),
        "dilution": lambda: paper_tables.dilution_table(sets),
        "order": lambda: paper_tables.order_table(sets),
        "promises": lambda: paper_tables.promise_table(sets),
        "trust": lambda: paper_tables.trust_table(sets),
        "threads": lambda: machine_tables.threads(threads),
        "device": lambda: machine_tables.device(device),
        "monitor-false-alarms": lambda: monitor_tables.false_alarms(monitor),
        "labels-sets": lambda: labels_tables.by_set(labels),
        "labels-coverage": lambda: labels_tables.by_coverage(labels),
        "labels-hostile": lambda: labels_tables.hostile(labels),
        "label-kills": lambda: kills_tables.label(label_kills),
        "cluster-kills": lambda: kills_tables.cluster(cluster_kills),
        "monitor-delays": lambda: monitor_tables.delays(monitor),
        "monitor-estimates": lambda: monitor_tables.estimates(monitor),
        **{
            f"quality-{n}": lambda n=n: quality_tables.overall(quality, n)
            for n in dict.fromkeys(row.n for row in quality)
        },
        **{
            f"quality-beside-{n}": lambda n=n: quality_tables.beside_auto(quality, n)
            for n in dict.fromkeys(row.n for row in quality)
        },
        "quality-lowest": lambda: quality_tables.lowest(quality_tables.standings(quality)),
        "quality-second-split": lambda: quality_tables.lowest(quality_tables.of_split(qualities, 1)),
        "default-base": lambda: default_base_tables.accepted(base),
        "default-base-sets": lambda: default_base_tables.by_set(base),
        "quality-accepted": lambda: quality_tables.accepted(quality),
        "selective-means": lambda: selective_tables.means(selective),
        "selective-leads": lambda: selective_tables.leads(selective),
        **{
            f"selective-{n}": lambda n=n: selective_tables.comparison(selective, n)
            for n in dict.fromkeys(row.n for row in selective)
        },
    }
    return {name: make() for name, make in made.items()}


def refreshed(text: str, known: dict[str, list[str]]) -> str:
    """The page with every marked table as the results have it."""
    return _MARKED.sub(lambda found: found[1] + "\n" + "\n".join(known[found[2]]) + "\n\n" + found[4], text)


def main() -> None:
    """Refresh or check the pages."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true")
    check = parser.parse_args().check
    known = tables()
    for page in PAGES:
        text = page.read_text(encoding="utf-8")
        new = refreshed(text, known)
        if check and new != text:
            raise SystemExit(f"{page.relative_to(ROOT)} is not what the results say; run benchmarks/pages.py.")
        if not check:
            page.write_text(new, encoding="utf-8")


if __name__ == "__main__":
    main()
