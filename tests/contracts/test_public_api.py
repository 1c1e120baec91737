"""The public face: names, lightness of import, and that nothing prints."""

from __future__ import annotations

import importlib
import os
import pkgutil
import py_compile
import subprocess
import sys
from pathlib import Path

import pytest

import metacal as mc


def test_all_names_exist_and_are_documented():
    for name in mc.__all__:
        assert getattr(mc, name).__doc__, name
    assert set(mc.__all__) <= set(dir(mc))
    with pytest.raises(AttributeError, match="no attribute 'Metacal'"):
        _ = mc.Metacal


def test_names_of_the_plan():
    assert {
        "MetaCal",
        "MaxMiscoverage",
        "MinAccuracy",
        "TemperatureScaling",
        "CalibratedClassifier",
    } <= set(mc.__all__)
    assert {"metrics", "datasets", "paper", "save", "load", "read_predictions"} <= set(mc.__all__)


def test_dir_lists_public_names_only():
    assert set(dir(mc)) == {*mc.__all__, "__version__"}
    assert not set(dir(mc)) & {"importlib", "sys", "TYPE_CHECKING", "annotations"}


@pytest.mark.parametrize("name", ["export", "reports", "promises", "estimators", "io"])
def test_rooms_resolve_lazily(name):
    code = f"import metacal as mc; print(mc.{name}.__name__)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == f"metacal.{name}"


def test_python_m_metacal_is_the_command():
    done = subprocess.run(
        [sys.executable, "-m", "metacal", "--version"], capture_output=True, text=True, check=True
    )
    assert mc.__version__ in done.stdout


def test_every_module_imports():
    for module in pkgutil.walk_packages(mc.__path__, "metacal."):
        importlib.import_module(module.name)


def modules_after(statement: str) -> set[str]:
    code = f"import sys; {statement}; print('\\n'.join(sys.modules))"
    return set(
        subprocess.run(
            [sys.executable, "-c", code], capture_output=True, text=True, check=True
        ).stdout.split()
    )


def test_importing_metacal_pulls_in_nothing_heavy():
    assert not modules_after("import metacal") & {"numpy", "scipy", "sklearn", "click", "tqdm"}


@pytest.mark.slow
def test_the_mathematics_needs_neither_scikit_learn_nor_scipy_stats():
    loaded = modules_after(
        "import metacal.promises, metacal.gate, metacal.maps.temperature, metacal.metrics,"
        " metacal.promises.paper"
    )
    assert not loaded & {"sklearn", "scipy.stats", "scipy.optimize"}


def test_library_calls_print_nothing(capfd):
    data = mc.datasets.load("cifar10-resnet110")
    cal = mc.MetaCal(mc.MaxMiscoverage(0.05)).fit(data.logits[:500], data.labels[:500])
    cal.predict_proba(data.logits[:10])
    assert capfd.readouterr() == ("", "")


def test_version_is_the_package_s():
    from importlib.metadata import version

    assert mc.__version__ == version("metacal")


def test_without_its_sources_it_says_what_to_do(tmp_path):
    """As bundlers lay packages out by default: compiled files alone."""
    home = Path(mc.__file__).parent
    for name in ("__init__", "lazy", "errors", "config"):
        (tmp_path / "metacal").mkdir(exist_ok=True)
        py_compile.compile(
            str(home / f"{name}.py"), cfile=str(tmp_path / "metacal" / f"{name}.pyc"), doraise=True
        )
    done = subprocess.run(
        [sys.executable, "-S", "-c", "import metacal; metacal.MetaCal"],
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
        capture_output=True,
        text=True,
    )
    assert "bundle it with its .py files" in done.stderr


def test_report_is_a_function_also_after_its_package_was_imported():
    """A package of the same name would replace the function when it is imported."""
    importlib.import_module("metacal.reports.html")
    assert mc.report.__module__ == "metacal.reports"
