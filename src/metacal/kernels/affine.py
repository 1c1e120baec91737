"""Kernels of affine maps softmax(A u + c): loss, gradient and curvature.

The parameters θ are one table whose last row is the intercept c. If θ has two rows (2 × K), A is
diagonal and the first row is its diagonal. If θ has K + 1 rows, A is a full matrix and is stored
transposed, so that u @ θ[:-1] is A u.

The features u of a row of logits x do not change if a constant is added to the row. They are
`compute_centred_logits` (x minus its mean) or `compute_log_softmax` (x minus its logsumexp). A masked class (-inf)
stays masked. As a feature of the other classes it counts as the mean of the row.

Every kernel has the parameter `feature_scale`, a factor that is applied to the features.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from metacal.formulas import Array, Codes, Flags, Float
from metacal.formulas.logits import limit_logits

#: Type of functions from a block of logits to features and an optional mask of -inf entries.
ComputeFeatures = Callable[[Array], tuple[Float, Flags | None]]


def compute_centred_logits(block: Array) -> tuple[Float, Flags | None]:
    """Compute u = x - mean x, over the classes that are not masked."""
    table = np.array(limit_logits(block), dtype=np.float64, order="C")
    is_masked = _fill_masked(table)
    table -= table.mean(axis=1, keepdims=True)
    return table, is_masked


def compute_log_softmax(
    block: Array, inverse_temperature: float = 1.0
) -> tuple[Float, Flags | None]:
    """Compute u = log softmax(b·x)."""
    table = np.array(limit_logits(block), dtype=np.float64, order="C")
    table -= table.max(axis=1, keepdims=True)
    if inverse_temperature != 1.0:
        table *= inverse_temperature
    table -= np.log(np.exp(table).sum(axis=1, keepdims=True))
    return table, _fill_masked(table)


def write_features(block: Array, out: Array, compute_features: ComputeFeatures) -> None:
    """Write features into `out`, -inf for masked classes.

    `copy_precomputed_features` reads them.
    """
    table, is_masked = compute_features(block)
    if is_masked is not None:
        table[is_masked] = -np.inf
    out[...] = table


def copy_precomputed_features(block: Array) -> tuple[Float, Flags | None]:
    """Copy precomputed features, and return the mask of their -inf entries."""
    table = np.array(block, dtype=np.float64, order="C")
    return table, _fill_masked(table)


def _fill_masked(table: Float) -> Flags | None:
    """Replace -inf by the mean of the finite entries of the row; return the mask."""
    if table.min() > -np.inf:
        return None
    is_masked = np.isneginf(table)
    table[is_masked] = 0.0
    means = table.sum(axis=1) / (~is_masked).sum(axis=1)
    table[is_masked] = np.broadcast_to(means[:, None], table.shape)[is_masked]
    return is_masked


def sum_loss(
    block: Array,
    labels: Codes,
    weights: Float | None,
    compute_features: ComputeFeatures,
    feature_scale: float,
    theta: Float,
) -> Float:
    """Sum the negative log-likelihood of softmax(A u + c) over rows.

    Parameters
    ----------
    block : array of shape (n_rows, n_classes)
        Logits.

    labels : array of int of shape (n_rows,)
        True classes.

    weights : array of shape (n_rows,) or None
        Row weights.

    compute_features : callable
        Returns the features of a block and the mask of masked classes.

    feature_scale : float
        Factor of the features.

    theta : array of shape (2, n_classes) or (n_classes + 1, n_classes)
        Parameters.

    Returns
    -------
    array of shape (1,)
    """
    model = _evaluate_model(block, compute_features, feature_scale, theta)
    return np.asarray(_row_losses(model, labels, weights).sum(keepdims=True))


def sum_loss_and_gradient(
    block: Array,
    labels: Codes,
    weights: Float | None,
    compute_features: ComputeFeatures,
    feature_scale: float,
    theta: Float,
) -> Float:
    """Sum the loss and its gradient in θ over rows, Σ (p - e_y) ⊗ (u, 1).

    Parameters
    ----------
    block, labels, weights, compute_features, feature_scale, theta
        As in `sum_loss`.

    Returns
    -------
    array of shape (1 + theta.size,)
        The loss, followed by the flattened gradient.
    """
    model = _evaluate_model(block, compute_features, feature_scale, theta)
    total_loss = _row_losses(model, labels, weights).sum()
    # The residuals p - e_y are computed in place.
    residuals = model.overwrite_exponentials_with_probabilities()
    residuals[np.arange(len(residuals)), labels] -= 1.0
    if weights is not None:
        residuals *= weights[:, None]
    if _is_diagonal(theta):
        slope_gradient = np.einsum("ij,ij->j", residuals, model.features)
    else:
        slope_gradient = model.features.T @ residuals
    intercept_gradient = residuals.sum(axis=0)
    return np.concatenate([[total_loss], slope_gradient.ravel(), intercept_gradient])


def sum_curvatures(
    block: Array,
    labels: Codes,
    weights: Float | None,
    compute_features: ComputeFeatures,
    feature_scale: float,
    theta: Float,
) -> Float:
    """Sum the curvatures for the preconditioner over rows.

    Parameters
    ----------
    block, labels, weights, compute_features, feature_scale, theta
        As in `sum_loss`. The labels are not used.

    Returns
    -------
    array of shape (3, n_classes) or (4 + n_classes, n_classes)
        With r = p(1-p), the first rows are Σ r u², Σ r u and Σ r, where u is the feature of the same
        class. For a full matrix, Σ r |u|² and the K rows of Σ |r| u uᵀ follow.
    """
    model = _evaluate_model(block, compute_features, feature_scale, theta)
    features = model.features
    # The variances p(1-p) are computed in place.
    variances = model.overwrite_exponentials_with_probabilities()
    variances *= 1.0 - variances
    if weights is not None:
        variances *= weights[:, None]
    variances_times_features = variances * features
    slope_curvature = np.einsum("ij,ij->j", variances_times_features, features)
    cross_curvature = variances_times_features.sum(axis=0)
    intercept_curvature = variances.sum(axis=0)
    curvatures = [slope_curvature[None], cross_curvature[None], intercept_curvature[None]]
    if not _is_diagonal(theta):
        squared_norms = np.einsum("ij,ij->i", features, features)
        curvatures.append(squared_norms[None] @ variances)
        curvatures.append((features * variances.sum(axis=1, keepdims=True)).T @ features)
    return np.concatenate(curvatures)


def sum_hessian_of_diagonal_model(
    block: Array,
    weights: Float | None,
    compute_features: ComputeFeatures,
    feature_scale: float,
    theta: Float,
) -> Float:
    """Sum over rows the Hessian of the loss in (scales, intercepts) of a diagonal A.

    With v = (p·u, p) it is Σ diag(p u², p u, p) - v vᵀ.

    Parameters
    ----------
    block, weights, compute_features, feature_scale, theta
        As in `sum_loss`.

    Returns
    -------
    array of shape (2 * n_classes, 2 * n_classes)
    """
    model = _evaluate_model(block, compute_features, feature_scale, theta)
    u = model.features
    p = model.overwrite_exponentials_with_probabilities()
    row_weights = np.ones(len(p)) if weights is None else weights
    p_times_u = p * u
    v = np.concatenate([p_times_u, p], axis=1)
    hessian = np.asarray(-(v * row_weights[:, None]).T @ v, dtype=np.float64)
    n_classes = p.shape[1]
    scale_indices = np.arange(n_classes)
    intercept_indices = scale_indices + n_classes
    cross_terms = row_weights @ p_times_u
    hessian[scale_indices, scale_indices] += row_weights @ (p_times_u * u)
    hessian[scale_indices, intercept_indices] += cross_terms
    hessian[intercept_indices, scale_indices] += cross_terms
    hessian[intercept_indices, intercept_indices] += row_weights @ p
    return hessian


def sum_squared_features(
    block: Array, weights: Float | None, compute_features: ComputeFeatures
) -> Float:
    """Sum the squared features over rows and classes; return an array of shape (1,)."""
    table, _ = compute_features(block)
    row_sums = np.einsum("ij,ij->i", table, table)
    if weights is not None:
        row_sums = row_sums * weights
    return np.asarray(row_sums.sum(keepdims=True))


@dataclass(frozen=True, eq=False)
class _Model:
    """Exponentials and sums of softmax(A u + c), relative to the largest score.

    Attributes
    ----------
    exponentials : array of shape (n_rows, n_classes)
        e^z. The kernels overwrite it.

    sums : array of shape (n_rows,)
        Σ e^z.

    scores : array of shape (n_rows, n_classes)
        z.

    features : array of shape (n_rows, n_classes)
        Features u times their scale.
    """

    exponentials: Float
    sums: Float
    scores: Float
    features: Float

    def overwrite_exponentials_with_probabilities(self) -> Float:
        """Return the probabilities p = e^z / Σ e^z in the memory of the exponentials."""
        return np.divide(self.exponentials, self.sums[:, None], out=self.exponentials)


def _evaluate_model(
    block: Array, compute_features: ComputeFeatures, feature_scale: float, theta: Float
) -> _Model:
    """Compute the features and scores of a block.

    Parameters
    ----------
    block, compute_features, feature_scale, theta
        As in `sum_loss`.

    Returns
    -------
    _Model
    """
    u, is_masked = compute_features(block)
    if feature_scale != 1.0:
        u *= feature_scale
    slopes = theta[:-1]
    intercepts = theta[-1]
    scores = u * slopes[0] if _is_diagonal(theta) else u @ slopes
    scores += intercepts
    if is_masked is not None:
        scores[is_masked] = -np.inf
    scores -= scores.max(axis=1, keepdims=True)
    exponentials = np.exp(scores)
    return _Model(
        exponentials=exponentials, sums=exponentials.sum(axis=1), scores=scores, features=u
    )


def _is_diagonal(theta: Float) -> bool:
    """Check whether the parameters are those of a diagonal matrix."""
    return len(theta) == 2


def _row_losses(model: _Model, labels: Codes, weights: Float | None) -> Float:
    """Compute the weighted negative log-likelihood of each row."""
    label_scores = model.scores[np.arange(len(model.scores)), labels]
    losses = np.log(model.sums) - label_scores
    return losses if weights is None else losses * weights
