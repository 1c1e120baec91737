"""metacal config: what this installation runs on, and why; what a report of a problem should name."""

from __future__ import annotations

import click

from metacal.cli.options import json_option
from metacal.cli.printing import say


@click.command()
@json_option
def command(as_json: bool) -> None:
    """Show which kernel runs here and why, the versions around it, and what the environment sets.

    \b
    Examples:
      metacal config
      metacal config --json | jq .kernel
    """  # noqa: D301
    from metacal.config import show_config

    config = show_config()
    say(config.to_dict(), config, as_json=as_json)
