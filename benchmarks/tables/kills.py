"""The tables of what was killed: `benchmarks/label_kills.py` and `benchmarks/cluster_kills.py`."""

from __future__ import annotations

from typing import Any

from benchmarks.tables.markdown import table

Results = dict[str, Any]


def label(results: Results) -> list[str]:
    """How the real command was disturbed, how often, and what became of the answers."""
    ways = {"killed by `kill -9` at a random moment": ("kills", "killed")}
    ways |= {f"{name}": (name, "times") for name in ("two at once", "five at once")}
    rows = [
        (way, *(str(results[key][one]) for one in (times, "lost", "doubled", "changed")))
        for way, (key, times) in ways.items()
    ]
    return table(("`metacal label`", "times", "answers lost", "doubled", "changed"), rows)


def cluster(results: Results) -> list[str]:
    """What runs ended in whose workers were killed."""
    ends = {
        "same_bits": "the bits of one machine",
        "sentence": "an error that names the loss",
        "wrong_bits": "other bits",
    }
    ends |= {"raw_error": "a raw error", "hung": "no end"}
    rows = [
        (work, *(str(results[work][end]) for end in ends))
        for work in ("fit", "apply", "evaluate", "compare")
    ]
    return table(
        (f"{results['n_killed']:,} workers killed in {results['n_runs']:,} runs", *ends.values()),
        rows,
    )
