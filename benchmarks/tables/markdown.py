"""Numbers and tables in Markdown, as the benchmark pages print them."""

from __future__ import annotations

from collections.abc import Sequence


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """The lines of a Markdown table.

    Examples
    --------
    >>> table(["set", "ECE"], [["cifar10", ".005"]])
    ['| set | ECE |', '|---|---|', '| cifar10 | .005 |']
    """
    return [
        f"| {' | '.join(head)} |",
        "|" + "---|" * len(head),
        *(f"| {' | '.join(row)} |" for row in rows),
    ]


def number(value: float | None, digits: int = 4) -> str:
    """A share without its leading zero, a dash for None.

    Examples
    --------
    >>> number(0.0512), number(1.0, 3), number(-0.25, 2), number(None)
    ('.0512', '1.000', '-.25', '-')
    """
    if value is None:
        return "-"
    text = f"{value:.{digits}f}"
    if text.lstrip("-").startswith("0."):
        return text.replace("0.", ".", 1)
    return text
