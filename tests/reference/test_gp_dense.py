"""Gaussian-process calibration against a dense process, sampled: same prior, same likelihood,
nothing else shared.

The original (Wenger et al. 2020) runs no more. Here the latent function is drawn at every logit of
a small table, without inducing inputs, bounds or Newton steps, by elliptical slice sampling
(Murray, Adams & MacKay, AISTATS 2010).
"""

from __future__ import annotations

import numpy as np
import pytest
from scipy.special import log_softmax, softmax

from metacal.maps import gp
from metacal.maps.temperature import fit_temperature
from metacal.rows import Rows

SHARE, VARIANCE = 0.4, 2.0


def bent(n, k, seed):
    """Logits whose log-odds are bent: too large where they are large, too small where they are
    small.
    """
    random = np.random.default_rng(seed)
    truth = random.normal(0.0, 1.5, (n, k))
    return np.sign(truth) * truth**2, (truth + random.gumbel(size=(n, k))).argmax(axis=1)


def dense_posterior(points, lengthscale, labels, draws, seed):
    """Draws of f at every entry of `points` (rows × classes), f ~ GP(identity, squared
    exponential).
    """
    random = np.random.default_rng(seed)
    flat = points.ravel()
    gaps = (flat[:, None] - flat[None, :]) / lengthscale
    values, vectors = np.linalg.eigh(VARIANCE * np.exp(-0.5 * gaps * gaps))
    root = vectors * np.sqrt(np.maximum(values, 0.0))

    def likelihood(away):
        return float(
            log_softmax(points + away.reshape(points.shape), axis=1)[
                np.arange(len(labels)), labels
            ].sum()
        )

    away = np.zeros(len(flat))
    here, found = likelihood(away), []
    for draw in range(draws):
        other = root @ random.standard_normal(len(flat))
        least = here + np.log(random.random())
        angle = random.uniform(0.0, 2.0 * np.pi)
        low, high = angle - 2.0 * np.pi, angle
        while True:
            there = away * np.cos(angle) + other * np.sin(angle)
            value = likelihood(there)
            if value > least:
                break
            low, high = (angle, high) if angle < 0.0 else (low, angle)
            angle = random.uniform(low, high)
        away, here = there, value
        if draw >= draws // 5:
            found.append(away)
    return points + np.array(found).reshape(-1, *points.shape)


@pytest.mark.slow
@pytest.mark.parametrize(("n", "k", "seed"), [(150, 3, 0), (120, 4, 1)])
def test_the_posterior_is_that_of_a_dense_process(monkeypatch, n, k, seed):
    monkeypatch.setattr(gp, "_LENGTHSCALE_FRACTIONS", (SHARE,))
    monkeypatch.setattr(gp, "_VARIANCES", (VARIANCE,))
    logits, labels = bent(n, k, seed)
    fitted = gp.fit_gaussian_process(Rows(logits), labels, n_inducing=20)
    b = fit_temperature(Rows(logits), labels).inverse_temperature
    points = b * (logits - logits.mean(axis=1, keepdims=True))
    draws = dense_posterior(points, fitted.lengthscale, labels, 6000, seed)
    ours = _centred(fitted.latent(points.ravel()).reshape(points.shape))
    dense, plain = _centred(draws), _centred(points)
    away = np.abs(ours - dense.mean(axis=0))
    assert (away <= 0.2 * dense.std(axis=0)).all()  # a share of what the rows leave open
    assert away.max() <= 0.4 * np.abs(dense.mean(axis=0) - plain).max()  # and of what they teach
    assert np.abs(softmax(ours, axis=1) - softmax(dense.mean(axis=0), axis=1)).max() <= 0.01


def _centred(latent):
    """Less the mean of the row: a constant added to f changes no probability, and the rows say
    nothing about it.
    """
    return latent - latent.mean(axis=-1, keepdims=True)
