"""Quantities: what they count, what they say, and that nobody else decides by their names."""

from __future__ import annotations

import ast
import copy
import json
import pickle
from dataclasses import asdict, replace
from pathlib import Path

import numpy as np
import pytest

import metacal as mc
from metacal.certificates.quantities import (
    MISCOVERAGE,
    QUANTITIES,
    SELECTIVE_ACCURACY,
    get_quantity,
)
from metacal.certificates.quantity import Quantity
from metacal.errors import InputError
from metacal.io.artifact.audit import read_certificate
from metacal.metrics import selective
from metacal.promises.judging import judge
from metacal.promises.verification import verify_decisions

SOURCE = Path(mc.__file__).parent


@pytest.fixture(name="decided")
def _decided():
    rng = np.random.default_rng(0)
    return rng.random(500) < 0.7, rng.random(500) < 0.9


def certificates():
    rng = np.random.default_rng(1)
    scores = rng.random(3000)
    correct = rng.random(3000) > scores**3 / 2
    for promise in (
        mc.MaxMiscoverage(0.3),
        mc.MinAccuracy(0.9),
        mc.Both(0.3, 0.9),
        mc.MaxReview(0.2),
    ):
        yield promise.certify(scores, correct)


def test_a_quantity_counts_what_its_metric_counts(decided):
    assert MISCOVERAGE.count_events(*decided) == selective.count_rejected_correct_rows(*decided)
    assert SELECTIVE_ACCURACY.count_events(*decided) == selective.count_correct_accepted_rows(
        *decided
    )


@pytest.mark.parametrize("asked", QUANTITIES.values())
def test_bad_rows_events_and_limit_are_one_count(asked, decided):
    n_events, n_rows = asked.count_events(*decided)
    n_violations, n_counted = asked.count_violations(*decided)
    violations = asked.find_violations(*decided)
    expected = n_events if asked.has_upper_limit else n_rows - n_events
    assert (n_counted, n_violations) == (n_rows, expected) == (len(violations), violations.sum())
    for target in (0.01, 0.3, 0.9):
        max_rate = asked.max_violation_rate(target) + 1e-12
        assert asked.is_kept(n_events / n_rows, target) == (n_violations / n_rows <= max_rate)
        assert asked.is_refuted(0.4, 0.5, target) == (
            not asked.is_kept(0.4, target) and not asked.is_kept(0.5, target)
        )


def test_a_quantity_is_its_name_wherever_it_goes():
    for certificate in certificates():
        again = read_certificate(json.loads(json.dumps(certificate.to_dict())))
        assert again == certificate
        assert again.quantity is certificate.quantity is QUANTITIES[certificate.quantity.name]
        assert type(certificate.to_dict()["quantity"]) is str
        assert asdict(certificate)["quantity"] == certificate.quantity == certificate.quantity.name
        assert all(isinstance(promised, Quantity) for promised, _ in certificate.limits)
        for copied in (copy.deepcopy(certificate), pickle.loads(pickle.dumps(certificate))):
            assert copied == certificate
            assert copied.quantity is certificate.quantity
    assert repr(MISCOVERAGE) == "'miscoverage'"
    assert {MISCOVERAGE: 1}["miscoverage"] == 1


def test_an_unknown_quantity_is_refused():
    certificate = next(certificates())
    with pytest.raises(InputError, match="one of 'miscoverage', 'selective accuracy'"):
        replace(certificate, quantity="profit")
    with pytest.raises(InputError, match="got None"):
        get_quantity(None)  # type: ignore[arg-type]
    with pytest.raises(InputError, match="missing or unknown facts: claim_template"):
        Quantity("profit", has_upper_limit=True)


def test_verdict_and_verification_speak_by_the_object(decided):
    for certificate in certificates():
        verdict, found = judge(certificate, *decided, 0.95), verify_decisions(certificate, *decided)
        for part, test, (promised, target) in zip(
            verdict.tests, found.tests, certificate.limits, strict=True
        ):
            assert part.quantity is promised
            assert part.target == target
            assert (test.measurement.n_bad, test.measurement.n_rows) == promised.count_violations(
                *decided
            )
            assert promised.violations_text in found.text()
            assert promised.direction in found.text()


def _names_compared(node: ast.AST) -> bool:
    """Whether a comparison has a quantity's name, or a quantity, on one side."""
    if not isinstance(node, ast.Compare):
        return False
    sides = [node.left, *node.comparators]
    return any(
        (isinstance(side, ast.Constant) and side.value in QUANTITIES)
        or (
            isinstance(side, ast.Name)
            and side.id in ("MISCOVERAGE", "SELECTIVE_ACCURACY", "REVIEW", "COST")
        )
        for side in sides
    )


@pytest.mark.slow
def test_no_module_decides_by_a_quantity_s_name():
    found = [
        f"{path.relative_to(SOURCE)}:{node.lineno}"
        for path in SOURCE.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if _names_compared(node)
    ]
    assert not found, "ask the quantity (metacal.certificates.quantity) instead"


def test_the_page_asks_for_curve_and_direction_and_never_for_a_quantity():
    for path in (SOURCE / "report" / "page").glob("*.js"):
        text = path.read_text(encoding="utf-8")
        assert "selective accuracy" not in text, path.name
        assert "quantity ===" not in text, path.name


@pytest.mark.parametrize(
    ("code", "compares"),
    [('x == "miscoverage"', True), ("q is MISCOVERAGE", True), ('"x" == y', False)],
)
def test_the_search_for_comparisons_finds_some(code, compares):
    assert any(map(_names_compared, ast.walk(ast.parse(code)))) is compares
