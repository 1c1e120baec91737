"""Every promise uses the clusters, the cases and the pilot rows of its rows, or refuses them.

A column that nobody reads is dropped without notice. Clustered rows would then be certified as if
they were independent.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

import metacal as mc
from contracts.composition import PROMISES
from metacal.certification.case_items import Cases
from metacal.certification.clusters import WHOLE_CLUSTERS_RULE
from metacal.certification.plans import PilotRows
from metacal.certification.row_losses import Losses
from metacal.certification.rows import CalibrationRows, Clusters, Subgroups

RNG = np.random.default_rng(0)
N_ROWS = 3000
SCORES = RNG.random(N_ROWS)
CORRECT = RNG.random(N_ROWS) > 0.2 * SCORES**2
ROWS = CalibrationRows(SCORES, CORRECT)
CLUSTERS = Clusters.from_codes(np.arange(N_ROWS) // 3, max_size=3)
CASES = Cases(
    np.arange(N_ROWS) // 3, has_correct_item_without_score=np.zeros(N_ROWS // 3, dtype=bool)
)
SUBGROUPS = Subgroups(np.arange(N_ROWS) % 2, ("north", "south"))
PER_SUBGROUP = {
    "PerClass": lambda: mc.PerClass(mc.MinAccuracy(0.85)),
    "PerGroup": lambda: mc.PerGroup(mc.MaxMiscoverage(0.1)),
    "PerGroup of sides": lambda: mc.PerGroup(mc.MinRecall(0.9)),
}
ALL = {**PROMISES, **PER_SUBGROUP}


COUNTS_CASES = ("MaxCaseErrors", "MinCaseRecall", "MaxErrorsPerCase")
COUNTS_CLUSTERS = ("MinAccuracy", "MaxMiscoverage", "MaxReview")


@pytest.mark.parametrize("name", ALL)
def test_clusters_are_used_or_refused(name):
    rows = replace(ROWS, clusters=CLUSTERS, subgroups=SUBGROUPS)
    if name in COUNTS_CLUSTERS:
        assert ALL[name]().certify(rows).rule == WHOLE_CLUSTERS_RULE
        return
    expected_message = "cannot count every row of a cluster"
    if name in COUNTS_CASES:
        expected_message = "a promise about cases, but the"
    with pytest.raises(mc.InputError, match=expected_message):
        ALL[name]().certify(rows)


@pytest.mark.parametrize("name", ALL)
def test_cases_are_used_or_refused(name):
    rows = replace(ROWS, cases=CASES, subgroups=SUBGROUPS)
    if name in COUNTS_CASES:
        certificate = ALL[name]().certify(rows)
        assert certificate.cases.n_tested + certificate.cases.n_pilot == CASES.n_cases
        assert len(certificate.subgroups.items) == len(SUBGROUPS.names)
        with pytest.raises(mc.InputError, match="a promise about cases, but the"):
            ALL[name]().certify(ROWS)
        return
    with pytest.raises(mc.InputError, match="is not a promise about cases"):
        ALL[name]().certify(rows)


@pytest.mark.parametrize("name", COUNTS_CASES)
@pytest.mark.parametrize(
    "columns",
    [{"clusters": CLUSTERS}, {"losses": Losses.from_graded(np.zeros(N_ROWS))}],
    ids=["clusters", "losses"],
)
def test_promises_about_cases_refuse_columns_that_they_do_not_use(name, columns):
    with pytest.raises(mc.InputError, match="units, importance or losses"):
        ALL[name]().certify(replace(ROWS, cases=CASES, **columns))


@pytest.mark.parametrize("name", ALL)
def test_pilot_rows_change_the_tests_of_promises_that_ask_for_them(name):
    """Pilot rows plan a start that fails: whoever uses them certifies less than without them."""
    promise = ALL[name]()
    if promise.procedure().build_pilot_policy() is None or isinstance(promise, mc.TwoSided):
        return
    scores = np.round(SCORES, 1)
    wrong_first = CalibrationRows(scores, (scores > 0.3) & CORRECT)
    late_start = PilotRows(np.full(50, 0.1), requires_score_value_tests=True)
    rows = replace(wrong_first, subgroups=SUBGROUPS, pilot_rows=late_start)
    with pytest.raises(mc.InfeasibleTargetError):
        promise.certify(rows)


@pytest.mark.parametrize("name", PER_SUBGROUP)
def test_subgroups_are_needed(name):
    with pytest.raises(mc.InputError, match=r"of each row\."):
        PER_SUBGROUP[name]().certify(ROWS)
