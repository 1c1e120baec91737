"""Pilot scores of other rows, for experiments that compare them with rows set aside."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from metacal.promises.sample import Sample
from metacal.promises.scouts import Scouting, Scouts

_SET_ASIDE = Scouting()


def with_pilot_scores(
    sample: Sample, scores: NDArray[np.float64], scouting: Scouting = _SET_ASIDE
) -> Sample:
    """Let the scores of other rows choose where the tests of a sample begin.

    The gates of metacal set some rows of the sample aside instead. So does this function if the
    promise asks for the labels of pilot rows and the scores do not tie.

    Parameters
    ----------
    sample : Sample
        The rows that are tested.
    scores : array of shape (m,)
        Scores of other rows, on the scale of the sample.
    scouting : Scouting
        How rows would be set aside.

    Returns
    -------
    Sample
        The sample with its pilot rows.
    """
    if not len(scores):
        return scouting.of(sample)
    by_value = scouting.tests_values(scores, len(sample))
    if scouting.labels and not by_value:
        return scouting.of(sample)
    return replace(sample, scouts=Scouts(scores, by_value=by_value))
