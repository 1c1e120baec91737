"""The ratios that are reported, and the bars they are held against."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from benchmarks.speed.peers import PEERS
from benchmarks.speed.tasks import TASKS

#: Relative to one read of the table: (task, size) -> the most, by kernel.
MOST_READS = {
    ("temperature", "C"): {"numpy": 45.0, "fused": 10.0},
    ("temperature", "D"): {"numpy": 30.0, "fused": 7.0},
    ("temperature", "E"): {"numpy": 60.0, "fused": 11.0},
    ("entropy", "C"): {"numpy": 25.0, "fused": 7.0},
    ("ece", "C"): {"numpy": 3.0, "fused": 3.0},
}
#: Times faster than a peer: (task, peer, size) -> the least, by kernel.
LEAST_TIMES_FASTER = {
    ("temperature", "scikit-learn", "A"): {"numpy": 7.0, "fused": 10.0},
    ("temperature", "scikit-learn", "B"): {"numpy": 8.0, "fused": 30.0},
    ("temperature", "scikit-learn", "C"): {"numpy": 15.0, "fused": 80.0},
    ("temperature", "paper", "C"): {"numpy": 80.0, "fused": 400.0},
    ("max_miscoverage", "paper", "C"): {"numpy": 20.0, "fused": 100.0},
    ("min_accuracy", "paper", "C"): {"numpy": 20.0, "fused": 100.0},
    ("ensemble", "slsqp", "C"): {"numpy": 80.0, "fused": 250.0},
    ("predict_proba", "paper", "C"): {"numpy": 2.0, "fused": 10.0},
}
MOST_PASSES, PASSES_FROM_ROWS = 2.0, 8_000
MOST_ERROR = 1e-6
MOST_MEMORY = {"numpy": 1.10, "fused": 1.05}
MEMORY_SIZES = ("C", "D")
MOST_IMPORT = 1.25
MOST_FIT_PROCESS = {"numpy": 3.0, "fused": 1.6}


@dataclass(frozen=True)
class Ratio:
    """One reported number: what, where, by which kernel (None: by either), and its bar if it has
    one.
    """

    quantity: str
    size: str | None
    kernel: str | None
    value: float
    bar: float | None = None
    at_most: bool = True

    @property
    def met(self) -> bool | None:
        """Whether the bar is met; None without a bar.

        Examples
        --------
        >>> Ratio("entropy score / read", "C", "numpy", 17.7, 25.0).met
        True
        """
        if self.bar is None:
            return None
        return self.value <= self.bar if self.at_most else self.value >= self.bar

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON types."""
        return {**vars(self), "met": self.met}

    @staticmethod
    def from_dict(found: dict[str, Any]) -> Ratio:
        """The ratio that `to_dict` wrote."""
        return Ratio(**{name: value for name, value in found.items() if name != "met"})


def ratios(results: dict[str, Any]) -> list[Ratio]:
    """Every ratio of the raw results, with its bar."""
    found: list[Ratio] = []
    for kernel, by_size in results["kernels"].items():
        for size in by_size["sizes"]:
            found += _against_reads(results, kernel, size)
            found += _against_peers(results, kernel, size)
            found += _exactness(results, kernel, size)
            found += _memory(results, kernel, size)
    return found + list(_processes(results))


def _against_reads(results: dict[str, Any], kernel: str, size: str) -> Iterator[Ratio]:
    timed = results["kernels"][kernel]["sizes"][size]
    for task, title in TASKS.items():
        if task in timed["tasks"]:
            bar = MOST_READS.get((task, size), {}).get(kernel)
            yield Ratio(
                f"{title} / read", size, kernel, timed["tasks"][task]["median"] / timed["read"], bar
            )


def _against_peers(results: dict[str, Any], kernel: str, size: str) -> Iterator[Ratio]:
    timed = results["kernels"][kernel]["sizes"][size]
    for peer in PEERS:
        for task, title in TASKS.items():
            seconds = _peer_seconds(results, kernel, size, f"{peer}: {task}")
            if seconds is not None:
                bar = LEAST_TIMES_FASTER.get((task, peer, size), {}).get(kernel)
                value = seconds / timed["tasks"][task]["median"]
                yield Ratio(
                    f"{title}: {_peer_title(peer)} / metacal",
                    size,
                    kernel,
                    value,
                    bar,
                    at_most=False,
                )


def _peer_title(peer: str) -> str:
    return {"paper": "the paper's code", "slsqp": "SLSQP over n × K"}.get(peer, peer)


def _peer_seconds(results: dict[str, Any], kernel: str, size: str, name: str) -> float | None:
    """The peer's CPU seconds in this kernel's process; if it ran beside another kernel only,
    carried over in reads.
    """
    here = results["kernels"][kernel]["sizes"][size]
    beside = [
        results["kernels"][other]["sizes"][size] for other in results["kernels"] if other != kernel
    ]
    for timed in (here, *beside):
        median = timed["peers"].get(name, {}).get("median")
        if median is not None:
            return float(median / timed["read"] * here["read"])
    return None


def _exactness(results: dict[str, Any], kernel: str, size: str) -> Iterator[Ratio]:
    timed = results["kernels"][kernel]["sizes"][size]
    large = results["sizes"][size]["rows"] >= PASSES_FROM_ROWS
    bar = MOST_PASSES if large else None
    yield Ratio(
        "temperature fit: full passes over the data", size, kernel, float(timed["passes"]), bar
    )
    yield Ratio(
        "temperature fit: error of T against a float64 solve",
        size,
        kernel,
        timed["error"],
        MOST_ERROR,
    )


def _memory(results: dict[str, Any], kernel: str, size: str) -> Iterator[Ratio]:
    for task, multiple in results["kernels"][kernel]["sizes"][size]["memory"].items():
        bar = MOST_MEMORY.get(kernel) if size in MEMORY_SIZES else None
        yield Ratio(f"{TASKS[task]}: peak memory / table", size, kernel, multiple, bar)


def _processes(results: dict[str, Any]) -> Iterator[Ratio]:
    imports = results["imports"]
    yield Ratio(
        "import metacal / import numpy",
        None,
        None,
        imports["metacal"] / imports["numpy"],
        MOST_IMPORT,
    )
    yield Ratio(
        "import metacal.rows / import numpy", None, None, imports["metacal.rows"] / imports["numpy"]
    )
    yield Ratio(
        "import of a first temperature fit / import numpy",
        None,
        None,
        imports["first use"] / imports["numpy"],
    )
    for kernel, found in results["kernels"].items():
        process = found["fit_process"]
        if process is not None:
            bar = MOST_FIT_PROCESS.get(kernel) if process["size"] == "C" else None
            value = process["fit"] / process["load"]
            yield Ratio(
                "metacal fit, whole process / only loading", process["size"], kernel, value, bar
            )
        for along, ladder in found["scaling"].items():
            for task, slope in ladder["slope"].items():
                if slope is not None:
                    yield Ratio(
                        f"{TASKS[task]}: log-log slope of time against {along}", None, kernel, slope
                    )
