"""What other packages say about the metrics, on one seeded sample; prints the golden values of the reference tests.

Run in an environment of its own (the peers bring heavy dependencies that metacal does not need)::

    pip install torch==2.13.0 torchmetrics==1.9.0 relplot==1.0.3 uncertainty-calibration==0.1.4 netcal==1.4.0
    python -m benchmarks.reference.metrics

A peer that is not installed is reported and left out.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib.metadata import PackageNotFoundError, version

import numpy as np
from numpy.typing import NDArray

Table = NDArray[np.float64]
Labels = NDArray[np.int64]


def sample(seed: int = 20211, n_rows: int = 2100, n_classes: int = 5) -> tuple[Table, Labels]:
    """Softmax outputs, too sure above 0.75 and not sure enough below; no ties, and n a multiple of
    15.
    """
    random = np.random.default_rng(seed)
    logits = 2.0 * random.standard_normal((n_rows, n_classes))
    proba = _softmax(logits)
    tempered = _softmax(logits / np.where(proba.max(axis=1, keepdims=True) > 0.75, 1.6, 0.6))
    labels = (random.random((n_rows, 1)) > np.cumsum(tempered, axis=1)).sum(axis=1)
    return proba, np.minimum(labels, n_classes - 1)


def relplot_values(proba: Table, labels: Labels) -> dict[str, float]:
    """Smooth ECE at fixed bandwidths and at relplot's own (found to about 1/1000)."""
    import relplot.metrics

    confidence, correct = proba.max(axis=1), (proba.argmax(axis=1) == labels).astype(float)
    fixed = {
        f"smECE_sigma({s})": relplot.metrics.smECE_sigma(confidence, correct, s)
        for s in (0.02, 0.05, 0.1)
    }
    return {**fixed, "smECE": relplot.metrics.smECE(confidence, correct)}


def torchmetrics_values(proba: Table, labels: Labels) -> dict[str, float]:
    """Top-label calibration error in three norms, 15 equal-width bins."""
    import torch
    from torchmetrics.functional.classification import multiclass_calibration_error

    table, target = torch.as_tensor(proba), torch.as_tensor(labels)
    return {
        norm: float(
            multiclass_calibration_error(table, target, proba.shape[1], n_bins=15, norm=norm)
        )
        for norm in ("l1", "l2", "max")
    }


def uncertainty_calibration_values(proba: Table, labels: Labels) -> dict[str, float]:
    """Plain and debiased errors; the L1 debiasing is sampled, here averaged over 50 runs.

    The debiased ones use equal-mass bins: the peer refuses bins with fewer than two rows.
    """
    import calibration

    np.random.seed(0)  # noqa: NPY002 - the peer draws from the global state
    sampled = [calibration.get_ece_em(proba, labels, debias=True, num_bins=15) for _ in range(50)]
    return {
        "get_ece": calibration.get_ece(proba, labels, num_bins=15),
        "get_ece_em": calibration.get_ece_em(proba, labels, num_bins=15),
        "get_ece_em(debias)": float(np.mean(sampled)),
        "lower_bound_scaling_top_ce(p=2, debias)": calibration.lower_bound_scaling_top_ce(
            proba, labels, p=2, debias=True, num_bins=15
        ),
    }


def netcal_values(proba: Table, labels: Labels) -> dict[str, float]:
    """ECE and MCE, 15 equal-width bins."""
    from netcal.metrics import ECE, MCE

    return {
        "ECE": float(ECE(15).measure(proba, labels)),
        "MCE": float(MCE(15).measure(proba, labels)),
    }


PEERS: dict[str, Callable[[Table, Labels], dict[str, float]]] = {
    "relplot": relplot_values,
    "torchmetrics": torchmetrics_values,
    "uncertainty-calibration": uncertainty_calibration_values,
    "netcal": netcal_values,
}


def main() -> None:
    """Print each peer's version and values."""
    proba, labels = sample()
    for name, values in PEERS.items():
        try:
            print(f"{name} {version(name)}")
            for what, value in values(proba, labels).items():
                print(f"    {what:40s} {float(value)!r}")
        except (ImportError, PackageNotFoundError) as missing:
            print(f"{name}: left out ({missing})")


def _softmax(logits: Table) -> Table:
    powers = np.exp(logits - logits.max(axis=1, keepdims=True))
    normalised: Table = powers / powers.sum(axis=1, keepdims=True)
    return normalised


if __name__ == "__main__":
    main()
