"""What the quality benchmark compares: our calibrators by name, and those of other packages that
are installed.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import softmax

from benchmarks.quality.peers import PEERS, installed_peers
from metacal.errors import InputError
from metacal.maps.methods import get_all_methods, get_calibrator_class

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
        if name not in groups and name not in (UNCALIBRATED, *get_all_methods(), *PEERS):
            known = ", ".join([UNCALIBRATED, *get_all_methods(), *PEERS, *groups])
            raise InputError(f"there is no method {name!r}; there are {known}.")
        if name in PEERS and not PEERS[name].installed:
            raise InputError(f"{name!r} is not installed: pip install {PEERS[name].distribution}.")
        found += groups.get(name, [name])
    return list(dict.fromkeys(found))


def probabilities(
    name: str, logits: NDArray[Any], codes: NDArray[np.int64], new: NDArray[Any]
) -> NDArray[np.float64]:
    """The probabilities of new rows by a method fitted on the others."""
    if name == UNCALIBRATED:
        return np.asarray(softmax(new.astype(np.float64), axis=1))
    if name in PEERS:
        return PEERS[name].probabilities(logits, codes, new)
    return np.asarray(
        get_calibrator_class(name)().fit(logits, codes).predict_proba(new), dtype=np.float64
    )
