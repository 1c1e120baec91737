"""How long reading takes, by format: CPU time of `metacal.read_predictions` as a ratio to np.load of the same table.

python -m benchmarks.files.read [ROWS] [CLASSES]: writes each file into a temporary folder, reads it five times
interleaved with the others, and prints a Markdown table of medians.
"""

from __future__ import annotations

import statistics
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

from metacal.io import read_predictions, write_table


def main() -> None:
    """Write, read, print."""
    rows, classes = (int(sys.argv[k]) if len(sys.argv) > k else default for k, default in ((1, 200_000), (2, 100)))
    rng = np.random.default_rng(0)
    table, labels = rng.normal(size=(rows, classes)).astype(np.float32), rng.integers(0, classes, rows)
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
        print(f"{rows:,} × {classes} float32; np.load takes {1000 * unit:.0f} ms of CPU time\n")
        print("| file | MB | times np.load |\n|---|---|---|")
        for name, (path, what) in files.items():
            print(f"| {what} | {path.stat().st_size / 1e6:.0f} | {statistics.median(seconds[name]) / unit:.1f} |")


def _read(name: str, path: Path) -> None:
    """All numbers of the file in memory, or one pass over them in bounded memory."""
    table = read_predictions(path, stream="streamed" in name).table
    if "streamed" in name:
        for _ in table.blocks():
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
