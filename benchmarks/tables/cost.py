"""What things take: the cost model, a billion rows, commands, an exported gate, speed against its
bars.
"""

from __future__ import annotations

from typing import Any

from benchmarks.scale_cost import model
from benchmarks.speed.bars import Ratio
from benchmarks.speed.markdown import _peers, _table
from benchmarks.tables.markdown import table

Results = dict[str, Any]
_STEPS = {
    "read .npy": "read .npy",
    "read .parquet (zstd)": "read .parquet (zstd)",
    "score and check": "score and check",
    "a pass of the temperature": "a pass of the temperature",
    "decide": "decide",
    "measure (evaluate)": "measure (evaluate, no bootstrap)",
    "write .parquet (zstd)": "write .parquet (zstd)",
}


def constants(results: Results) -> list[str]:
    """Nanoseconds of a core for a row and class."""
    found = results["ns_a_row_and_class"]
    sizes = ("1000", "100", "10")
    rows = [
        (words, *(f"{float(f'{found[k][step]:.2g}'):g}" for k in sizes))
        for step, words in _STEPS.items()
    ]
    return table(
        ("step, ns of a core for a row and class", "1,000 classes", "100 classes", "10 classes"),
        rows,
    )


def scale(results: Results) -> list[str]:
    """Core-hours, network and memory by the number of rows."""
    return model(results).split("\n")[:-1]


def billion(results: Results) -> list[str]:
    """10⁹ rows certified from counts."""
    rows = []
    for name, words in (
        ("MaxMiscoverage", "`MaxMiscoverage(0.05)`"),
        ("MinAccuracy", "`MinAccuracy(0.97)`"),
    ):
        one = results[name]
        memory = (f"{one[f'{who} memory, MB']:.0f} MB" for who in ("driver", "worker"))
        rows.append((words, str(one["passes"]), f"{one['cpu seconds']:.0f}", *memory))
    head = f"10⁹ rows, scores made in the worker, {results['jobs']} processes"
    return table((head, "passes", "CPU seconds", "driver", "worker"), rows)


def evaluate(results: Results) -> list[str]:
    """`metacal evaluate` by file and gate."""
    small, large = results["10,000 x 10"], results["25,000 x 1,000"]
    rows = []
    for name in small:
        cells = [
            f"{size[name]['cpu_s']:.2f} s | {size[name]['memory_mb']} MB" for size in (small, large)
        ]
        shown = (
            f"`{name.split(',')[0].split(' ')[0]}`{name[len(name.split(',')[0].split(' ')[0]) :]}"
        )
        rows.append((shown, *cells))
    return table(("CPU seconds", "10,000 × 10", "memory", "25,000 × 1,000", "memory"), rows)


def read_files(results: Results) -> list[str]:
    """CPU time to read a file, as a multiple of np.load."""
    rows = [
        (one["file"], str(one["MB"]), f"{one['times np.load']:.1f}") for one in results["files"]
    ]
    return table(("file", "MB", "times np.load"), rows)


def onnx(results: Results) -> list[str]:
    """Microseconds of an exported gate, and as a multiple of a plain Softmax node."""
    sizes = list(dict.fromkeys((row["batch"], row["classes"]) for row in results["rows"]))
    known = {(row["batch"], row["classes"], row["graph"]): row for row in results["rows"]}
    rows = []
    for graph in dict.fromkeys(row["graph"] for row in results["rows"]):
        cells = []
        for size in sizes:
            one = known.get((*size, graph))
            if one is None:
                cells.append("")
                continue
            ratio = "" if graph == "softmax" else f", {one['ratio']:.1f}×"
            cells.append(f"{one['microseconds']:,.0f} µs{ratio}")
        rows.append((graph, *cells))
    return table(("", *(f"{batch} × {classes:,}" for batch, classes in sizes)), rows)


def serving(results: Results) -> list[str]:
    """Microseconds of a gate in each runtime, and as a multiple of a softmax there."""
    sizes = list(dict.fromkeys((row["batch"], row["classes"]) for row in results["runtimes"]))
    cells: dict[tuple[str, str], dict[tuple[int, int], str]] = {}
    for row in results["runtimes"]:
        ratio = "" if row["graph"] == "softmax" else f", {row['ratio']:.1f}×"
        by_size = cells.setdefault((row["runtime"], row["graph"]), {})
        by_size[row["batch"], row["classes"]] = f"{row['microseconds']:,.0f} µs{ratio}"
    rows = [(*name, *(by_size[size] for size in sizes)) for name, by_size in sorted(cells.items())]
    heads = [f"{batch} × {classes:,}" for batch, classes in sizes]
    return table(("runtime", "", *heads), rows)


def speed_machine(results: Results) -> list[str]:
    """The machine, the versions and the samples of the run."""
    machine = results["machine"]
    versions = ", ".join(f"{name} {version}" for name, version in machine["versions"].items())
    runs = results.get("runs", [results])
    samples = "; ".join(
        f"{', '.join(run['sizes'])} with {run['settings']['repeats']} samples" for run in runs
    )
    return [
        f"Processor: {machine['processor']}, {machine['cores']} cores, {machine['system']}.",
        f"Python {machine['python']}, {versions}.",
        f"{samples}.",
    ]


def speed_bars(results: Results) -> list[str]:
    """Ratios that have a bar."""
    return _ratios(results, barred=True)


def speed_rest(results: Results) -> list[str]:
    """Ratios without a bar."""
    return _ratios(results, barred=False)


def _ratios(results: Results, *, barred: bool) -> list[str]:
    found = [Ratio.from_dict(ratio) for ratio in results["ratios"]]
    return _table(
        [ratio for ratio in found if (ratio.bar is not None) == barred], list(results["kernels"])
    )


def speed_peers(results: Results) -> list[str]:
    """Peers in reads of the table."""
    return _peers(results)
