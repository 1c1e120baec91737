"""The Markdown table of docs/speed.md, from what `python -m benchmarks speed -o` wrote.

python -m benchmarks.speed.markdown benchmarks/results/speed-….json
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from benchmarks.speed.bars import Ratio


def main() -> None:
    """Print where the numbers come from, the bars, and the peers in reads of the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("file", type=Path)
    results = json.loads(parser.parse_args().file.read_text(encoding="utf-8"))
    found = [Ratio.from_dict(ratio) for ratio in results["ratios"]]
    kernels = list(results["kernels"])
    print("\n".join([*_origin(results), "", "## Bars", ""]))
    print("\n".join(_table([ratio for ratio in found if ratio.bar is not None], kernels)))
    print("\n## Peers\n")
    print("\n".join(_peers(results)))
    print("\n## Without a bar\n")
    print("\n".join(_table([ratio for ratio in found if ratio.bar is None], kernels)))


def _origin(results: dict[str, Any]) -> list[str]:
    machine, load = results["machine"], results["load_average"]
    versions = ", ".join(f"{name} {version}" for name, version in machine["versions"].items())
    return [
        (
            f"Processor: {machine['processor']}, {machine['cores']} cores, {machine['system']}. "
            f"Python {machine['python']}, {versions}."
        ),
        (
            f"Load average (1, 5, 15 minutes): {_listed(load['before'])} before,"
            f" {_listed(load['after'])} after."
        ),
    ]


def _listed(numbers: list[float] | None) -> str:
    return "unknown" if numbers is None else ", ".join(f"{number:g}" for number in numbers)


def _table(found: list[Ratio], kernels: list[str]) -> list[str]:
    rows: dict[tuple[str, str], dict[str, str]] = {}
    for ratio in found:
        for kernel in kernels if ratio.kernel is None else [ratio.kernel]:
            rows.setdefault((ratio.quantity, ratio.size or ""), {})[kernel] = _cell(ratio)
    head = [f"| ratio | size | {' | '.join(kernels)} |", "|---|---|" + "---|" * len(kernels)]
    cells = [
        f"| {quantity} | {size} | {' | '.join(line.get(kernel, '-') for kernel in kernels)} |"
        for (quantity, size), line in rows.items()
    ]
    return head + cells


def _cell(ratio: Ratio) -> str:
    value = f"{float(f'{ratio.value:.3g}'):,g}"
    if ratio.bar is None:
        return value
    verdict = "met" if ratio.met else "**not met**"
    return f"{value} ({'<=' if ratio.at_most else '>='} {ratio.bar:g}, {verdict})"


def _peers(results: dict[str, Any]) -> list[str]:
    """Each peer's time in reads, how often it was sampled, and how far its temperature is off."""
    lines = [
        "| peer and task | size | reads of the table | samples | error of T |",
        "|---|---|---|---|---|",
    ]
    seen = set()
    for kernel in reversed(results["kernels"]):
        for size, timed in results["kernels"][kernel]["sizes"].items():
            for name, timing in timed["peers"].items():
                if (size, name) in seen:
                    continue
                seen.add((size, name))
                if "error" in timing:
                    lines.append(f"| {name} | {size} | could not run: {timing['error']} | | |")
                    continue
                exact = results["sizes"][size]["temperature"]
                error = f"{abs(timing['answer'] / exact - 1.0):.1e}" if "answer" in timing else ""
                reads = f"{timing['median'] / timed['read']:,.0f}"
                lines.append(f"| {name} | {size} | {reads} | {timing['repeats']} | {error} |")
    return lines


if __name__ == "__main__":
    main()
