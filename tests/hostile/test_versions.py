"""What changes from one NumPy, SciPy or Python to another: type aliases, integers that wrap,
declared versions.
"""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TypeVar

import numpy as np
import pytest
from numpy.typing import NDArray
from packaging.version import Version

import lower_bounds
import metacal as mc
from docs import artifact_schema as schema
from metacal.errors import ArtifactError, InputError
from metacal.export.onnx import to_onnx
from metacal.io.artifact import encoding, registry
from metacal.maps.methods import get_map_classes
from metacal.rows import validate
from metacal.rows.labels import check_reject_label

if sys.version_info >= (3, 12):
    from typing import TypeAliasType
else:
    from typing_extensions import TypeAliasType

Scalar = TypeVar("Scalar", bound=np.generic)
#: What `NDArray` is from NumPy 2.5 on, on every NumPy.
Array = TypeAliasType("Array", np.ndarray[tuple[int, ...], np.dtype[Scalar]], type_params=(Scalar,))
Floats = TypeAliasType("Floats", Array[np.float64])
Number = TypeAliasType("Number", float)


@dataclass(frozen=True)
class AliasMap:
    curve: Array[np.float64]
    knots: Floats | None
    weights: tuple[Number, ...]


HELD = {
    "curve": {"dtype": "<f8", "shape": [2], "values": [1.5, 2.0]},
    "knots": {"dtype": "<f8", "shape": [1], "values": [0.5]},
    "weights": [1.0, "inf"],
}


def test_fields_behind_aliases_are_saved_and_read_back():
    found = encoding.decode(AliasMap, HELD, "map")
    assert found.curve.tolist() == [1.5, 2.0]
    assert found.knots.tolist() == [0.5]
    assert found.weights == (1.0, np.inf)
    assert encoding.encode(found, "map") == HELD
    assert encoding.decode(AliasMap, {**HELD, "knots": None}, "map").knots is None


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("curve", {"dtype": "<i8", "shape": [1], "values": [1]}, "array of float64"),
        ("knots", {"dtype": "<f4", "shape": [1], "values": [1.0]}, "array of float64"),
        ("curve", [1.0], r"it is a list\."),
        ("weights", ["one"], r'a number, but it is "one"\.'),
    ],
)
def test_aliases_are_checked_as_what_they_stand_for(name, value, said):
    with pytest.raises(ArtifactError, match=said):
        encoding.decode(AliasMap, {**HELD, name: value}, "map")


def test_the_schema_sees_through_aliases():
    assert schema.of(Array[np.float64]) == schema.of(NDArray[np.float64])
    assert schema.of(Floats | None) == schema.of(NDArray[np.float64] | None)
    assert schema.of(tuple[Number, ...]) == schema.of(tuple[float, ...])


def test_no_annotation_of_a_map_is_left_an_alias():
    for cls in get_map_classes().values():
        annotations = registry.type_hints(cls)
        for field in fields(cls):
            found = registry.resolve_alias(annotations[field.name])
            assert not hasattr(found, "__value__"), f"{cls.__name__}.{field.name}"


# ── integers that do not fit: NumPy 1 wraps them in silence, NumPy 2 raises, of a float the process


@pytest.mark.parametrize(
    ("dtype", "number"), [("|i1", 300), ("|i1", -129), ("|u1", -1), ("<u8", -1), ("<i4", 2**40)]
)
def test_an_array_of_an_artifact_never_wraps(dtype, number):
    with pytest.raises(ArtifactError, match="does not fit"):
        encoding.decode(np.ndarray, {"dtype": dtype, "shape": [2], "values": [0, number]}, "x")


@pytest.mark.parametrize("number", [-128, 127])
def test_an_array_of_an_artifact_holds_what_fits(number):
    found = encoding.decode(np.ndarray, {"dtype": "|i1", "shape": [1], "values": [number]}, "x")
    assert found.tolist() == [number]


@pytest.mark.parametrize(
    "labels",
    [
        [0, 2**70],
        [0, -(2**70)],
        [0, 2**63],
        [0.0, 1e300],
        [0.0, -1e19],
        np.array([0, 2**63], dtype=object),
    ],
)
def test_labels_beyond_64_bits_are_refused(labels):
    with pytest.raises(InputError, match="64-bit integers, but row 1"):
        validate.encode_labels(labels, 2, validate.check_classes(None, 3))


@pytest.mark.parametrize("edge", [-(2**63), 2**63 - 1])
def test_labels_at_the_edge_of_64_bits_are_found(edge):
    classes = validate.check_classes(np.array([0, edge]), 2)
    assert validate.encode_labels(np.array([edge, 0], dtype=object), 2, classes).tolist() == [1, 0]


@pytest.mark.parametrize(
    ("classes", "reject_label"),
    [(np.arange(3, dtype=np.uint64) + 2**63, -1), (np.arange(3), 2**63), (None, 2**64)],
)
def test_a_reject_label_that_would_round_the_classes_is_refused(classes, reject_label):
    """int64 and uint64 have only float64 in common: 9223372036854775809 would come back as
    9223372036854775808.
    """
    known = np.arange(3) if classes is None else classes
    with pytest.raises(InputError, match="integer"):
        check_reject_label(reject_label, known)


# ── what is declared is what is tested ────────────────────────────────────────────────────────────

ROOT = Path(__file__).resolve().parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


def test_the_run_with_the_lower_bounds_has_every_declared_bound():
    committed = lower_bounds.FILE.read_text(encoding="utf-8")
    assert committed == lower_bounds.text(), "run: python tests/lower_bounds.py"


def test_python_versions_are_those_declared():
    named = [
        text.rpartition(" :: ")[2] for text in PROJECT["classifiers"] if ":: Python :: 3." in text
    ]
    oldest = min(map(Version, named))
    assert PROJECT["requires-python"] == f">={oldest}", "the oldest classifier is the bound"
    assert [str(version) for version in sorted(map(Version, named))] == named
    minors = [Version(text).minor for text in named]
    assert minors == list(range(minors[0], minors[-1] + 1)), "no version is left out between"


@pytest.mark.long
def test_nothing_of_ours_leans_on_private_or_deprecated_names_of_numpy():
    """Each module is imported with every warning about something deprecated, in metacal's own
    lines, an error.
    """
    code = (
        "import importlib, pkgutil, warnings\nfor kind in (DeprecationWarning, FutureWarning,"
        " PendingDeprecationWarning):\n    warnings.filterwarnings('error', category=kind,"
        " module='metacal')\nimport metacal\nfor found in pkgutil.walk_packages(metacal.__path__,"
        " 'metacal.'):\n    try: importlib.import_module(found.name)\n    except ImportError as"
        " error:\n        if error.name in {'torch', 'triton', 'transformers'} or 'pip install' in"
        " str(error): continue\n        raise\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    private = re.compile(
        r"(?:from|import) (?:numpy|scipy|sklearn)(?:\.\w+)*\._|\bnp\.(?:core|_core|lib\._)\b"
    )
    found = [
        f"{path.relative_to(ROOT)}:{number}"
        for path in sorted((ROOT / "src").rglob("*.py"))
        for number, line in enumerate(path.read_text().splitlines(), 1)
        if private.search(line)
        and "sklearn.utils._array_api" not in line  # it has no public name yet
    ]
    assert not found, "private names go from one version to the next"


# ── an empty batch ────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("score", ["margin", "entropy", "max_probability", "energy"])
def test_an_empty_batch_ends_no_onnx_runtime(score):
    """TopK of no rows divides by zero and ends the process, in every onnxruntime from 1.17 to 1.30
    that was tried.
    """
    onnxruntime = pytest.importorskip("onnxruntime")
    rng = np.random.default_rng(0)
    labels = rng.integers(5, size=500)
    logits = (rng.normal(size=(500, 5)) + 3 * np.eye(5)[labels]).astype(np.float32)
    gate = mc.MetaCal(mc.MaxMiscoverage(0.2), score=score).fit(logits, labels)
    model = to_onnx(gate)
    assert "TopK" not in {node.op_type for node in model.graph.node}
    session = onnxruntime.InferenceSession(
        model.SerializeToString(), providers=["CPUExecutionProvider"]
    )
    probs, _, accept = session.run(["probs", "score", "accept"], {"logits": logits[:0]})
    assert probs.shape == (0, 5)
    assert accept.shape[0] == 0
