"""What other packages make of the same logits; prints the golden values of
tests/reference/test_onevsrest_reference.py.

Run in an environment of its own (the peers bring heavy dependencies that metacal does not need)::

    pip install torch==2.13.0
    pip install netcal==1.4.0 betacal==1.1.0
    PYTHONPATH=src python -m benchmarks.reference.onevsrest

A peer that is not installed is reported and left out. The data are the embedded cifar10-resnet110
logits: the first 5,000 rows fit, the other 10,000 evaluate; "binary" is class 3 (cat) against the
rest. netcal is given float64: on float32 its clipping rounds to exactly one and the answers
silently break.
"""

from __future__ import annotations

import contextlib
import io
from collections.abc import Callable
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import numpy as np
from numpy.typing import NDArray

from metacal.datasets import load

Table = NDArray[np.float64]
Labels = NDArray[np.int64]

N_FIT = 5000
CLASS = 3
#: Peers say "never" with probability 0; the likelihood is taken at no less than this.
FLOOR = 1e-12


def sample() -> tuple[Table, Labels]:
    """Softmax probabilities in float64 and the labels."""
    data = load("cifar10-resnet110")
    logits = data.logits.astype(np.float64)
    powers = np.exp(logits - logits.max(axis=1, keepdims=True))
    return powers / powers.sum(axis=1, keepdims=True), data.labels


def nll(proba: Table, labels: Labels) -> float:
    """Mean negative log-likelihood of a table, floored."""
    return float(-np.log(np.maximum(proba[np.arange(len(labels)), labels], FLOOR)).mean())


def binary_nll(positive: Table, outcome: Labels) -> float:
    """Mean negative log-likelihood of one column, floored."""
    return nll(np.column_stack((1.0 - positive, positive)), outcome)


def netcal_values(proba: Table, labels: Labels) -> dict[str, float]:
    """Histogram binning, BBQ and beta calibration; the multi-class beta is another model there (a
    joint softmax).
    """
    from netcal.binning import BBQ, HistogramBinning
    from netcal.scaling import BetaCalibration

    column, outcome = proba[:, CLASS], (labels == CLASS).astype(np.int64)
    found = {}
    for bins in (10, 15):
        histogram = HistogramBinning(bins).fit(proba[:N_FIT], labels[:N_FIT])
        found[f"HistogramBinning({bins})"] = nll(histogram.transform(proba[N_FIT:]), labels[N_FIT:])
    for name, method in {
        "binary HistogramBinning(15)": HistogramBinning(15),
        "binary BBQ('BIC')": BBQ("BIC"),
        "binary BBQ('AIC')": BBQ("AIC"),
        "binary BetaCalibration": BetaCalibration(),
    }.items():
        fitted = method.fit(column[:N_FIT], outcome[:N_FIT])
        found[name] = binary_nll(
            np.asarray(fitted.transform(column[N_FIT:])).ravel(), outcome[N_FIT:]
        )
    return found


def betacal_values(proba: Table, labels: Labels) -> dict[str, float]:
    """The three variants on the binary problem; "abm" also for each class in turn, normalised."""
    from betacal import BetaCalibration

    def calibrated(parameters: str, k: int) -> Any:
        model = BetaCalibration(parameters).fit(proba[:N_FIT, k], labels[:N_FIT] == k)
        return model.predict(proba[N_FIT:, k]), model.calibrator_.map_

    found = {}
    for parameters in ("abm", "am", "ab"):
        positive, (a, b, _) = calibrated(parameters, CLASS)
        found[f"binary {parameters}"] = binary_nll(
            positive, (labels[N_FIT:] == CLASS).astype(np.int64)
        )
        found |= {f"binary {parameters}: a": a, f"binary {parameters}: b": b}
    for parameters in ("abm", "am", "ab"):
        table = np.column_stack([calibrated(parameters, k)[0] for k in range(proba.shape[1])])
        found[f"one-vs-rest {parameters}"] = nll(
            table / table.sum(axis=1, keepdims=True), labels[N_FIT:]
        )
    return found


PEERS: dict[str, Callable[[Table, Labels], dict[str, float]]] = {
    "netcal": netcal_values,
    "betacal": betacal_values,
}


def main() -> None:
    """Print each peer's version and values."""
    proba, labels = sample()
    print(f"numpy {np.__version__}, scikit-learn {version('scikit-learn')}")
    for name, values in PEERS.items():
        try:
            with contextlib.redirect_stderr(io.StringIO()):  # progress bars
                found = values(proba, labels)
        except (ImportError, PackageNotFoundError) as missing:
            print(f"{name}: left out ({missing})")
            continue
        print(f"{name} {version(name)}")
        for what, value in found.items():
            print(f"    {what:40s} {float(value)!r}")


if __name__ == "__main__":
    main()
