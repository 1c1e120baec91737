"""The sets that come with the project, as the data card has them: accuracy, log loss, ECE, best
temperature, size.

python -m benchmarks.data_card [--out benchmarks/results/data-card.json]
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import numpy as np

import metacal as mc
from metacal import metrics

RESULTS = Path(__file__).parent / "results" / "data-card.json"
DATA = Path(__file__).parent / "data"
SHIPPED = Path(mc.__file__).parent / "datasets"


def describe(name: str) -> dict[str, object]:
    """One set."""
    own = name in mc.datasets.names()
    data = mc.datasets.load(name, folder=None if own else DATA)
    fitted = mc.TemperatureScaling().fit(data.logits, data.labels)
    shifted = data.logits.astype(np.float64) - data.logits.max(axis=1, keepdims=True)
    proba = np.exp(shifted) / np.exp(shifted).sum(axis=1, keepdims=True)
    right = data.logits.argmax(axis=1) == data.labels
    folder = DATA if not own else SHIPPED
    path = next(folder.rglob(f"{name}.npz"))
    return {
        "rows": len(data.labels),
        "classes": data.logits.shape[1],
        "accuracy": round(float(right.mean()), 6),
        "accuracy_held_out": round(float(right[~data.is_test].mean()), 6),
        "accuracy_test": round(float(right[data.is_test].mean()), 6),
        "nll": round(float(metrics.nll(proba, data.labels)), 6),
        "ece": round(float(metrics.ece(proba, data.labels)), 6),
        "temperature": round(float(fitted.temperature_), 6),
        "float16_ties": _ties(data.logits),
        "float16_moved": int(
            (data.logits.astype(np.float16).argmax(axis=1) != data.logits.argmax(axis=1)).sum()
        ),
        "bytes": path.stat().st_size,
    }


def _ties(logits: np.ndarray) -> int:
    """Rows whose two largest logits fall together in half precision."""
    two = np.sort(logits.astype(np.float16), axis=1)[:, -2:]
    return int((two[:, 0] == two[:, 1]).sum())


def main() -> None:
    """Describe and write."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, default=RESULTS)
    options = parser.parse_args()
    sets = [*mc.datasets.names(), *mc.datasets.names(folder=DATA)]
    options.out.write_text(
        json.dumps({"sets": {name: describe(name) for name in sets}}, indent=1) + "\n"
    )


if __name__ == "__main__":
    main()
