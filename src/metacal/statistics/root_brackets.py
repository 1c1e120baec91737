"""Brackets around the roots of many functions, and Chandrupatla's root search."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from metacal.formulas import Codes, Flags, Float

#: Largest width of a bracket around an error rate when the search stops.
MAX_BRACKET_WIDTH = 1e-12


#: Step to the middle of a bracket, as a fraction of its width.
BISECTION_STEP = 0.5


class RatesWithSurplus(NamedTuple):
    """Error rates at one end of each bracket, with the values of the function there.

    Attributes
    ----------
    rate : array of float of shape (n_brackets,)
        Error rate at the end of each bracket.
    surplus : array of float of shape (n_brackets,)
        Surplus of log Z over log(1 / d) at this error rate. It is 0 at a root, and at least 0 if the
        error rate is ruled out.
    """

    rate: Float
    surplus: Float

    def copy(self) -> RatesWithSurplus:
        """Return a copy whose arrays can be changed in place."""
        return RatesWithSurplus(self.rate.copy(), self.surplus.copy())

    def select(self, brackets: Codes) -> RatesWithSurplus:
        """Return the ends of the selected brackets."""
        return RatesWithSurplus(self.rate[brackets], self.surplus[brackets])

    def update(self, brackets: Codes, new_ends: RatesWithSurplus) -> None:
        """Replace the ends of the selected brackets in place."""
        self.rate[brackets] = new_ends.rate
        self.surplus[brackets] = new_ends.surplus


def choose_ends(
    condition: Flags, if_true: RatesWithSurplus, if_false: RatesWithSurplus
) -> RatesWithSurplus:
    """Choose one of two ends for each bracket."""
    return RatesWithSurplus(
        rate=np.where(condition, if_true.rate, if_false.rate),
        surplus=np.where(condition, if_true.surplus, if_false.surplus),
    )


def choose_chandrupatla_step(
    newest: RatesWithSurplus, opposite: RatesWithSurplus, replaced: RatesWithSurplus
) -> Float:
    """Compute the next step of Chandrupatla's root search in each bracket.

    It is a fraction of the way from the newest to the opposite end of the bracket.

    The symbols are those of the paper. The step is that of inverse quadratic interpolation through
    the three points if the paper's criterion holds, and a bisection otherwise.
    """
    x1, f1 = newest
    x2, f2 = opposite
    x3, f3 = replaced
    with np.errstate(divide="ignore", invalid="ignore"):
        xi = (x1 - x2) / (x3 - x2)
        phi = (f1 - f2) / (f3 - f2)
        inverse_interpolation_is_safe = (phi**2 < xi) & ((1.0 - phi) ** 2 < 1.0 - xi)
        interpolated_step = f1 / (f2 - f1) * f3 / (f2 - f3)
        interpolated_step += (x3 - x1) / (x2 - x1) * f1 / (f3 - f1) * f2 / (f3 - f2)
    # A step stays half a tolerance away from both ends, so that a bracket can close from either end.
    bracket_width = np.maximum(np.abs(x2 - x1), MAX_BRACKET_WIDTH)
    min_step = np.minimum(0.5, 0.5 * MAX_BRACKET_WIDTH / bracket_width)
    clipped_step = np.clip(interpolated_step, min_step, 1.0 - min_step)
    return np.where(inverse_interpolation_is_safe, clipped_step, BISECTION_STEP)
