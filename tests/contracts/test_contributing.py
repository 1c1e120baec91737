"""CONTRIBUTING's example of a promise on a new quantity, run as it stands."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import numpy as np
import pytest

import metacal as mc
from metacal.promises import kinds, quantity
from metacal.promises.verification import verify_decisions

PAGE = Path(__file__).parents[2] / "CONTRIBUTING.md"


@pytest.fixture(name="review")
def _review(tmp_path, monkeypatch):
    block = next(found for found in re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL))
    (tmp_path / "review.py").write_text(block, encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(kinds, "PROMISES", dict(kinds.PROMISES))
    monkeypatch.setattr(quantity, "QUANTITIES", dict(quantity.QUANTITIES))
    import review

    yield review
    del sys.modules["review"]


def test_a_promise_on_a_new_quantity_works_everywhere(review):
    data = mc.datasets.load("cifar10-resnet110")
    cal = mc.MetaCal(review.MaxReview(0.1)).fit(data.logits[:3000], data.labels[:3000])
    certificate = cal.certificate_
    assert certificate.statement.startswith("At most 10% of the rows are sent to review, on average")
    assert mc.Certificate.from_dict(certificate.to_dict()) == certificate
    assert cal.constraint.contradiction(certificate) is None
    assert abs(float((~cal.accepts(data.logits[5000:])).mean()) - 0.1) < 0.02
    assert kinds.promise_classes()["MaxReview"] is review.MaxReview is mc.MaxReview
    none = np.zeros(500, dtype=bool)
    found = verify_decisions(certificate, none, ~none)
    assert found.refuted
    assert "500 rows sent to review, of 500" in found.text()
    assert mc.PromiseMonitor.of(certificate)[0].update(none, ~none).alarm
