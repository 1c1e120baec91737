"""Runs of the paper's experiments -> one row per data set and method: means, deviations, broken
promises.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from benchmarks.experiments.journal import Entry, Line
from benchmarks.experiments.logits_files import Found
from benchmarks.experiments.population import population
from benchmarks.paper.printed import ECE, SECONDS, printed
from benchmarks.paper.runs import ALPHA, COLUMNS, FORMAT, RULES


@dataclass(frozen=True)
class Spread:
    """Mean and standard deviation over the runs that gave a number."""

    mean: float
    sd: float | None
    n: int

    @property
    def se(self) -> float | None:
        """Standard error of the mean; one run has none."""
        return None if self.sd is None else self.sd / math.sqrt(self.n)

    @classmethod
    def of(cls, values: Iterable[float | None]) -> Spread | None:
        """Over the numbers among `values`; None when there is none.

        Examples
        --------
        >>> Spread.of([1.0, 2.0, None, 3.0])
        Spread(mean=2.0, sd=1.0, n=3)
        >>> Spread.of([1.0])
        Spread(mean=1.0, sd=None, n=1)
        """
        numbers = [value for value in values if value is not None]
        if not numbers:
            return None
        sd = round(float(np.std(numbers, ddof=1)), 8) if len(numbers) > 1 else None
        return cls(round(float(np.mean(numbers)), 8), sd, len(numbers))


@dataclass(frozen=True)
class Row:
    """One method on one data set.

    Attributes
    ----------
    columns : dict of Spread
        What was measured on the test rows of the splits; a column without a number is left out.
    infeasible : int
        Splits on which the rule found no threshold.
    missed : float or None
        Share of the splits whose *test rows* miss the target: the promise as a reader of the paper
        would check it.
    violation : float or None
        Share of the draws whose threshold misses the target on the *whole file*: the promise
        itself.
    draws : int
        How many draws that is.
    true_coverage, oracle_coverage : float or None
        Mean coverage of the draws' thresholds on the whole file; and of the best threshold that
        keeps the target there.
    published_ece, published_seconds : float or None
        The paper's figure for the network of this name.
    """

    data: str
    family: str
    network: str
    of_the_paper: bool
    method: str
    target: float | None
    columns: dict[str, Spread]
    infeasible: int
    missed: float | None
    violation: float | None
    draws: int
    true_coverage: float | None
    oracle_coverage: float | None
    published_ece: float | None
    published_seconds: float | None

    def to_dict(self) -> dict[str, Any]:
        """As plain JSON types."""
        return asdict(self)

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> Row:
        """The inverse of `to_dict`."""
        columns = {name: Spread(**value) for name, value in data["columns"].items()}
        return cls(**{**data, "columns": columns})


def summarise(found: Found, header: Line, entries: Sequence[Entry]) -> list[Row]:
    """The rows of one data set, in the order of the methods."""
    splits = [entry.computed["methods"] for entry in entries if "split" in entry.computed]
    accepted: dict[str, list[int]] = {method: [] for method in header["methods"] if method in RULES}
    for entry in entries:
        for method, counts in entry.computed.get("accepted", {}).items():
            accepted[method] += counts
    return [
        _row(found, header, method, splits, accepted.get(method, []))
        for method in header["methods"]
    ]


def summarise_seconds(header: Line, entries: Sequence[Entry]) -> dict[str, dict[str, Spread]]:
    """CPU seconds of each method: to fit, to predict the test rows, and both."""
    found: dict[str, dict[str, Spread]] = {}
    for method in header["methods"]:
        runs = [entry.seconds["methods"][method] for entry in entries if "split" in entry.computed]
        for run in runs:
            run["both"] = run["fit"] + run["predict"]
        spreads = {
            part: Spread.of(run[part] for run in runs) for part in ("fit", "predict", "both")
        }
        found[method] = {part: spread for part, spread in spreads.items() if spread is not None}
    return found


def results(rows: Sequence[Row], headers: Sequence[Line]) -> dict[str, Any]:
    """Everything that tables and figures need, without a clock in it: the same for the same
    settings and data.
    """
    return {
        "format": FORMAT,
        "bench": "paper",
        "sets": list(headers),
        "rows": [row.to_dict() for row in rows],
    }


def _row(
    found: Found, header: Line, method: str, splits: Sequence[Line], accepted: Sequence[int]
) -> Row:
    file = found.file
    measured = [split[method] for split in splits if split[method] is not None]
    spreads = {name: Spread.of(values.get(name) for values in measured) for name in COLUMNS}
    violation = coverage = oracle = missed = target = None
    if method in RULES:
        accuracy = "acc" in method
        target = header["beta"] if accuracy else ALPHA
        missed = _share(_misses(values, target, accuracy) for values in measured)
        whole = population(found)
        best = whole.most_accurate(target) if accuracy else whole.least_miscovering(target)
        oracle = round(best / len(whole), 6)
        if accepted:
            violation = _share(
                whole.accuracy(count) < target - 1e-12
                if accuracy
                else whole.miscoverage(count) > target + 1e-12
                for count in accepted
            )
            coverage = round(float(np.mean(accepted)) / len(whole), 6)
    return Row(
        data=file.name,
        family=file.family.title,
        network=file.network,
        of_the_paper=file.of_the_paper,
        method=method,
        target=target,
        columns={name: spread for name, spread in spreads.items() if spread is not None},
        infeasible=len(splits) - len(measured),
        missed=missed,
        violation=violation,
        draws=len(accepted),
        true_coverage=coverage,
        oracle_coverage=oracle,
        published_ece=printed(ECE, file.family.title, file.network, method),
        published_seconds=printed(SECONDS, file.family.title, file.network, method),
    )


def _misses(values: Line, target: float, accuracy: bool) -> bool:
    if accuracy:
        return values["coverage_accuracy"] is not None and values["coverage_accuracy"] < target
    return bool(values["miscoverage"] > target)


def _share(flags: Iterable[bool]) -> float | None:
    listed = [float(flag) for flag in flags]
    return round(float(np.mean(listed)), 6) if listed else None
