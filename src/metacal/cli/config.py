"""`metacal config`: kernel, versions and environment, for problem reports."""

from __future__ import annotations

from metacal.cli.options import as_command
from metacal.cli.printing import print_result


@as_command(None)
def command() -> None:
    """Show the compute kernel, the versions of libraries, and environment variables.

    \b
    Examples:
      metacal config
      metacal config --json | jq .kernel
    """  # noqa: D301
    from metacal.config import show_config

    config = show_config()
    print_result(config.to_dict(), config)
