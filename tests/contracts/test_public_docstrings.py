"""The docstrings of public names have the sections of a reference page."""

from __future__ import annotations

import inspect
import re

import pytest

import metacal as mc
from metacal.maps.methods import get_estimator_modules

FUNCTIONS = [
    name for name in mc.__all__ if inspect.isfunction(getattr(mc, name)) and name != "accepts"
]
ESTIMATORS = ["MetaCal", "CalibratedClassifier", "ScoreGate", "Cascade", *get_estimator_modules()]
CLASSES = [name for name in mc.__all__ if inspect.isclass(getattr(mc, name))]
#: Functions that raise no error of their own.
SILENT = {"show_config"}


def sections(name):
    documentation = inspect.getdoc(getattr(mc, name))
    return set(re.findall(r"^([A-Z][A-Za-z ]+)\n-+$", documentation, re.MULTILINE))


@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_function_documents_parameters_results_errors_and_an_example(name):
    function = inspect.unwrap(getattr(mc, name))
    signature = inspect.signature(function)
    required = {"See Also", "Examples"}
    if signature.parameters:
        required.add("Parameters")
    if signature.return_annotation not in (None, "None"):
        is_context = "contextmanager" in inspect.getsource(function).partition("def ")[0]
        required.add("Yields" if is_context else "Returns")
    if name not in SILENT:
        required.add("Raises")
    assert required <= sections(name)


@pytest.mark.parametrize("name", ESTIMATORS)
def test_an_estimator_documents_parameters_related_names_and_an_example(name):
    assert {"Parameters", "See Also", "Examples"} <= sections(name)


@pytest.mark.parametrize("name", [*FUNCTIONS, *CLASSES])
def test_related_names_are_public(name):
    documentation = inspect.getdoc(getattr(mc, name))
    found = re.search(r"^See Also\n-+\n((?:\S+ : .+\n?)+)", documentation, re.MULTILINE)
    related = re.findall(r"^(\S+) : ", found[1], re.MULTILINE) if found else []
    assert set(related) <= set(mc.__all__) - {name}
