"""The scikit-learn face of Dirichlet calibration."""

from __future__ import annotations

from metacal.estimators.penalised import MatrixFace
from metacal.maps.dirichlet import DirichletMap


class DirichletCalibration(MatrixFace):
    """softmax(A log p + c), with p = softmax(x): matrix scaling of log-probabilities.

    Kull, Perello-Nieto, Kängsepp, Silva Filho, Song & Flach, "Beyond temperature scaling: Obtaining well-calibrated
    multiclass probabilities with Dirichlet calibration", NeurIPS 2019. May change predictions.

    Parameters
    ----------
    penalty : "structured", "odir" or "l2"
        As for MatrixScaling; `odir` is Kull et al.'s. Their strengths, which go with the mean likelihood of n rows and
        with untempered logits, are λT²K²(K-1)²/n off the diagonal and λK²/n for the intercept.
    regularisation, intercept_regularisation, n_folds, random_state
        As in `VectorScaling`; 0 is (almost) no penalty.
    input, classes, n_jobs
        As in `TemperatureScaling`.

    Attributes
    ----------
    map_ : DirichletMap
        The fitted map, a frozen value.
    matrix_ : array of shape (K, K)
        A.
    bias_ : array of shape (K,)
        c.
    regularisation_ : float
        The strength that was used.

    Examples
    --------
    >>> import metacal as mc
    >>> (fit_x, fit_y), (new_x, new_y) = mc.datasets.load("cifar10-resnet110").split(5000, random_state=0)
    >>> cal = DirichletCalibration(regularisation=1.0).fit(fit_x, fit_y)
    >>> temperature = mc.TemperatureScaling().fit(fit_x, fit_y)
    >>> mc.metrics.nll(cal.predict_proba(new_x), new_y) < mc.metrics.nll(temperature.predict_proba(new_x), new_y)
    True
    """

    map_: DirichletMap
