"""The peers: who else does the same, and how they are called. Preparation of their inputs is not
timed.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.installed import Installable
from benchmarks.speed.tasks import ALPHA, BETA
from metacal.errors import InputError

Table = NDArray[Any]
Labels = NDArray[np.int64]
Prepare = Callable[[Table, Labels], Callable[[], Any]]

#: Peers are not asked for more: on larger tables they take hours, or ten times the table's memory.
MOST_ELEMENTS = 25_000_000


@dataclass(frozen=True)
class Peer(Installable):
    """A peer by name: what must be installed, and how it does which task."""

    name: str
    module: str
    distribution: str
    does: dict[str, Prepare]


def parse_peers(text: str) -> list[str]:
    """Return the names that "all", "none" or a list names; "all" is every peer that is installed.

    Examples
    --------
    >>> parse_peers("none"), parse_peers("paper,scikit-learn")
    ([], ['paper', 'scikit-learn'])
    >>> parse_peers("numpy")
    Traceback (most recent call last):
    metacal.errors.InputError: there is no peer 'numpy'; give all, none, or some of scikit-learn, paper, ...
    """
    if text == "none":
        return []
    if text == "all":
        return [name for name, peer in PEERS.items() if peer.installed]
    names = [name.strip() for name in text.split(",")]
    for name in names:
        if name not in PEERS:
            raise InputError(
                f"there is no peer {name!r}; give all, none, or some of {', '.join(PEERS)}."
            )
        if not PEERS[name].installed:
            raise InputError(
                f"the peer {name!r} is not installed: pip install {PEERS[name].distribution}."
            )
    return names


def _scikit_learn(table: Table, labels: Labels) -> Callable[[], float]:
    scaling = import_module("sklearn.calibration")._TemperatureScaling
    return lambda: 1.0 / float(scaling().fit(table, labels).beta_)


def _paper_temperature(table: Table, labels: Labels) -> Callable[[], float]:
    published = import_module("benchmarks.experiments.published")
    return lambda: float(published.temperature(table, labels))


def _paper_entropy(table: Table, labels: Labels) -> Callable[[], Any]:
    published = import_module("benchmarks.experiments.published")
    return lambda: published.entropy_scores(table)


def _paper_max_miscoverage(table: Table, labels: Labels) -> Callable[[], Any]:
    published = import_module("benchmarks.experiments.published")
    return lambda: published.max_miscoverage(table, labels, ALPHA, 0)


def _paper_min_accuracy(table: Table, labels: Labels) -> Callable[[], Any]:
    published = import_module("benchmarks.experiments.published")
    return lambda: published.min_accuracy(table, labels, BETA, 0)


def _paper_predict_proba(table: Table, labels: Labels) -> Callable[[], Any]:
    published = import_module("benchmarks.experiments.published")
    some = slice(0, 2000)
    gate = published.max_miscoverage(table[some], labels[some], ALPHA, 0)
    return lambda: published.predict_proba(table, gate)


def _slsqp(table: Table, labels: Labels) -> Callable[[], float]:
    published = import_module("benchmarks.experiments.published")
    return lambda: float(published.ensemble_temperature(table, labels)[0])


def _netcal(table: Table, labels: Labels) -> Callable[[], float]:
    scaling = import_module("netcal.scaling").TemperatureScaling
    # It takes probabilities only, and float32 ones silently give T = 1.
    proba = import_module("scipy.special").softmax(table.astype(np.float64), axis=1)

    def fit() -> float:
        fitted = scaling()
        fitted.fit(proba, labels)
        return float(1.0 / np.ravel(fitted.temperature)[0])  # what it calls temperature is 1/T

    return fit


def _probmetrics(table: Table, labels: Labels) -> Callable[[], float]:
    torch = import_module("torch")
    distributions = import_module("probmetrics.distributions")
    calibrator = import_module("probmetrics.calibrators").TemperatureScalingCalibrator
    logits, targets = torch.tensor(table), torch.tensor(labels)

    def fit() -> float:
        fitted = calibrator()
        fitted.fit_torch(distributions.CategoricalLogits(logits), targets)
        return float(1.0 / fitted.invtemp_)

    return fit


def _torch_uncertainty(table: Table, labels: Labels) -> Callable[[], float]:
    torch = import_module("torch")
    data = import_module("torch.utils.data")
    scaler = import_module("torch_uncertainty.post_processing").TemperatureScaler
    loader = data.DataLoader(
        data.TensorDataset(torch.tensor(table), torch.tensor(labels)), batch_size=1024
    )

    def fit() -> float:
        fitted = scaler()
        fitted.fit(loader, progress=False)
        return float(1.0 / fitted.inv_temp.item())

    return fit


def _torch_lbfgs(table: Table, labels: Labels) -> Callable[[], float]:
    """As in Guo et al.'s own code: T starts at 1.5; LBFGS with learning rate 0.01 and 50
    iterations.
    """
    torch = import_module("torch")
    logits, targets = torch.tensor(table), torch.tensor(labels)

    def fit() -> float:
        temperature = torch.nn.Parameter(torch.full((1,), 1.5))
        optimiser = torch.optim.LBFGS([temperature], lr=0.01, max_iter=50)

        def closure() -> Any:
            optimiser.zero_grad()
            loss = torch.nn.functional.cross_entropy(logits / temperature, targets)
            loss.backward()
            return loss

        optimiser.step(closure)
        return float(temperature.item())

    return fit


_PAPER: dict[str, Prepare] = {
    "temperature": _paper_temperature,
    "entropy": _paper_entropy,
    "max_miscoverage": _paper_max_miscoverage,
    "min_accuracy": _paper_min_accuracy,
    "predict_proba": _paper_predict_proba,
}

#: The peers by name; "paper" and "slsqp" are what was published, written anew in `published.py`.
PEERS = {
    peer.name: peer
    for peer in (
        Peer("scikit-learn", "sklearn", "scikit-learn", {"temperature": _scikit_learn}),
        Peer("paper", "sklearn", "scikit-learn", _PAPER),
        Peer("slsqp", "scipy", "scipy", {"ensemble": _slsqp}),
        Peer("netcal", "netcal", "netcal", {"temperature": _netcal}),
        Peer("probmetrics", "probmetrics", "probmetrics", {"temperature": _probmetrics}),
        Peer(
            "torch-uncertainty",
            "torch_uncertainty",
            "torch-uncertainty",
            {"temperature": _torch_uncertainty},
        ),
        Peer("torch-lbfgs", "torch", "torch", {"temperature": _torch_lbfgs}),
    )
}
