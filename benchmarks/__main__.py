"""python -m benchmarks: the experiments that have a command; every other script here is a module of
its own.
"""

from __future__ import annotations

from typing import ClassVar

import click

from metacal.cli import Commands


class Benchmarks(Commands):
    """Errors, warnings and signals end a benchmark as they end the `metacal` command."""

    summaries: ClassVar[dict[str, str]] = {
        "paper": "Run the experiments of the Meta-Cal paper, beside its printed figures.",
        "selective": (
            "Compare rules that abstain: what they accept, how often they break their promise."
        ),
        "quality": "Compare the probabilities of every calibrator, ours and other packages'.",
        "all": "Which committed results are stale; run their commands again, all or some.",
        "pages": "Put the committed results into README and docs, or check that they are there.",
        "speed": (
            "Time every part of metacal against a plain read of the table and against its peers."
        ),
    }
    module_template: ClassVar[str] = "benchmarks.{}.command"


@click.command(
    cls=Benchmarks,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)
def main() -> None:
    """Measure speed, repeat the experiments of the paper, compare rules that abstain.

    From the root of the repository. The other scripts of the folder are run by name, as in python
    -m benchmarks.labels; each says in its first lines what it measures and what it writes.
    """


if __name__ == "__main__":
    main(prog_name="python -m benchmarks")
