"""Gaussian-process calibration against the number that the paper prints for it.

Ma & Blaschko (ICML 2021), Table 1: an ECE of .00634 for GPC (Wenger et al. 2020) on DenseNet-40,
CIFAR-10, the mean over 40 merged 5,000/10,000 splits. `benchmarks/reference/gp.py splits` runs all
40.
"""

from __future__ import annotations

import numpy as np
import pytest

from metacal import metrics
from metacal.maps.gp import fit_gaussian_process
from metacal.rows import Rows

PAPER_ECE = 0.00634
N_SPLITS = 5


@pytest.mark.slow
def test_ece_is_no_worse_than_the_papers(paper_set):
    found = []
    for seed in range(N_SPLITS):
        order = np.random.default_rng(seed).permutation(len(paper_set.labels))
        fit, rest = order[:5000], order[5000:]
        fitted = fit_gaussian_process(Rows(paper_set.logits[fit]), paper_set.labels[fit])
        assert fitted.preserves_accuracy
        found.append(metrics.ece(fitted(paper_set.logits[rest]), paper_set.labels[rest], n_bins=15))
    error = np.std(found, ddof=1) / np.sqrt(N_SPLITS)
    assert np.mean(found) <= PAPER_ECE + 2 * error
