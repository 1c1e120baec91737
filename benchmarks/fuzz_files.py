"""Drive spoiled files of every kind through the library and the command line: python -m
benchmarks.fuzz_files 0 20000.

Each case is made from its seed (tests/hostile/mutate.py), judged in a child with limits on memory
and time (tests/hostile/drive.py), and is either refused in a sentence or read soundly: finite rows
that sum to one, in float32 and float64, from the library and from `metacal fit` and `apply`. What
else happened is written down with its seed.
"""

from __future__ import annotations

import json
import platform
import sys
from pathlib import Path

import numpy as np

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tests" / "hostile"))
OUTPUT = ROOT / "benchmarks" / "results" / "hostile" / "files.json"


def main() -> None:
    """Run the cases and write the counts."""
    import pyarrow
    import torch
    from drive import campaign

    first, last = int(sys.argv[1]), int(sys.argv[2])
    result = campaign(first, last, tell=lambda line: print(line, flush=True))
    versions = {
        "python": platform.python_version(),
        "numpy": np.__version__,
        "pyarrow": pyarrow.__version__,
    }
    result = {"first": first, **result, "versions": versions | {"torch": torch.__version__}}
    result.pop("slowest")
    OUTPUT.parent.mkdir(parents=True, exist_ok=True)
    OUTPUT.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
