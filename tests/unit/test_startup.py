"""The process of a command imports the functions of `scipy.special`, and not the whole package."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

#: Modules that `scipy.special` imports and no fit needs.
NEEDLESS = {"scipy.special._basic", "scipy._lib._docscrape", "numpy.f2py", "numpy.testing"}


def run(code, **environment):
    """Run code in a process of its own, and return what it prints."""
    done = subprocess.run(
        [sys.executable, "-c", "import sys\n" + code],
        capture_output=True,
        text=True,
        env={**os.environ, **environment},
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.split()


@pytest.mark.parametrize("name", ["bdtr", "gammaln", "ndtri", "betaincinv", "expit"])
def test_functions_are_those_of_the_package(name):
    printed = run(
        "from metacal.cli.startup import shorten_import_of_special_functions\n"
        "shorten_import_of_special_functions()\n"
        "assert 'numpy' not in sys.modules\n"
        f"from scipy.special import {name} as fast\n"
        "assert 'scipy.special._basic' not in sys.modules\n"
        "import scipy.special\n"
        "from scipy.special import logsumexp\n"
        "assert 'scipy.special._basic' in sys.modules\n"
        f"print(sys.modules['scipy.special'].{name} is fast, logsumexp([0.0]))"
    )
    assert printed == ["True", "0.0"]


def test_modules_that_need_the_package_get_it():
    printed = run(
        "from metacal.cli.startup import shorten_import_of_special_functions\n"
        "shorten_import_of_special_functions()\n"
        "import scipy.stats, scipy.optimize\n"
        "print(scipy.stats.norm.ppf(0.5), scipy.special.factorial(3))"
    )
    assert printed == ["0.0", "6.0"]


@pytest.mark.parametrize("order", ["package first", "array API"])
def test_nothing_happens_if_the_package_is_wanted(order):
    first = "import scipy.special\n" if order == "package first" else ""
    environment = {"SCIPY_ARRAY_API": "1"} if order == "array API" else {}
    printed = run(
        f"{first}from metacal.cli.startup import shorten_import_of_special_functions\n"
        "finders = list(sys.meta_path)\n"
        "shorten_import_of_special_functions()\n"
        "print(sys.meta_path == finders)",
        **environment,
    )
    assert printed == ["True"]


def test_a_scipy_that_is_built_differently_is_imported_whole():
    printed = run(
        "import metacal.cli.startup as startup\n"
        "def fail(): raise ImportError\n"
        "startup._import_compiled_scipy_functions = fail\n"
        "startup.shorten_import_of_special_functions()\n"
        "from scipy.special import bdtr\n"
        "print(bdtr(1, 2, 0.5), 'scipy.special._basic' in sys.modules)"
    )
    assert printed == ["0.75", "True"]


def test_a_fit_imports_nothing_needless(tmp_path):
    printed = run(
        "import numpy as np\n"
        "from metacal import datasets\n"
        f"path = {str(tmp_path / 'val.npz')!r}\n"
        "data = datasets.load('cifar10-resnet110')\n"
        "np.savez(path, logits=data.logits[:2000], labels=data.labels[:2000])\n"
        "from metacal.cli import main\n"
        "sys.argv = ['metacal', 'fit', path, '--min-accuracy', '0.9', '-o', path + '.json']\n"
        "try:\n    main()\nexcept SystemExit as end:\n    assert not end.code\n"
        f"print(*({NEEDLESS!r} & set(sys.modules)), 'done')"
    )
    assert printed[-1] == "done"
    assert not NEEDLESS & set(printed)
