"""What the paper's code computes, and how: written anew from the publications, to be timed against.

Ma & Blaschko, "Meta-Cal", ICML 2021, Algorithms 1 and 2, with the temperature fitted as their code
does: BFGS with numerical derivatives over scikit-learn's log loss of the whole softmax table.
Ensemble temperature as in Zhang, Kailkhura & Han, "Mix-n-Match", ICML 2020: a bounded search for T,
then SLSQP over the n × K tables of its members. Nothing here is fast on purpose or slow on purpose.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import isotonic_regression, minimize
from scipy.special import softmax
from scipy.stats import entropy
from sklearn.metrics import log_loss

Table = NDArray[Any]
Labels = NDArray[np.int64]

#: The gate: threshold and temperature.
Gate = tuple[float, float]

_SHARE, _MOST, _BINS = 10, 500, 20


def temperature(logits: Table, labels: Labels) -> float:
    """T by BFGS over log_loss(softmax(x / T))."""
    classes = np.arange(logits.shape[1])

    def loss(parameter: NDArray[np.float64]) -> float:
        return float(log_loss(labels, softmax(logits / parameter, axis=1), labels=classes))

    return float(minimize(loss, x0=1.0, method="BFGS", options={"maxiter": 50}).x[0])


def entropy_scores(logits: Table) -> NDArray[Any]:
    """Entropy of softmax(x) of each row."""
    return np.asarray(entropy(softmax(logits, axis=1), axis=1))


def max_miscoverage(logits: Table, labels: Labels, alpha: float, seed: int) -> Gate:
    """Algorithm 1: the threshold from a tenth of the correct rows, T from the rows below it among
    all others.
    """
    right = np.flatnonzero(logits.argmax(axis=1) == labels)
    first = np.random.default_rng(seed).permutation(right)[: min(len(right) // _SHARE, _MOST)]
    scores = np.sort(entropy_scores(logits[first]))
    rank = int(np.ceil((len(scores) + 1) * (1.0 - alpha)))
    threshold = float(scores[rank - 1]) if rank <= len(scores) else np.inf
    return threshold, _base(logits, labels, first, threshold)


def min_accuracy(logits: Table, labels: Labels, beta: float, seed: int) -> Gate:
    """Algorithm 2: the threshold from the binned accuracy of a tenth of the rows, T from the rows
    below it.
    """
    first = np.random.default_rng(seed).permutation(len(logits))[
        : min(len(logits) // _SHARE, _MOST)
    ]
    scores = entropy_scores(logits[first])
    correct = logits[first].argmax(axis=1) == labels[first]
    bins = np.array_split(np.argsort(scores), _BINS)
    centres = np.array([scores[rows].mean() for rows in bins])
    accuracy = np.cumsum([correct[rows].sum() for rows in bins]) / np.cumsum(
        [len(rows) for rows in bins]
    )
    smooth = isotonic_regression(accuracy, increasing=False).x
    threshold = float(np.interp(-beta, -smooth, centres))
    return threshold, _base(logits, labels, first, threshold)


def _base(logits: Table, labels: Labels, first: NDArray[np.int64], threshold: float) -> float:
    second = np.ones(len(logits), dtype=bool)
    second[first] = False
    logits, labels = logits[second], labels[second]
    below = entropy_scores(logits) < threshold
    return temperature(logits[below], labels[below])


def predict_proba(logits: Table, gate: Gate) -> Table:
    """softmax(x / T) below the threshold, 1/K above."""
    threshold, fitted = gate
    below = entropy_scores(logits) < threshold
    proba = np.empty_like(logits)
    proba[below] = softmax(logits[below] / fitted, axis=1)
    proba[~below] = 1.0 / logits.shape[1]
    return proba


def ensemble_temperature(logits: Table, labels: Labels) -> tuple[float, NDArray[np.float64]]:
    """T by L-BFGS-B over the n × K loss, then the three weights by SLSQP over the n × K members."""
    rows, classes = logits.shape
    truth = np.zeros((rows, classes), dtype=logits.dtype)
    truth[np.arange(rows), labels] = 1.0

    def cross_entropy(proba: Table) -> float:
        return float(-(truth * np.log(np.clip(proba, 1e-20, 1.0))).sum() / rows)

    def of_temperature(parameter: NDArray[np.float64]) -> float:
        return cross_entropy(softmax(logits / parameter, axis=1))

    fitted = float(
        minimize(of_temperature, 1.0, method="L-BFGS-B", bounds=[(0.05, 5.0)], tol=1e-12).x[0]
    )
    tempered, plain = softmax(logits / fitted, axis=1), softmax(logits, axis=1)
    uniform = np.full_like(plain, 1.0 / classes)

    def of_weights(w: NDArray[np.float64]) -> float:
        return cross_entropy(w[0] * tempered + w[1] * plain + w[2] * uniform)

    total = {"type": "eq", "fun": lambda w: w.sum() - 1.0}
    found = minimize(
        of_weights,
        (1.0, 0.0, 0.0),
        method="SLSQP",
        bounds=[(0.0, 1.0)] * 3,
        constraints=total,
        tol=1e-12,
    )
    return fitted, np.asarray(found.x)
