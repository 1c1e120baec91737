"""Weights of the candidates of a stack, from their out-of-fold probabilities."""

from __future__ import annotations

import numpy as np
from scipy.special import expit

from metacal.formulas import Flags, Float
from metacal.maps.fitting.mixture import fit_mixture_weights
from metacal.maps.labelled import Weights

#: Weight below which a member is omitted.
_MIN_WEIGHT = 0.03
#: Number of prior rows of each member in the mixture of all members.
_PRIOR_ROWS = 0.05
#: Number of prior rows of each member in the mixture of members near temperature scaling.
_NEAR_PRIOR_ROWS = 1.0
#: Gain in nats at which the full mixture is as probable as the one near temperature scaling.
_BREAK_EVEN_GAIN_IN_NATS = 3.0


def compute_candidate_weights(
    probabilities: Float,
    weights: Weights,
    handicaps_in_nats: Float,
    is_near_temperature_scaling: Flags,
) -> Float:
    """Compute the mixture weights of the candidates. Weights below 3% become zero.

    The result combines two mixtures:

    1. The mixture of the candidates near temperature scaling, each with a prior of one row on
       which only it is correct (a Dirichlet prior with exponents of 2). With few rows it is hard
       to improve on.
    2. The mixture of all candidates with a weak prior. A candidate with a handicap of h must
       make the held-out rows h nats more likely to be as good as one without, so its
       probabilities are divided by e^(h/n).

    The second mixture has the posterior probability that Bayes' rule gives it if it is e³ times
    less probable a priori: σ(gain in nats - 3).

    Parameters
    ----------
    probabilities : array of shape (n_rows, n_candidates)
        Out-of-fold probabilities of the true class.

    weights : array of shape (n_rows,) or None
        Weight of each row.

    handicaps_in_nats : array of shape (n_candidates,)
        Handicaps in nats.

    is_near_temperature_scaling : array of bool of shape (n_candidates,)
        Mask of the candidates near temperature scaling.

    Returns
    -------
    array of shape (n_candidates,)
        Weights, which sum to one.
    """
    row_weights = np.ones(len(probabilities)) if weights is None else weights
    near_temperature_mixture = _fit_near_temperature_mixture(
        probabilities, row_weights, is_near_temperature_scaling
    )
    mixture = near_temperature_mixture
    if not is_near_temperature_scaling.all():
        n_rows = len(probabilities)
        penalised_probabilities = probabilities * np.exp(-handicaps_in_nats / n_rows)
        full_mixture = _fit_mixture_with_prior(penalised_probabilities, row_weights, _PRIOR_ROWS)
        with np.errstate(divide="ignore"):
            full_log_likelihood = np.log(probabilities @ full_mixture)
            row_gains = full_log_likelihood - np.log(probabilities @ near_temperature_mixture)
        mean_gain = float(np.average(row_gains, weights=row_weights))
        mean_handicap_in_nats = float(handicaps_in_nats @ full_mixture)
        gain_in_nats = mean_gain * n_rows - mean_handicap_in_nats
        full_mixture_probability = float(expit(gain_in_nats - _BREAK_EVEN_GAIN_IN_NATS))
        mixture = (
            full_mixture_probability * full_mixture
            + (1.0 - full_mixture_probability) * near_temperature_mixture
        )
    is_negligible = mixture < min(_MIN_WEIGHT, mixture.max())
    mixture[is_negligible] = 0.0
    return np.asarray(mixture / mixture.sum())


def _fit_near_temperature_mixture(
    probabilities: Float, row_weights: Float, is_near_temperature_scaling: Flags
) -> Float:
    """Fit the mixture of only the candidates near temperature scaling."""
    mixture = np.zeros(len(is_near_temperature_scaling))
    if is_near_temperature_scaling.any():
        near_probabilities = probabilities[:, is_near_temperature_scaling]
        is_informative = near_probabilities.max(axis=1) > 0.0
        mixture[is_near_temperature_scaling] = _fit_mixture_with_prior(
            near_probabilities[is_informative], row_weights[is_informative], _NEAR_PRIOR_ROWS
        )
    return mixture


def _fit_mixture_with_prior(table: Float, row_weights: Float, prior_rows: float) -> Float:
    """Fit mixture weights with prior rows that favour each candidate equally."""
    n_candidates = table.shape[1]
    prior_weights = np.full(n_candidates, prior_rows * row_weights.mean())
    extended_table = np.concatenate([table, np.eye(n_candidates)])
    return fit_mixture_weights(extended_table, np.append(row_weights, prior_weights))
