"""Calibrators of other packages in the quality benchmark: what must be installed, and how they are
called.

All get what they ask for: logits in float64, or their softmax. What is made for two classes is
asked one-vs-rest, and the answers are divided by their sum. A fit that fails is left out of its
cell with the reason; nothing is mended.
"""

from __future__ import annotations

import contextlib
import io
import logging
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import softmax

from benchmarks.installed import Installable
from metacal.errors import InputError

Table = NDArray[Any]
Codes = NDArray[np.int64]
#: fit(logits, codes) and then new logits -> probabilities.
Fit = Callable[[Table, Codes, Table], Table]

#: What takes seconds for every hundred classes is asked only of so many.
_FEW = 20


@dataclass(frozen=True)
class Peer(Installable):
    """One calibrator of another package: the distribution, the module that must be there, and the
    fit.
    """

    distribution: str
    module: str
    fit: Fit
    most_classes: int | None = None

    def probabilities(self, logits: Table, codes: Codes, new: Table) -> Table:
        """The probabilities of new rows; what it prints, logs or warns of is not passed on."""
        if self.most_classes is not None and logits.shape[1] > self.most_classes:
            raise InputError(
                f"it is asked of at most {self.most_classes} classes here: it takes too long."
            )
        quiet = logging.root.manager.disable
        hidden = io.StringIO()
        with (
            warnings.catch_warnings(),
            contextlib.redirect_stdout(hidden),
            contextlib.redirect_stderr(hidden),
        ):
            warnings.simplefilter("ignore")
            logging.disable(logging.CRITICAL)
            try:
                found = np.asarray(self.fit(logits, codes, new), dtype=np.float64)
            finally:
                logging.disable(quiet)
        if found.shape != new.shape or not np.isfinite(found).all():
            raise InputError(
                f"it gives a table of {found.shape} for {new.shape}, or numbers that are not"
                " finite."
            )
        return found


def _proba(logits: Table) -> Table:
    return np.asarray(softmax(logits.astype(np.float64), axis=1))


def _scikit_learn(method: str) -> Fit:
    def fit(logits: Table, codes: Codes, new: Table) -> Table:
        from sklearn.calibration import CalibratedClassifierCV
        from sklearn.frozen import FrozenEstimator

        from benchmarks.quality.logits_classifier import LogitsClassifier

        plain = FrozenEstimator(LogitsClassifier(logits.shape[1]).fit(logits, codes))
        return np.asarray(
            CalibratedClassifierCV(plain, method=method).fit(logits, codes).predict_proba(new)
        )

    return fit


def _probmetrics(method: str, **options: Any) -> Fit:
    def fit(logits: Table, codes: Codes, new: Table) -> Table:
        get_calibrator = import_module("probmetrics.calibrators").get_calibrator
        return np.asarray(
            get_calibrator(method, **options).fit(_proba(logits), codes).predict_proba(_proba(new))
        )

    return fit


def _netcal(place: str) -> Fit:
    def fit(logits: Table, codes: Codes, new: Table) -> Table:
        module, _, name = place.partition(":")
        fitted = getattr(import_module(module), name)()
        two = (
            logits.shape[1] == 2
        )  # of two classes it takes and gives the second's probability alone
        fitted.fit(_proba(logits)[:, 1] if two else _proba(logits), codes)
        found = np.asarray(fitted.transform(_proba(new)[:, 1] if two else _proba(new)))
        return np.stack([1.0 - found, found], axis=1) if two else found

    return fit


def _one_vs_rest(answers: Fit) -> Fit:
    """Every class against the others: answers(p_k of the rows, is it k?, p_k of new rows), divided
    by their sum.
    """

    def fit(logits: Table, codes: Codes, new: Table) -> Table:
        old, asked = _proba(logits), _proba(new)
        if old.shape[1] == 2:
            second = answers(old[:, 1], codes, asked[:, 1])
            return np.stack([1.0 - second, second], axis=1)
        found = np.stack(
            [
                answers(old[:, k], (codes == k).astype(np.int64), asked[:, k])
                for k in range(old.shape[1])
            ]
        )
        return np.asarray((found / found.sum(axis=0)).T)

    return fit


def _betacal(scores: Table, outcomes: Codes, new: Table) -> Table:
    fitted = import_module("betacal").BetaCalibration(parameters="abm").fit(scores, outcomes)
    return np.asarray(fitted.predict(new))


def _venn_abers(scores: Table, outcomes: Codes, new: Table) -> Table:
    """Inductive Venn-Abers: p1 / (1 - p0 + p1)."""
    fitted = import_module("venn_abers").VennAbers()
    fitted.fit(np.stack([1.0 - scores, scores], axis=1), outcomes)
    return np.asarray(fitted.predict_proba(np.stack([1.0 - new, new], axis=1))[0][:, 1])


#: The other packages' calibrators by name.
PEERS: dict[str, Peer] = {
    "scikit-learn sigmoid": Peer("scikit-learn", "sklearn", _scikit_learn("sigmoid")),
    "scikit-learn isotonic": Peer("scikit-learn", "sklearn", _scikit_learn("isotonic")),
    "scikit-learn temperature": Peer("scikit-learn", "sklearn", _scikit_learn("temperature")),
    "probmetrics ts-mix": Peer("probmetrics", "probmetrics", _probmetrics("ts-mix")),
    "probmetrics svs": Peer("probmetrics", "probmetrics", _probmetrics("svs")),
    "probmetrics sms": Peer("probmetrics", "probmetrics", _probmetrics("sms")),
    "probmetrics svs-mix": Peer(
        "probmetrics", "probmetrics", _probmetrics("svs", calibrate_with_mixture=True)
    ),
    "probmetrics sms-mix": Peer(
        "probmetrics", "probmetrics", _probmetrics("sms", calibrate_with_mixture=True)
    ),
    "netcal temperature": Peer("netcal", "netcal", _netcal("netcal.scaling:TemperatureScaling")),
    "netcal logistic": Peer(
        "netcal", "netcal", _netcal("netcal.scaling:LogisticCalibration"), _FEW
    ),
    "netcal beta": Peer("netcal", "netcal", _netcal("netcal.scaling:BetaCalibration"), _FEW),
    "netcal isotonic": Peer("netcal", "netcal", _netcal("netcal.binning:IsotonicRegression")),
    "netcal histogram": Peer("netcal", "netcal", _netcal("netcal.binning:HistogramBinning")),
    "netcal bbq": Peer("netcal", "netcal", _netcal("netcal.binning:BBQ"), _FEW),
    "betacal": Peer("betacal", "betacal", _one_vs_rest(_betacal)),
    "venn-abers": Peer("venn-abers", "venn_abers", _one_vs_rest(_venn_abers), _FEW),
}


def installed_peers() -> list[str]:
    """The peers whose package is there."""
    return [name for name, peer in PEERS.items() if peer.installed]


def missing_packages() -> list[str]:
    """The distributions that some peer needs and that are not installed."""
    return list(dict.fromkeys(peer.distribution for peer in PEERS.values() if not peer.installed))


def package_versions(names: list[str]) -> dict[str, str | None]:
    """The versions of the distributions behind these peers."""
    return {PEERS[name].distribution: PEERS[name].version for name in names if name in PEERS}
