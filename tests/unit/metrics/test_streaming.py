"""Metrics batch by batch: the same number as over all rows, however these are divided, merged or
summed.
"""

from __future__ import annotations

import numpy as np
import pytest

import metacal as mc
from metacal import metrics

RNG = np.random.default_rng(2)
PROBA = RNG.dirichlet(np.ones(4), size=500).astype(np.float32)
LABELS = RNG.integers(0, 4, size=500)
PAIRS = {
    metrics.StreamingECE: metrics.ece,
    metrics.StreamingAccuracy: metrics.accuracy,
    metrics.StreamingNLL: metrics.nll,
    metrics.StreamingBrier: metrics.brier,
}


@pytest.mark.parametrize("kind", PAIRS, ids=lambda kind: kind.__name__)
def test_batches_add_up_to_the_whole(kind):
    whole, half = kind(), kind()
    for start in range(0, 300, 70):
        whole.update(PROBA[start : min(start + 70, 300)], LABELS[start : min(start + 70, 300)])
    half.update(PROBA[300:], LABELS[300:])
    assert whole.merge(half).compute() == pytest.approx(PAIRS[kind](PROBA, LABELS), abs=1e-9)
    assert np.array_equal(whole.reset().state, np.zeros_like(whole.state))
    with pytest.raises(mc.InputError, match="No rows have been added"):
        whole.compute()


def test_tensors_and_names():
    torch = pytest.importorskip("torch")
    found = metrics.StreamingECE(10).update(torch.tensor(PROBA), torch.tensor(LABELS))
    assert found.compute() == pytest.approx(metrics.ece(PROBA, LABELS, n_bins=10), abs=1e-9)
    names = np.array(list("abcd"))
    named = metrics.StreamingNLL().update(PROBA, names[LABELS], classes=list("abcd"))
    assert named.compute() == pytest.approx(metrics.nll(PROBA, LABELS))
    sums = torch.from_numpy(found.state)
    sums *= 2  # as all_reduce would: in place
    assert found.state[:, 1].sum() == 1000


def test_only_the_same_kind_is_merged():
    with pytest.raises(mc.InputError, match="that has the same bins"):
        metrics.StreamingECE(10).merge(metrics.StreamingECE(15))
