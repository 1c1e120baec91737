"""Softmax regression with one scale for all classes and random class offsets.

The model is softmax(s b u + c), where u are the centred logits, b is the inverse temperature,
and the offsets are c_j ~ N(0, σ²). The standard deviation σ is the one with the largest
evidence (Laplace's approximation); scale and offsets are the posterior mode.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from metacal.formulas import Flags, Float
from metacal.kernels import affine as kernels
from metacal.maps.labelled import LabelledRows
from metacal.maps.temperature import fit_temperature

#: Standard deviations of the offsets that are compared.
_OFFSET_DEVIATIONS = (0.02, 0.05, 0.1, 0.2, 0.4, 0.8, 1.6, 3.2)
_MAX_NEWTON_STEPS = 30
#: Expected decrease of the loss, per unit of row weight, at which Newton's method stops.
_TOLERANCE = 1e-9
#: Smallest fraction of a Newton step that is tried.
_MIN_STEP_FRACTION = 1e-3
#: Prior precision of the scale around one.
_SCALE_PRECISION = 1e-3


@dataclass(frozen=True)
class ClassOffsets:
    """Fitted scale and offsets.

    Attributes
    ----------
    scale : float
        Factor on the centred logits.

    offsets : array of shape (n_classes,)
        Offset of each class.

    strength : float
        Penalty on the squared offsets, ½ / σ².

    log_evidence : float
        Logarithm of the evidence of σ, up to a constant.
    """

    scale: float
    offsets: Float
    strength: float
    log_evidence: float


@dataclass(frozen=True)
class _LossDerivatives:
    """Negative log-density and its derivatives in theta = (offsets, scale)."""

    loss: float
    gradient: Float
    hessian: Float


@dataclass(frozen=True)
class _OffsetModel:
    """Model with a given standard deviation of the offsets.

    Attributes
    ----------
    features : array of shape (n_rows, n_classes)
        Tempered centred logits; zero for masked classes.

    is_masked : array of bool of shape (n_rows, n_classes) or None
        Mask of the masked classes, or None if there are none.

    sample : LabelledRows
        Rows with labels.

    precision : array of shape (n_classes + 1,)
        Prior precision of each parameter.
    """

    features: Float
    is_masked: Flags | None
    sample: LabelledRows
    precision: Float

    def evaluate_negative_log_posterior(self, theta: Float) -> _LossDerivatives:
        """Compute the negative log-posterior with gradient and Hessian."""
        negative_log_likelihood = self._evaluate_negative_log_likelihood(
            offsets=theta[:-1], scale=theta[-1]
        )
        # The prior mean of each offset is 0, and that of the scale is 1.
        n_offsets = len(theta) - 1
        prior_mean = np.append(np.zeros(n_offsets), 1.0)
        deviation = theta - prior_mean
        return _LossDerivatives(
            loss=float(negative_log_likelihood.loss + 0.5 * self.precision @ deviation**2),
            gradient=negative_log_likelihood.gradient + self.precision * deviation,
            hessian=negative_log_likelihood.hessian + np.diag(self.precision),
        )

    def _evaluate_negative_log_likelihood(self, offsets: Float, scale: float) -> _LossDerivatives:
        """Compute the negative log-likelihood with gradient and Hessian."""
        features = self.features
        labels = self.sample.labels
        row_weights = self.sample.weights_or_ones
        n_rows, n_classes = features.shape
        label_entries = (np.arange(n_rows), labels)

        logits = scale * features + offsets
        if self.is_masked is not None:
            logits = np.where(self.is_masked, -np.inf, logits)
        logits -= logits.max(axis=1, keepdims=True)
        probabilities = np.exp(logits)
        normaliser = probabilities.sum(axis=1)
        probabilities /= normaliser[:, None]
        row_losses = np.log(normaliser) - logits[label_entries]

        class_totals = row_weights @ probabilities
        mean_feature = (probabilities * features).sum(axis=1)
        offset_gradient = class_totals - np.bincount(labels, row_weights, n_classes)
        scale_gradient = row_weights @ (mean_feature - features[label_entries])

        # The scale is the last parameter.
        hessian = np.empty((n_classes + 1, n_classes + 1))
        hessian[:-1, :-1] = (
            np.diag(class_totals) - (probabilities * row_weights[:, None]).T @ probabilities
        )
        mixed_derivatives = row_weights @ (probabilities * (features - mean_feature[:, None]))
        hessian[-1, :-1] = mixed_derivatives
        hessian[:-1, -1] = mixed_derivatives
        feature_variance = (probabilities * features * features).sum(axis=1) - mean_feature**2
        hessian[-1, -1] = row_weights @ feature_variance
        return _LossDerivatives(
            loss=row_weights @ row_losses,
            gradient=np.append(offset_gradient, scale_gradient),
            hessian=hessian,
        )

    def find_mode(self, theta: Float) -> Float:
        """Find the posterior mode by Newton steps with halving."""
        for _ in range(_MAX_NEWTON_STEPS):
            negative_log_posterior = self.evaluate_negative_log_posterior(theta)
            newton_step = np.linalg.solve(
                negative_log_posterior.hessian, negative_log_posterior.gradient
            )
            step_fraction = 1.0
            while step_fraction > _MIN_STEP_FRACTION:
                trial_loss = self.evaluate_negative_log_posterior(
                    theta - step_fraction * newton_step
                ).loss
                if not trial_loss > negative_log_posterior.loss:
                    break
                step_fraction *= 0.5
            theta = theta - step_fraction * newton_step
            expected_decrease = negative_log_posterior.gradient @ newton_step
            if expected_decrease < _TOLERANCE * self.sample.total_weight:
                break
        return theta


def fit_class_offsets(sample: LabelledRows) -> ClassOffsets:
    """Fit a scale and an offset per class, with the offset variance of best evidence.

    Parameters
    ----------
    sample : LabelledRows
        Rows whose true class is not masked.

    Returns
    -------
    ClassOffsets
    """
    centred_logits, is_masked = kernels.compute_centred_logits(sample.rows.to_host().to_array())
    if is_masked is not None:
        centred_logits = np.where(is_masked, 0.0, centred_logits)
    inverse_temperature = fit_temperature(
        sample.rows, sample.labels, sample.weights
    ).inverse_temperature
    features = inverse_temperature * centred_logits
    n_classes = features.shape[1]

    theta = np.append(np.zeros(n_classes), 1.0)
    candidates = []
    for offset_deviation in _OFFSET_DEVIATIONS:
        offset_precision = np.full(n_classes, offset_deviation**-2.0)
        precision = np.append(offset_precision, _SCALE_PRECISION)
        model = _OffsetModel(
            features=features, is_masked=is_masked, sample=sample, precision=precision
        )
        theta = model.find_mode(theta)
        negative_log_posterior = model.evaluate_negative_log_posterior(theta)
        _, log_determinant = np.linalg.slogdet(negative_log_posterior.hessian)
        log_evidence = (
            -negative_log_posterior.loss
            - n_classes * np.log(offset_deviation)
            - 0.5 * log_determinant
        )
        candidate = ClassOffsets(
            scale=inverse_temperature * theta[-1],
            offsets=theta[:-1],
            strength=0.5 / offset_deviation**2,
            log_evidence=log_evidence,
        )
        candidates.append(candidate)
    return max(candidates, key=lambda candidate: candidate.log_evidence)
