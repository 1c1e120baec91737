"""What other packages say about the affine calibrators on real logits; prints the golden values of
the reference tests.

Run in environments of their own, from the root of the repository (dirichletcal needs Python 3.12)::

    pip install torch==2.13.0 probmetrics==1.3.0
    PYTHONPATH=src python -m benchmarks.reference.affine

    pip install dirichletcal==0.5.3
    PYTHONPATH=src python -m benchmarks.reference.affine

Fitted on the first 5,000 rows of cifar10-resnet110, evaluated on the other 10,000: the mean
negative log-likelihood. A peer that is not installed is reported and left out.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import numpy as np
from numpy.typing import NDArray

from metacal import datasets

Table = NDArray[np.float64]
Labels = NDArray[np.int64]

N_FIT = 5000
#: T of temperature scaling on the fitted rows: metacal's penalties are measured on tempered logits,
#: dirichletcal's not.
TEMPERATURE = 2.7706937458708105


def sample(name: str = "cifar10-resnet110") -> tuple[Table, Labels]:
    """The embedded logits in float64, and the labels."""
    data = datasets.load(name)
    return data.logits.astype(np.float64), data.labels


def nll(proba: Table, labels: Labels) -> float:
    """The mean negative log-likelihood."""
    return float(-np.log(proba[np.arange(len(labels)), labels]).mean())


def probmetrics_values(logits: Table, labels: Labels) -> dict[str, Any]:
    """Ensemble temperature with both losses, vector and matrix scaling without penalty, SVS and SMS
    with ridge.
    """
    import torch
    from probmetrics.calibrators import logistic, temperature_scaling
    from probmetrics.distributions import CategoricalLogits

    found: dict[str, Any] = {}
    proba = _softmax(logits)
    for loss in ("ce", "mse"):
        ensemble = temperature_scaling.ETSCalibrator(loss=loss).fit(proba[:N_FIT], labels[:N_FIT])
        found[f"ETS {loss}: T, weights"] = (float(ensemble.t_), [float(w) for w in ensemble.w_])
        found[f"ETS {loss}"] = nll(ensemble.predict_proba(proba[N_FIT:]), labels[N_FIT:])
    table = torch.as_tensor(logits)
    for peer in (logistic.VectorScalingCalibrator(), logistic.MatrixScalingCalibrator()):
        peer.fit_torch(CategoricalLogits(table[:N_FIT]), torch.as_tensor(labels[:N_FIT]))
        fitted = peer.predict_proba_torch(CategoricalLogits(table[N_FIT:]))
        found[type(peer).__name__] = nll(fitted.get_probs().numpy(), labels[N_FIT:])
    for peer in (logistic.SVSCalibrator(), logistic.SMSCalibrator()):
        peer.fit(proba[:N_FIT], labels[:N_FIT])
        found[type(peer).__name__] = nll(peer.predict_proba(proba[N_FIT:]), labels[N_FIT:])
    return found


def dirichletcal_values(logits: Table, labels: Labels) -> dict[str, Any]:
    """Dirichlet calibration with ODIR, of metacal's strength 1 and of its strength 0.01."""
    from dirichletcal.calib.fulldirichlet import FullDirichletCalibrator

    proba, k = _softmax(logits), logits.shape[1]
    found = {}
    for strength in (1.0, 0.01):
        peer = FullDirichletCalibrator(
            reg_lambda=strength * k * (k - 1) * TEMPERATURE**2 / N_FIT,
            reg_mu=strength * k / N_FIT,
            ref_row=False,
        )
        peer.fit(proba[:N_FIT], labels[:N_FIT])
        found[f"FullDirichletCalibrator, strength {strength}"] = nll(
            peer.predict_proba(proba[N_FIT:]), labels[N_FIT:]
        )
    return found


PEERS: dict[str, Callable[[Table, Labels], dict[str, Any]]] = {
    "probmetrics": probmetrics_values,
    "dirichletcal": dirichletcal_values,
}


def main() -> None:
    """Print each peer's version and values."""
    logits, labels = sample()
    for name, values in PEERS.items():
        start = time.perf_counter()
        try:
            print(f"{name} {version(name)}")
            for what, value in values(logits, labels).items():
                print(f"    {what:50s} {value!r}")
            print(f"    ({time.perf_counter() - start:.1f} s)")
        except (ImportError, PackageNotFoundError) as missing:
            print(f"{name}: left out ({missing})")


def _softmax(logits: Table) -> Table:
    powers = np.exp(logits - logits.max(axis=1, keepdims=True))
    normalised: Table = powers / powers.sum(axis=1, keepdims=True)
    return normalised


if __name__ == "__main__":
    main()
