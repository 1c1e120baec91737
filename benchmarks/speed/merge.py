"""One results file from runs of `python -m benchmarks speed -o` on different sizes of one machine.

python -m benchmarks.speed.merge abc.json de.json > speed.json

Everything but the sizes comes from the first run; "runs" says what each was.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from benchmarks.speed.bars import ratios


def main() -> None:
    """Merge, and compute the ratios anew."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("files", type=Path, nargs="+")
    runs = [json.loads(path.read_text(encoding="utf-8")) for path in parser.parse_args().files]
    print(json.dumps(merged(runs), indent=1))


def merged(runs: list[dict[str, Any]]) -> dict[str, Any]:
    """The first run with the sizes of the others."""
    whole = runs[0]
    whole["runs"] = [
        {
            "sizes": list(run["sizes"]),
            "settings": run["settings"],
            "load_average": run["load_average"],
        }
        for run in runs
    ]
    for run in runs[1:]:
        if run["machine"]["processor"] != whole["machine"]["processor"]:
            raise SystemExit(
                "these runs are of different processors; only runs of one machine can be merged."
            )
        whole["sizes"] |= run["sizes"]
        for kernel, found in run["kernels"].items():
            whole["kernels"][kernel]["sizes"] |= found["sizes"]
    whole["ratios"] = [ratio.to_dict() for ratio in ratios(whole)]
    return whole


if __name__ == "__main__":
    main()
