"""The abstention comparison: every rule on the same draws, the file as the truth.

At the same promise, accuracy of what is accepted at least beta with confidence 1 - delta, what
counts is how often the promise is broken and how much is accepted. A draw that accepts nothing has
coverage 0 and breaks nothing.
"""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np

from benchmarks.experiments.journal import Entry, Line
from benchmarks.experiments.logits_files import Found, digest_of, read
from benchmarks.experiments.population import population
from benchmarks.selective.rules import RULES, Sample
from metacal import __version__

FORMAT = 1
BLOCK = 50
DELTA = 0.1
SIZES = (300, 1000, 5000)


@dataclass(frozen=True)
class Settings:
    """What decides every number, beside the data."""

    rules: tuple[str, ...] = tuple(RULES)
    sizes: tuple[int, ...] = SIZES
    draws: int = 500
    delta: float = DELTA
    seed: int = 0

    def tasks(self) -> list[tuple[int, int]]:
        """(calibration rows, first draw) of every block."""
        return [(n, first) for n in self.sizes for first in range(0, self.draws, BLOCK)]

    def header(self, found: Found) -> Line:
        """The journal's first line for one file."""
        logits, labels = read(found)
        settings = {
            name: list(value) if isinstance(value, tuple) else value
            for name, value in asdict(self).items()
        }
        return {
            "format": FORMAT,
            "bench": "selective",
            "set": found.name,
            "digest": digest_of(logits, labels),
            "rows": len(labels),
            "classes": int(logits.shape[1]),
            "beta": found.file.family.beta,
            "metacal": __version__,
            **settings,
        }


def run_task(found: Found, settings: Settings, n: int, first: int) -> Entry:
    """For every draw of the block: how many rows of the whole file each rule accepts (0: none)."""
    whole = population(found)
    highest = math.log(read(found)[0].shape[1])
    accepted: dict[str, list[int]] = {name: [] for name in settings.rules}
    seconds = dict.fromkeys(settings.rules, 0.0)
    for draw in range(first, min(first + BLOCK, settings.draws)):
        rows = whole.draw(n, settings.seed, n, draw)
        sample = Sample.of(*rows, highest, (settings.seed, n, draw))
        for name in settings.rules:
            started = time.process_time()
            threshold = RULES[name].choose(sample, found.file.family.beta, settings.delta)
            seconds[name] += time.process_time() - started
            accepted[name].append(0 if threshold is None else whole.accepted(threshold))
    at = {"n": n, "draws": first}
    return Entry(
        {**at, "accepted": accepted},
        {**at, "seconds": {k: round(v, 6) for k, v in seconds.items()}},
    )


@dataclass(frozen=True)
class Row:
    """One rule on one data set at one size: means over the draws, on the whole file.

    Attributes
    ----------
    coverage, coverage_se : float
        Mean coverage, a draw without a threshold counting 0, and its standard error.
    violation : float
        Share of the draws whose accepted predictions are correct less than beta of the time.
    nothing : float
        Share of the draws that accept nothing.
    lead, lead_se : float
        How much more the certified rule accepts on the same draws, and the standard error of that;
        0 for itself.
    """

    data: str
    family: str
    network: str
    beta: float
    oracle: float
    n: int
    rule: str
    valid: bool
    draws: int
    coverage: float
    coverage_se: float
    violation: float
    nothing: float
    lead: float = 0.0
    lead_se: float = 0.0

    def to_dict(self) -> dict[str, Any]:
        """As plain JSON types."""
        return asdict(self)


def summarise(found: Found, header: Line, entries: Sequence[Entry]) -> list[Row]:
    """The rows of one data set, by size and rule."""
    return [row for n in header["sizes"] for row in _rows_of_size(found, header, entries, n)]


def results(rows: Sequence[Row], headers: Sequence[Line]) -> dict[str, Any]:
    """Everything that tables and figures need."""
    return {
        "format": FORMAT,
        "bench": "selective",
        "sets": list(headers),
        "rows": [row.to_dict() for row in rows],
    }


def _rows_of_size(found: Found, header: Line, entries: Sequence[Entry], n: int) -> list[Row]:
    whole, beta = population(found), header["beta"]
    accepted: dict[str, list[int]] = {rule: [] for rule in header["rules"]}
    for entry in entries:
        if entry.computed["n"] == n:
            for rule, counts in entry.computed["accepted"].items():
                accepted[rule] += counts
    rows = []
    ours = np.array(accepted.get("certified", [])) / len(whole)
    for rule, counts in accepted.items():
        if not counts:
            continue
        coverage = np.array(counts) / len(whole)
        row = Row(
            data=found.name,
            family=found.file.family.title,
            network=found.file.network,
            beta=beta,
            oracle=round(whole.most_accurate(beta) / len(whole), 6),
            n=n,
            rule=rule,
            valid=RULES[rule].valid,
            draws=len(counts),
            coverage=round(float(coverage.mean()), 6),
            coverage_se=round(float(coverage.std() / math.sqrt(len(counts))), 6),
            violation=round(
                float(np.mean([whole.accuracy(count) < beta - 1e-12 for count in counts])), 6
            ),
            nothing=round(float(np.mean(coverage == 0.0)), 6),
        )
        if len(ours):
            lead = ours - coverage
            row = replace(
                row,
                lead=round(float(lead.mean()), 6),
                lead_se=round(float(lead.std() / math.sqrt(len(counts))), 6),
            )
        rows.append(row)
    return rows
