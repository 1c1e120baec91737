"""The constants of the cost model in docs/scale.md: CPU time a row and class, bytes on the wire,
memory of the driver.

    python -m benchmarks.scale_cost

CPU time of one thread, the best of several runs, on tables of 10, 100 and 1,000 classes: of few
classes a row costs more than its classes. Results go to benchmarks/results/scale-cost.json;
docs/scale.md shows what `model` makes of them.
"""

from __future__ import annotations

import argparse
import json
import pickle
import tempfile
import time
import tracemalloc
import warnings
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

import metacal as mc
from benchmarks.machine import description, load_average
from benchmarks.speed.sizes import fill_table
from metacal import kernels
from metacal.rows import BLOCK_ELEMENTS, Rows
from metacal.rows.strips import Span
from metacal.scores.named import ScoreAndCorrectness

RESULTS = Path(__file__).parent / "results" / "scale-cost.json"
SIZES = {1000: 12_000, 100: 80_000, 10: 400_000}


def main() -> None:
    """Measure, write, and print the table of the docs."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--no-dask", action="store_true")
    parser.add_argument("--out", type=Path, default=RESULTS)
    chosen = parser.parse_args()
    warnings.simplefilter("ignore")
    found: dict[str, Any] = {"machine": description()}
    with tempfile.TemporaryDirectory() as folder:
        found["ns_a_row_and_class"] = {
            str(k): steps(Path(folder), n, k, chosen.repeats) for k, n in SIZES.items()
        }
        found["wire"] = wire(Path(folder))
        found["driver"] = driver(Path(folder))
        found["driver, from counts"] = driver(Path(folder), (12_000_000, 20_000_000))
    if not chosen.no_dask:
        found["scheduler_ms_a_block"] = scheduler()
    found["load"] = load_average()
    chosen.out.write_text(json.dumps(found, indent=1) + "\n")
    print(json.dumps(found, indent=1))
    if find_spec("pyarrow") is not None:
        print(model(found))


def steps(folder: Path, n: int, k: int, repeats: int) -> dict[str, float]:
    """Nanoseconds of one core for a row and class of each step."""
    table = np.empty((n, k), dtype=np.float32)
    labels = fill_table(table, seed=0)
    gate = mc.MetaCal(mc.MinAccuracy(0.85)).fit(table, labels).gate_
    np.save(folder / "x.npy", table)
    raw, rows = mc.read_predictions(folder / "x.npy", stream=True).table, Rows(table)
    works: dict[str, Callable[[], Any]] = {
        "read .npy": lambda: np.asarray(raw),
        "score and check": lambda: rows.compute_column(
            partial(ScoreAndCorrectness("entropy"), is_unvalidated=True), labels
        ),
        "a pass of the temperature": lambda: rows.sum(
            partial(kernels.tempered_loss_and_derivatives, inverse_temperature=0.7), labels, None
        ),
        "decide": lambda: gate.decide(rows),
        "measure (evaluate)": lambda: mc.evaluate(gate, table, labels, n_resamples=0),
    }
    if find_spec("pyarrow") is not None:
        mc.io.write_table(folder / "x.parquet", {"logits": table})
        packed = mc.read_predictions(folder / "x.parquet", stream=True).table
        works["read .parquet (zstd)"] = lambda: np.asarray(packed)
        works["write .parquet (zstd)"] = lambda: mc.io.write_table(
            folder / "out.parquet", {"probs": table}
        )
    return {name: round(1e9 * best(work, repeats) / table.size, 4) for name, work in works.items()}


def best(work: Callable[[], Any], repeats: int) -> float:
    """The least CPU time of several runs."""
    seconds = []
    for _ in range(repeats):
        begun = time.process_time()
        work()
        seconds.append(time.process_time() - begun)
    return min(seconds)


def wire(folder: Path) -> dict[str, float]:
    """Bytes that go out and come back for a block of a table of 100 files, and for a row."""
    tables = []
    for part in range(3):
        np.save(folder / f"part-{part}.npy", np.zeros((4000, 1000), dtype=np.float32))
        tables.append(str(folder / f"part-{part}.npy"))
    table = mc.read_predictions(tables, stream=True).table
    labels = np.zeros(len(table), dtype=np.intp)
    rows = Rows(table)
    span = Span(0, BLOCK_ELEMENTS // 1000 // rows.rows_per_strip)
    bare, full = (
        len(pickle.dumps(rows._extract_piece(columns, span))) for columns in ((), (labels,))
    )
    n = (span.stop - span.start) * rows.rows_per_strip
    return {
        "description of a block, bytes": bare,
        "labels out, bytes a row": round((full - bare) / n, 2),
        "score and right or wrong back, bytes a row": 16.0,
        "a sum back, bytes a strip": len(pickle.dumps(np.zeros(5))),
    }


def driver(folder: Path, sizes: tuple[int, int] = (300_000, 900_000)) -> dict[str, float]:
    """Peak memory of the driver of a Meta-Cal fit, as a slope between two numbers of rows; CPU time
    at the larger.

    From counts, which are kept above ten million rows, it is some 140 MB whatever the rows: they
    must be many to show.
    """
    peaks, seconds = [], []
    with ProcessPoolExecutor(1) as pool:
        list(pool.map(abs, range(2)))
        for n in (50_000, *sizes):  # the first has the imports in it, and is left out
            table = np.empty((n, 4), dtype=np.float32)
            labels = fill_table(table, seed=0)
            np.save(folder / "driver.npy", table)
            del table
            found = mc.read_predictions(folder / "driver.npy", stream=True).table
            tracemalloc.start()
            begun = time.process_time()
            mc.MetaCal(mc.MinAccuracy(0.5)).fit(found, labels, executor=pool)
            seconds.append(time.process_time() - begun)
            peaks.append(tracemalloc.get_traced_memory()[1] + labels.nbytes)
            tracemalloc.stop()
    rows = sizes[1] - sizes[0]
    return {
        "memory, bytes a row": round((peaks[2] - peaks[1]) / rows, 1),
        "CPU, ns a row": round(1e9 * seconds[2] / sizes[1], 1),
    }


def scheduler() -> float:
    """CPU milliseconds of client and scheduler, which share a process here, for a block that takes
    no time.
    """
    import distributed

    from metacal.rows.cluster import ClusterExecutor

    options = {
        "processes": True,
        "threads_per_worker": 1,
        "dashboard_address": None,
        "silence_logs": 50,
    }
    with (
        distributed.LocalCluster(n_workers=1, **options) as cluster,
        distributed.Client(cluster) as client,
    ):
        executor = ClusterExecutor(client)
        for answer in [executor.submit(abs, n) for n in range(50)]:
            answer.result()
        begun = time.process_time()
        for answer in [executor.submit(pow, n, 2) for n in range(1000)]:
            answer.result()
        return round(time.process_time() - begun, 3)


def model(found: dict[str, Any], k: int = 1000) -> str:
    """The table of the docs, from the constants: a Meta-Cal fit on temperature scaling, an apply
    and an evaluate.

    n rows of Parquet. A fit reads the table six times and scores it once; above ten million rows it
    scores it four times: twice or three times to count, once for the flags.
    """
    cost, out = found["ns_a_row_and_class"][str(k)], found["wire"]
    read, score, a_pass = (
        cost[name]
        for name in ("read .parquet (zstd)", "score and check", "a pass of the temperature")
    )
    apply = read + cost["decide"] + cost["write .parquet (zstd)"]
    evaluate = read + cost["measure (evaluate)"]
    heads = (
        "rows",
        "fit, core-hours",
        "apply, core-hours",
        "evaluate, core-hours",
        "blocks a pass",
    )
    lines = [
        "| " + " | ".join([*heads, "network of a fit", "memory of the driver"]) + " |",
        "|---|---|---|---|---|---|---|",
    ]
    for power in range(6, 13):
        n, many = 10.0**power, power > 7
        scored = 4 if many else 1
        passes = 5 + scored
        fit = passes * read + scored * score + 5 * a_pass
        usual = n * k / BLOCK_ELEMENTS
        blocks = max(min(usual, 256.0), usual / 64)
        back = 1.0 * scored if many else out["score and right or wrong back, bytes a row"]
        strips = 4 * n * k / 65536 * out["a sum back, bytes a strip"]
        network = passes * blocks * out["description of a block, bytes"] + strips
        network += n * (passes * out["labels out, bytes a row"] + back)
        memory = n * found["driver, from counts" if many else "driver"]["memory, bytes a row"]
        cells = [
            f"10{SUPER[power]}",
            *(
                f"{float(f'{n * k * step * 1e-9 / 3600:.2g}'):,g}"
                for step in (fit, apply, evaluate)
            ),
        ]
        lines.append(
            "| " + " | ".join([*cells, f"{blocks:,.0f}", sized(network), sized(memory)]) + " |"
        )
    return "\n".join(lines)


SUPER = {6: "⁶", 7: "⁷", 8: "⁸", 9: "⁹", 10: "¹⁰", 11: "¹¹", 12: "¹²"}


def sized(n: float) -> str:
    """Bytes for people."""
    for unit in ("B", "kB", "MB", "GB", "TB"):
        if n < 1000 or unit == "TB":
            return f"{float(f'{n:.2g}'):,g} {unit}"
        n /= 1000
    raise AssertionError


if __name__ == "__main__":
    main()
