"""What the quality benchmark compares: our calibrators by name, and those of other packages that are installed."""

from __future__ import annotations

from collections.abc import Callable
from importlib.util import find_spec
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import softmax

from metacal.errors import InputError
from metacal.maps.methods import calibrator, estimator_names

#: fit(logits, codes) and then new logits -> probabilities.
Fit = Callable[[NDArray[Any], NDArray[np.int64], NDArray[Any]], NDArray[Any]]

UNCALIBRATED = "uncalibrated"
#: Ours that are compared unless others are asked for.
OURS = (
    UNCALIBRATED,
    "temperature",
    "uniform-temperature",
    "ensemble-temperature",
    "local-temperature",
    "spline",
    "composed",
    "gaussian-process",
    "irm",
    "structured",
    "vector",
    "auto",
)


def _scikit_learn(method: str) -> Fit:
    def fit(logits: NDArray[Any], codes: NDArray[np.int64], new: NDArray[Any]) -> NDArray[Any]:
        from sklearn.calibration import CalibratedClassifierCV
        from sklearn.frozen import FrozenEstimator

        from metacal.bench.logits_classifier import LogitsClassifier

        plain = FrozenEstimator(LogitsClassifier(logits.shape[1]).fit(logits, codes))
        found = CalibratedClassifierCV(plain, method=method).fit(logits, codes).predict_proba(new)
        return np.asarray(found)

    return fit


def _probmetrics(method: str) -> Fit:
    def fit(logits: NDArray[Any], codes: NDArray[np.int64], new: NDArray[Any]) -> NDArray[Any]:
        from probmetrics.calibrators import get_calibrator  # type: ignore[import-not-found]

        fitted = get_calibrator(method).fit(softmax(logits.astype(np.float64), axis=1), codes)
        return np.asarray(fitted.predict_proba(softmax(new.astype(np.float64), axis=1)))

    return fit


#: The other packages' by name: the module that must be there, and the fit.
PEERS: dict[str, tuple[str, Fit]] = {
    "scikit-learn sigmoid": ("sklearn", _scikit_learn("sigmoid")),
    "scikit-learn isotonic": ("sklearn", _scikit_learn("isotonic")),
    "scikit-learn temperature": ("sklearn", _scikit_learn("temperature")),
    "probmetrics ts-mix": ("probmetrics", _probmetrics("ts-mix")),
    "probmetrics svs": ("probmetrics", _probmetrics("svs")),
    "probmetrics sms": ("probmetrics", _probmetrics("sms")),
}


def installed_peers() -> list[str]:
    """The peers whose package is there."""
    return [name for name, (module, _) in PEERS.items() if find_spec(module) is not None]


def parse_methods(text: str) -> list[str]:
    """The methods of a list with commas: "ours", "peers", "all", or names.

    Examples
    --------
    >>> parse_methods("temperature, auto")
    ['temperature', 'auto']
    """
    groups = {"ours": list(OURS), "peers": installed_peers(), "all": [*OURS, *installed_peers()]}
    found: list[str] = []
    for name in (part.strip() for part in text.split(",")):
        if name not in groups and name not in (UNCALIBRATED, *estimator_names(), *PEERS):
            known = ", ".join([UNCALIBRATED, *estimator_names(), *PEERS, *groups])
            raise InputError(f"there is no method {name!r}; there are {known}.")
        found += groups.get(name, [name])
    return list(dict.fromkeys(found))


def probabilities(name: str, logits: NDArray[Any], codes: NDArray[np.int64], new: NDArray[Any]) -> NDArray[np.float64]:
    """The probabilities of new rows by a method fitted on the others."""
    if name == UNCALIBRATED:
        return np.asarray(softmax(new.astype(np.float64), axis=1))
    if name in PEERS:
        return np.asarray(PEERS[name][1](logits, codes, new), dtype=np.float64)
    return np.asarray(calibrator(name)().fit(logits, codes).predict_proba(new), dtype=np.float64)
