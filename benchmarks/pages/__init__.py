"""README and docs: every table and every measured number in them comes from a committed result."""

from __future__ import annotations

from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
RESULTS = ROOT / "benchmarks" / "results"
#: Everything that is read for numbers.
PAGES = (ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")))
#: Pages written from the help of the commands, whose numbers are not measured.
GENERATED_PAGES = {"cli.md"}
