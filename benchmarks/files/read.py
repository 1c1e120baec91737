"""How long reading takes, by format: CPU time of `metacal.read_predictions` as a ratio to np.load
of the same table.

    python -m benchmarks.files.read [--rows 200000] [--classes 100] [--out
    benchmarks/results/read-files.json]

Writes each file into a temporary folder, reads it five times interleaved with the others, and keeps
the medians.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from pathlib import Path

import numpy as np

from benchmarks.machine import description, load_average
from metacal.io import read_predictions, write_table
from metacal.rows.stored import BLOCK_ELEMENTS, iterate_blocks

RESULTS = Path(__file__).resolve().parents[1] / "results" / "read-files.json"


def main() -> None:
    """Write, read, keep."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rows", type=int, default=200_000)
    parser.add_argument("--classes", type=int, default=100)
    parser.add_argument("--out", type=Path, default=RESULTS)
    options = parser.parse_args()
    rng = np.random.default_rng(0)
    table = rng.normal(size=(options.rows, options.classes)).astype(np.float32)
    labels = rng.integers(0, options.classes, options.rows)
    found: dict[str, object] = {"machine": description(), "load": load_average()}
    with tempfile.TemporaryDirectory() as folder:
        files = _write(Path(folder), table, labels)
        seconds: dict[str, list[float]] = {name: [] for name in files}
        for turn in range(5):
            for name, (path, _) in files.items():
                if name.startswith("csv") and turn:  # slow, and far from the others
                    continue
                began = time.process_time()
                np.load(path) if name == "npy" else _read(name, path)
                seconds[name].append(time.process_time() - began)
        unit = statistics.median(seconds["npy"])
        found |= {
            "rows": options.rows,
            "classes": options.classes,
            "np.load, ms": round(1000 * unit, 1),
        }
        found["files"] = [
            {
                "file": what,
                "MB": round(path.stat().st_size / 1e6),
                "times np.load": round(statistics.median(seconds[name]) / unit, 1),
            }
            for name, (path, what) in files.items()
        ]
    options.out.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")


def _read(name: str, path: Path) -> None:
    """All numbers of the file in memory, or one pass over them in bounded memory."""
    table = read_predictions(path, stream="streamed" in name).table
    if "streamed" in name:
        for _ in iterate_blocks(table, BLOCK_ELEMENTS):
            pass


def _write(folder: Path, table: np.ndarray, labels: np.ndarray) -> dict[str, tuple[Path, str]]:
    import pyarrow as pa
    import pyarrow.parquet as parquet
    import torch
    from safetensors.numpy import save_file

    def path(name: str) -> Path:
        return folder / name

    columns = {"logits": table, "label": labels}
    np.save(path("a.npy"), table)
    for name in ("a.npz", "a.parquet", "a.feather", "a.csv"):
        write_table(path(name), columns)
    write_table(path("b.npz"), columns, compress=True)
    save_file({"logits": table, "labels": labels}, path("a.safetensors"))
    torch.save({"logits": torch.tensor(table), "labels": torch.tensor(labels)}, path("a.pt"))
    offsets = pa.array(np.arange(0, table.size + 1, table.shape[1], dtype=np.int32))
    lists = pa.ListArray.from_arrays(offsets, pa.array(table.ravel()))
    parquet.write_table(pa.table({"logits": lists, "label": labels}), path("b.parquet"))
    wide = {f"logits_{k}": table[:, k] for k in range(table.shape[1])}
    parquet.write_table(pa.table({**wide, "label": labels}), path("c.parquet"))
    with path("lists.csv").open("w") as file:
        file.write("logits,label\n")
        file.writelines(f'"{row.tolist()}",{label}\n' for row, label in zip(table, labels))
    return {
        "npy": (path("a.npy"), "`.npy`, np.load (the unit)"),
        "npz": (path("a.npz"), "`.npz`"),
        "compressed": (path("b.npz"), "`.npz`, compressed"),
        "feather": (path("a.feather"), "`.feather`, `.arrow`"),
        "safetensors": (path("a.safetensors"), "`.safetensors` (mapped, then read)"),
        "pt": (path("a.pt"), "`.pt`"),
        "parquet fixed": (path("a.parquet"), "`.parquet` as metacal writes it"),
        "parquet streamed": (path("a.parquet"), "the same, one pass in bounded memory"),
        "parquet list": (path("b.parquet"), "`.parquet`, lists, pyarrow's defaults"),
        "parquet wide": (path("c.parquet"), "`.parquet`, a column per class"),
        "csv": (path("a.csv"), "`.csv`, a column per class"),
        "csv lists": (path("lists.csv"), "`.csv`, lists"),
    }


if __name__ == "__main__":
    main()
