"""What follows from the rules by arithmetic: rows needed, and how much of what is allowed a
certified rule uses.

python -m benchmarks.closed_forms [--out benchmarks/results/closed-forms.json]
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from metacal import bounds

RESULTS = Path(__file__).parent / "results" / "closed-forms.json"
DELTAS = (0.1, 0.05, 0.01)
SHARES = (0.1, 0.05, 0.02, 0.01)
SIZES = (100, 200, 500, 1000, 2000, 5000, 10_000)


def needed(share: float) -> dict[str, int]:
    """The least number of right rows that can certify a miscoverage of `share`; of rows without
    error, an accuracy.
    """
    found = {str(delta): bounds.correct_rows_needed(share, delta) for delta in DELTAS}
    same = [bounds.error_free_rows_needed(1 - share, delta) for delta in DELTAS]
    if list(found.values()) != same:
        raise AssertionError(f"{found} right rows, {same} rows without an error")
    return {**found, "in expectation": bounds.correct_rows_needed(share, None)}


def used(n: int, share: float) -> float:
    """The mean miscoverage of the rule certified at delta = .1 from n right rows, (n + 1 - k) / (n
    + 1).
    """
    if n < bounds.correct_rows_needed(share, 0.1):
        return 0.0
    return round((n + 1 - bounds.certified_miscoverage_rank(n, share, delta=0.1)) / (n + 1), 6)


def main() -> None:
    """Compute and write."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, default=RESULTS)
    options = parser.parse_args()
    answer = {
        "needed": {str(share): needed(share) for share in SHARES},
        "used": {
            str(share): {str(n): used(n, share) for n in SIZES} for share in (0.1, 0.05, 0.01)
        },
    }
    options.out.write_text(json.dumps(answer, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
