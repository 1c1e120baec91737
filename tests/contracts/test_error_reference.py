"""The error reference has a section for each kind of error, with a message as it appears today."""

from __future__ import annotations

import pytest

import metacal.errors
from contracts import provoked_errors as errors
from metacal.cli import UNEXPECTED_ERROR_KIND, USAGE_ERROR_KIND
from metacal.errors import MetacalError

#: Fewest errors after which a user can run the request that the message suggests.
_MIN_REMEDIES = 20


def _list_kinds() -> set[str]:
    classes = [value for value in vars(metacal.errors).values() if isinstance(value, type)]
    kinds = {one.kind for one in classes if issubclass(one, MetacalError)}
    return kinds | {UNEXPECTED_ERROR_KIND, USAGE_ERROR_KIND}


@pytest.fixture(scope="module")
def outcomes():
    """Return the error of each request and of its remedy, keyed by the kind of the error."""
    with errors.scenario_folder() as names:
        outcomes_by_kind = {}
        for scenario in errors.PROVOKED:
            shown_error = errors.provoke(scenario, names)
            remedy_error = errors.run(scenario.remedy, names) if scenario.remedy else None
            outcomes_by_kind[scenario.kind] = (shown_error, remedy_error)
        return outcomes_by_kind


def test_each_kind_has_a_section_and_each_section_a_kind():
    page_text = errors.PAGE.read_text(encoding="utf-8")
    sections = errors.find_sections(page_text)
    assert {*sections, MetacalError.kind} == _list_kinds()
    assert list(sections) == [scenario.kind for scenario in errors.PROVOKED]
    assert f"## {MetacalError.kind.replace('-', ' ').capitalize()}\n" in page_text


@pytest.mark.slow
@pytest.mark.parametrize("scenario", errors.PROVOKED, ids=lambda scenario: scenario.kind)
def test_the_page_shows_the_error_as_it_appears(scenario, outcomes):
    shown_error, _ = outcomes[scenario.kind]
    assert shown_error is not None, f"{scenario.request} does not fail"
    assert errors.find_kind(shown_error) == scenario.kind
    section = errors.find_sections(errors.PAGE.read_text(encoding="utf-8"))[scenario.kind]
    assert errors.render_example(scenario, shown_error) in section, f"run: {errors.WRITER}"


@pytest.mark.slow
def test_the_suggested_next_request_works(outcomes):
    remedies = {scenario.kind: scenario.remedy for scenario in errors.PROVOKED if scenario.remedy}
    failures = {
        remedy: outcomes[kind][1]
        for kind, remedy in remedies.items()
        if outcomes[kind][1] is not None
    }
    assert len(remedies) >= _MIN_REMEDIES
    assert not failures
