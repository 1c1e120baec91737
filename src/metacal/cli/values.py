"""Types and parsers of option values, and the error for an invalid value."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import click


class RegistryChoice(click.Choice):  # type: ignore[type-arg]  # no generic before click 8.2
    """Choice between the names in a registry, which plugins may extend.

    Parameters
    ----------
    registered : callable
        Returns the names that are registered now.
    *more : str
        Further choices that are not in the registry.
    """

    def __init__(self, list_registered: Callable[[], Iterable[str]], *fixed_choices: str) -> None:
        self.list_registered = list_registered
        self.fixed_choices = fixed_choices
        self.case_sensitive = True

    @property
    def choices(self) -> tuple[str, ...]:  # type: ignore[override]
        """Names that are registered now, followed by the fixed choices."""
        return (*self.list_registered(), *self.fixed_choices)


def convert_confidence_to_delta(confidence_level: float) -> float:
    """Return the error probability of a confidence level, without floating-point error.

    Examples
    --------
    >>> 1.0 - 0.9, convert_confidence_to_delta(0.9)
    (0.09999999999999998, 0.1)
    """
    n_decimals = 12
    return round(1.0 - confidence_level, n_decimals)


# A count beyond these ranges is most likely a typing error and would exhaust the memory.
BINS_RANGE = click.IntRange(1, 1000)


RESAMPLES_RANGE = click.IntRange(0, 100_000)


REPEATS_RANGE = click.IntRange(1, 1000)


#: scikit-learn accepts seeds of 32 bits.
SEED_RANGE = click.IntRange(0, 2**32 - 1)


#: Largest number of threads; a saved file may request as many.
MAX_JOBS = 1024


def bad_option(name: str, reason: str) -> click.BadParameter:
    """Build the usage error for an option with an invalid value."""
    return click.BadParameter(reason, param_hint=f"'{name}'")


def build_number_parser(
    low: float, high: float, valid_description: str, problem: str
) -> Callable[[Any], float]:
    """Build a parser for numbers strictly between two limits.

    Parameters
    ----------
    low, high : float
        Limits, which are excluded.
    valid_description : str
        Description of a valid value, for the advice in errors.
    problem : str
        Description of the problem, for the error about a number outside the limits.

    Returns
    -------
    callable
        Converts a value to float. Raises `click.BadParameter` if the value is invalid; if it
        looks like a percentage, the error suggests the fraction.

    Examples
    --------
    >>> build_number_parser(0.0, 1e15, "a cost, such as 50", "is not a positive number")("50")
    50.0
    """

    def parse(value: Any) -> float:
        try:
            number = float(value)
        except ValueError:
            raise click.BadParameter(
                f"{str(value)[:40]!r} is not a number. Pass {valid_description}."
            ) from None
        if not low < number < high:
            advice = f"Pass {valid_description}"
            looks_like_percentage = high == 1.0 and 1.0 < number < 100.0
            if looks_like_percentage:
                advice = f"Write {number:g}% as {number / 100:g}"
            raise click.BadParameter(f"{value} {problem}. {advice}.")
        return number

    return parse


parse_fraction = build_number_parser(
    0.0, 1.0, "one between 0 and 1, such as 0.95", "is not strictly between 0 and 1"
)


def parse_numbers(value: str) -> list[float]:
    """Parse numbers separated by commas."""
    try:
        return [float(part) for part in value.split(",")]
    except ValueError:
        raise click.BadParameter(
            f"Expected numbers separated by commas, but got {value!r}."
        ) from None


def parse_row_range(value: str) -> tuple[float, float]:
    """Parse a random part of the rows, such as 0:0.7.

    Examples
    --------
    >>> parse_row_range("0.7:1")
    (0.7, 1.0)
    """
    start_text, _, stop_text = value.partition(":")
    try:
        start, stop = float(start_text or 0.0), float(stop_text or 1.0)
    except ValueError:
        start, stop = 0.0, 0.0
    if not 0.0 <= start < stop <= 1.0:
        raise click.BadParameter(
            f"A range of rows must be two fractions in ascending order, but got {value!r}. Pass,"
            " for example, 0:0.7 for the first 70% of the rows and 0.7:1 for the rest."
        )
    return start, stop


def format_row_range(part: tuple[float, float]) -> str:
    """Return the option value that `parse_row_range` parses to a part of the rows.

    Examples
    --------
    >>> format_row_range((0.7, 1.0))
    '0.7:1'
    """
    start, stop = part
    return f"{start:.12g}:{stop:.12g}"
