"""Kernels of the affine maps: loss, gradient and curvature of softmax(A u + c) over one block of
rows, in float64.

The parameters θ are one table with the intercept c as its last row. Two rows (2 × K) mean a
diagonal A, the first row; K + 1 rows mean a full one, held transposed, so that u @ θ[:-1] is A u.
The features u of a row of logits x are shifted so that adding a constant to a row changes nothing:
`centred` (x less its mean) or `log_probabilities` (x less its logsumexp). A masked class (-inf)
stays masked; as a feature of other classes it counts as the row's mean.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from metacal.formulas import Array, Codes, Flags, Float
from metacal.formulas.logits import limit_logits

#: From a block of logits to features, and the mask of -inf entries (None when there are none).
Features = Callable[[Array], tuple[Float, Flags | None]]


def centred(block: Array) -> tuple[Float, Flags | None]:
    """u = x - mean x, over the classes that are not masked."""
    table = np.array(limit_logits(block), dtype=np.float64, order="C")
    masked = _fill_masked(table)
    table -= table.mean(axis=1, keepdims=True)
    return table, masked


def log_probabilities(block: Array, inverse_temperature: float = 1.0) -> tuple[Float, Flags | None]:
    """u = log softmax(b·x)."""
    table = np.array(limit_logits(block), dtype=np.float64, order="C")
    table -= table.max(axis=1, keepdims=True)
    if inverse_temperature != 1.0:
        table *= inverse_temperature
    table -= np.log(np.exp(table).sum(axis=1, keepdims=True))
    return table, _fill_masked(table)


def write_features(block: Array, out: Array, features: Features) -> None:
    """Write the features of a block into `out`, -inf where a class is masked: what `given` takes
    back.
    """
    table, masked = features(block)
    if masked is not None:
        table[masked] = -np.inf
    out[...] = table


def given(block: Array) -> tuple[Float, Flags | None]:
    """Features that were made before, a copy."""
    table = np.array(block, dtype=np.float64, order="C")
    return table, _fill_masked(table)


def _fill_masked(table: Float) -> Flags | None:
    """Put the mean of the row's other entries in place of -inf; return where they were."""
    if table.min() > -np.inf:
        return None
    masked = np.isneginf(table)
    table[masked] = 0.0
    means = table.sum(axis=1) / (~masked).sum(axis=1)
    table[masked] = np.broadcast_to(means[:, None], table.shape)[masked]
    return masked


def loss(
    block: Array,
    labels: Codes,
    weights: Float | None,
    features: Features,
    unit: float,
    theta: Float,
) -> Float:
    """Sum over rows of the negative log-likelihood of softmax(A u + c), as an array of one
    number.
    """
    _, sums, scores, _ = _powers(block, features, unit, theta)
    return np.asarray(_losses(labels, weights, sums, scores).sum(keepdims=True))


def loss_and_gradient(
    block: Array,
    labels: Codes,
    weights: Float | None,
    features: Features,
    unit: float,
    theta: Float,
) -> Float:
    """The loss, followed by its gradient in θ, flattened: Σ (p - e_y) ⊗ (u, 1)."""
    powers, sums, scores, table = _powers(block, features, unit, theta)
    value = _losses(labels, weights, sums, scores).sum()
    powers /= sums[:, None]
    powers[np.arange(len(powers)), labels] -= 1.0
    if weights is not None:
        powers *= weights[:, None]
    slopes = np.einsum("ij,ij->j", powers, table) if len(theta) == 2 else table.T @ powers
    return np.concatenate([[value], slopes.ravel(), powers.sum(axis=0)])


def curvature(
    block: Array,
    labels: Codes,
    weights: Float | None,
    features: Features,
    unit: float,
    theta: Float,
) -> Float:
    """What the preconditioner needs of the Hessian, one class to a column, with r = p(1-p).

    The rows are Σ r u_own², Σ r u_own, Σ r and, for a full matrix, Σ r |u|² followed by the K rows
    of Σ |r| u uᵀ.
    """
    powers, sums, _, table = _powers(block, features, unit, theta)
    powers /= sums[:, None]
    powers *= 1.0 - powers
    if weights is not None:
        powers *= weights[:, None]
    weighted = powers * table
    rows = [
        np.einsum("ij,ij->j", weighted, table)[None],
        weighted.sum(axis=0)[None],
        powers.sum(axis=0)[None],
    ]
    if len(theta) > 2:
        rows.append(np.einsum("ij,ij->i", table, table)[None] @ powers)
        rows.append((table * powers.sum(axis=1, keepdims=True)).T @ table)
    return np.concatenate(rows)


def whole_curvature(
    block: Array, weights: Float | None, features: Features, unit: float, theta: Float
) -> Float:
    """The Hessian in (scales, intercepts) of a diagonal A, 2K × 2K: with v = (p·u, p), Σ diag(p u²,
    p u, p) - v vᵀ.
    """
    powers, sums, _, table = _powers(block, features, unit, theta)
    powers /= sums[:, None]
    counts = np.ones(len(powers)) if weights is None else weights
    weighted = powers * table
    both = np.concatenate([weighted, powers], axis=1)
    found = np.asarray(-(both * counts[:, None]).T @ both, dtype=np.float64)
    n_classes = powers.shape[1]
    own = np.arange(n_classes)
    found[own, own] += counts @ (weighted * table)
    found[own, own + n_classes] += counts @ weighted
    found[own + n_classes, own] += counts @ weighted
    found[own + n_classes, own + n_classes] += counts @ powers
    return found


def squared_features(block: Array, weights: Float | None, features: Features) -> Float:
    """Σ of the squared features, as an array of one number."""
    table, _ = features(block)
    squares = np.einsum("ij,ij->i", table, table)
    return np.asarray((squares if weights is None else squares * weights).sum(keepdims=True))


def _powers(
    block: Array, features: Features, unit: float, theta: Float
) -> tuple[Float, Float, Float, Float]:
    """With z = A u + c less its largest entry: e^z, Σ e^z, z, and the features u in units."""
    table, masked = features(block)
    if unit != 1.0:
        table *= unit
    scores = table * theta[0] if len(theta) == 2 else table @ theta[:-1]
    scores += theta[-1]
    if masked is not None:
        scores[masked] = -np.inf
    scores -= scores.max(axis=1, keepdims=True)
    powers = np.exp(scores)
    return powers, powers.sum(axis=1), scores, table


def _losses(labels: Codes, weights: Float | None, sums: Float, scores: Float) -> Float:
    losses = np.log(sums) - scores[np.arange(len(scores)), labels]
    return losses if weights is None else losses * weights
