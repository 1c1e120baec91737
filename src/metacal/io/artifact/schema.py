"""The JSON Schema (draft 2020-12) of saved files, made from the same annotations that the reader checks.

`python -m metacal.io.artifact.schema` prints it. Whatever the schema refuses `load` refuses too; `load` refuses more:
numbers that do not agree with each other, a wrong checksum, a map that gives no probabilities.
"""

from __future__ import annotations

import json
import types
from dataclasses import fields
from typing import Any, Literal, Union, get_args, get_origin

import numpy as np

from metacal.gate.marks import HIGHER_IS
from metacal.io.artifact.audit import MOST_NOTES, certificate_annotations
from metacal.io.artifact.classes import DTYPES
from metacal.io.artifact.document import KINDS, MOST_STAGES
from metacal.io.artifact.encoding import annotations_of, resolved
from metacal.io.artifact.parameters import MOST_JOBS, calibrator_kinds, parameters_of
from metacal.io.artifact.parts import HEAD, PART
from metacal.io.artifact.profile import PROFILE_KEYS
from metacal.io.artifact.promises import inner_kinds, optional_fields, saved_fields
from metacal.io.artifact.rankers import LEARNED, RANKERS
from metacal.io.artifact.rankers import parameters_of as ranker_parameters
from metacal.io.artifact.signature import DIGITS
from metacal.io.artifact.wrapping import FORMAT, VERSION
from metacal.maps.confidence import ConfidenceCurve
from metacal.maps.map import Map
from metacal.maps.methods import Method, method_named
from metacal.promises.certificate import COUNTED_BY_LABELS, NAMES, OPTIONAL, Traffic
from metacal.promises.circumstances import Circumstances
from metacal.promises.kinds import promise_classes
from metacal.promises.notes import NOTES
from metacal.promises.parts.part import StageCount, Stages, Status
from metacal.promises.sequential.profile import Profile
from metacal.scores import named as scores

Schema = dict[str, Any]

_HASH = {"type": "string", "pattern": "^sha256:[0-9a-f]{64}$"}
_SHARE = {"type": "number", "exclusiveMinimum": 0, "exclusiveMaximum": 1}
_COUNT = {"type": "integer", "minimum": 0}
_TEXTS = {"type": "array", "items": {"type": "string"}}
_INPUT = {"enum": ["logits", "probabilities"]}
_JOBS = {
    "anyOf": [{"type": "null"}, {"type": "integer", "minimum": -MOST_JOBS, "maximum": MOST_JOBS, "not": {"const": 0}}]
}
_SIMPLE: dict[Any, Schema] = {
    float: {"$ref": "#/$defs/number"},
    int: {"type": "integer", "minimum": -(2**63), "maximum": 2**63 - 1},
    bool: {"type": "boolean"},
    str: {"type": "string"},
    type(None): {"type": "null"},
    Any: {"type": ["null", "boolean", "number", "string"]},
}
_ARRAYS = {np.float64: "<f8", np.int64: "<i8"}


def schema() -> Schema:
    """The schema of everything that this metacal saves.

    Examples
    --------
    >>> schema()["properties"]["version"]
    {'const': 3}
    """
    calibrators = calibrator_kinds()
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "$id": f"urn:metacal:artifact:{VERSION}",
        "title": f"A calibrator or gate saved by metacal, format {VERSION}",
        **_object(
            {
                "format": {"const": FORMAT},
                "version": {"const": VERSION},
                "metacal_version": {"type": "string"},
                "kind": {"enum": [*KINDS.values(), *calibrators]},
                "n_jobs": _JOBS,
                "feature_names": {"anyOf": [{"type": "null"}, _TEXTS]},
                "reject_label": _SIMPLE[Any],
                "stages": {"type": "array", "minItems": 1, "maxItems": MOST_STAGES, "items": _stage()},
                "promise": {"anyOf": [{"type": "null"}, {"$ref": "#/$defs/promise"}]},
                "certificate": {"anyOf": [{"type": "null"}, {"$ref": "#/$defs/certificate"}]},
                "data_hash": {"anyOf": [{"type": "null"}, _HASH]},
                "profile": {"anyOf": [{"type": "null"}, _profile()]},
                "checksum": _HASH,
                "signature": {"oneOf": [_signature(algorithm, digits) for algorithm, digits in DIGITS.items()]},
            },
            optional=("signature",),
        ),
        "$defs": {
            "number": {"oneOf": [{"type": "number"}, {"enum": ["inf", "-inf"]}]},
            "array": _array(),
            ConfidenceCurve.__name__: _map(ConfidenceCurve),
            **{name: _map(cls) for name, cls in _maps().items()},
            **{name: _ranker(name) for name in RANKERS},
            "promise": {"oneOf": [_promise(kind) for kind in promise_classes()]},
            "calibrator": {"oneOf": [{"type": "null"}, *map(_calibrator, calibrators)]},
            "certificate": _certificate(),
        },
    }


def _stage() -> Schema:
    learned = [{"$ref": f"#/$defs/{name}"} for name in RANKERS]
    table = {
        "type": {"const": "Table"},
        "classes": _object({**_CLASSES, "given": {"type": "boolean"}}),
        "input": _INPUT,
        "score": {"anyOf": [{"enum": list(scores.NAMED)}, *learned]},
        "calibrator": {"$ref": "#/$defs/calibrator"},
        "map": {"anyOf": [{"$ref": f"#/$defs/{name}"} for name in _maps()]},
    }
    marks = {
        "type": {"const": "Marks"},
        "score": {"type": "string"},
        "higher_is": {"enum": list(HIGHER_IS)},
        "curve": {"anyOf": [{"type": "null"}, {"$ref": f"#/$defs/{ConfidenceCurve.__name__}"}]},
    }
    source = {"oneOf": [_object(table), _object(marks)]}
    return _object({"name": {"type": "string"}, "threshold": {"$ref": "#/$defs/number"}, "source": source})


_CLASSES: Schema = {
    "dtype": {"enum": list(DTYPES)},
    "values": {"type": "array", "minItems": 1, "items": {"type": ["string", "boolean", "integer"]}},
}


def _object(properties: Schema, optional: tuple[str, ...] = ()) -> Schema:
    return {
        "type": "object",
        "properties": properties,
        "required": [name for name in properties if name not in optional],
        "additionalProperties": False,
    }


def _signature(algorithm: str, digits: int) -> Schema:
    value = {"type": "string", "pattern": f"^[0-9a-f]{{{digits}}}$"}
    return _object({"algorithm": {"const": algorithm}, "value": value})


def _of(annotation: Any) -> Schema:
    """What `encoding.decode` takes for this annotation."""
    annotation = resolved(annotation)
    origin, arguments = get_origin(annotation), get_args(annotation)
    if origin in (Union, types.UnionType):
        # A random Generator, say, is a parameter that no file can hold.
        return {
            "anyOf": [_of(option) for option in map(resolved, arguments) if get_origin(option) or option in _SIMPLE]
        }
    if origin is Literal:
        return {"enum": list(arguments)}
    if annotation is Map:
        return {"anyOf": [{"$ref": f"#/$defs/{name}"} for name in _maps()]}
    if origin is tuple and arguments[-1] is Ellipsis:
        return {"type": "array", "items": _of(arguments[0])}
    if origin is tuple:
        size = len(arguments)
        return {"type": "array", "prefixItems": list(map(_of, arguments)), "minItems": size, "maxItems": size}
    if origin is np.ndarray:
        kind = get_args(arguments[1])[0]
        return {"allOf": [{"$ref": "#/$defs/array"}, {"properties": {"dtype": {"const": _ARRAYS[kind]}}}]}
    return _SIMPLE[annotation]


def _array() -> Schema:
    head = {
        "dtype": {"enum": ["<f2", "<f4", "<f8", "|i1", "<i2", "<i4", "<i8", "|u1", "<u2", "<u4", "<u8", "|b1"]},
        "shape": {"type": "array", "items": _COUNT, "maxItems": 8},
    }
    values = {"type": "array", "items": {"type": ["number", "boolean"]}}
    return {
        "oneOf": [
            _object({**head, "values": values}),
            _object({**head, "base64": {"type": "string", "contentEncoding": "base64"}}),
        ]
    }


def _method(kind: str) -> Method:
    method = method_named(kind)
    assert method is not None
    return method


def _maps() -> dict[str, type]:
    """Every map by its class's name, in the order of the kinds of file."""
    classes = [_method(kind).map_class() for kind in calibrator_kinds()]
    return {cls.__name__: cls for cls in classes}


def _map(cls: type) -> Schema:
    annotations = annotations_of(cls)
    own = {field.name: _of(annotations[field.name]) for field in fields(cls)}
    return _object({"type": {"const": cls.__name__}, **own})


def _calibrator(kind: str) -> Schema:
    own = {name: _of(annotation) for name, annotation in parameters_of(_method(kind)).items()}
    parameters = _object({**own, "input": _INPUT, "n_jobs": _JOBS})
    classes = {"anyOf": [{"type": "null"}, _object(_CLASSES)]}
    return _object({"kind": {"const": kind}, "parameters": parameters, "classes": classes})


def _profile() -> Schema:
    kinds = annotations_of(Profile)
    return _object({name: _COUNT if name.startswith("n_") else _of(kinds[name]) for name in PROFILE_KEYS})


def _ranker(kind: str) -> Schema:
    parameters = {name: _of(annotation) for name, annotation in ranker_parameters(RANKERS[kind]).items()}
    return _object(
        {
            "type": {"const": kind},
            "parameters": _object(parameters),
            "classes": {"anyOf": [{"type": "null"}, _object(_CLASSES)]},
            "n_classes": {"type": "integer", "minimum": 2},
            **{name: {"$ref": "#/$defs/array"} for name in LEARNED},
        }
    )


def _promise(kind: str) -> Schema:
    cls: Any = promise_classes()[kind]
    annotations = annotations_of(cls)
    names = saved_fields(cls)
    own = {name: _of(annotations[name]) for name in names if name != "promise"}
    if "promise" in names:
        own = {"promise": {"oneOf": [_promise(inner) for inner in inner_kinds()]}, **own}
        own["fallback"] = {"enum": [None, "pooled"]}
    for name in ("alpha", "beta", "epsilon", "share", "delta"):
        if name in own:
            own[name] = _SHARE if own[name] == _of(float) else {"anyOf": [{"type": "null"}, _SHARE]}
    for name in ("limit", "review"):
        if name in own:
            own[name] = {"type": "number", "exclusiveMinimum": 0}
    if "random_state" in own:
        own["random_state"] = {"type": ["integer", "null"]}
    return _object({"type": {"const": kind}, **own}, optional=tuple(optional_fields(cls)))


def _certificate() -> Schema:
    annotations = certificate_annotations()
    own = {name: _of(annotations[name]) for name in NAMES if name not in ("parts", "stages", "notes", "circumstances")}
    own |= {name: _COUNT for name in own if name.startswith("n_")}
    own |= {name: {"anyOf": [{"type": "null"}, _COUNT]} for name in COUNTED_BY_LABELS}
    cost = {"type": "number", "minimum": 0}
    items = {"type": "array", "minItems": 2, "items": _record(StageCount)}
    counts = {"n_wrong": {"anyOf": [{"type": "null"}, _COUNT]}}
    items["items"]["properties"] |= counts  # type: ignore[index]
    stages = {field.name: _of(annotations_of(Stages)[field.name]) for field in fields(Stages) if field.name != "items"}
    own |= {"stages": _object({**stages, "items": items})}
    own |= {"parts": _parts(), "notes": _notes(), "circumstances": _record(Circumstances), "traffic": _record(Traffic)}
    own |= {"target": {"type": "number", "exclusiveMinimum": 0}, "max_miscoverage": _SHARE, "mean_cost": cost}
    own |= {"delta": {"anyOf": [{"type": "null"}, _SHARE]}, "labelled": {"const": False}}
    derived = {
        "coverage": {"type": "number"},
        "coverage_accuracy": {"type": ["number", "null"]},
        "miscoverage": {"type": ["number", "null"]},
        "loss": {"type": "number"},
    }
    return _object({**own, **derived}, optional=(*OPTIONAL, "loss"))


def _record(cls: Any) -> Schema:
    own = {field.name: _of(annotations_of(cls)[field.name]) for field in fields(cls)}
    return _object({name: _COUNT if name.startswith("n_") else kind for name, kind in own.items()})


def _notes() -> Schema:
    """Each kind with its facts."""
    kinds = {kind: annotations_of(sentence) for kind, sentence in NOTES.items()}
    facts = {kind: {name: _of(fact) for name, fact in own.items() if name != "return"} for kind, own in kinds.items()}
    items = {"oneOf": [_object({"kind": {"const": kind}, **own}) for kind, own in facts.items()]}
    return {"type": "array", "maxItems": MOST_NOTES, "items": items}


def _parts() -> Schema:
    own = {name: _of(kind) for name, kind in PART.items()}
    own |= {name: _COUNT for name in own if name.startswith("n_")}
    own |= {"status": {"enum": list(get_args(Status))}, "delta": {"anyOf": [{"type": "null"}, _SHARE]}}
    items = {"type": "array", "minItems": 1, "items": _object(own)}
    return _object({**{name: _of(kind) for name, kind in HEAD.items()}, "items": items})


if __name__ == "__main__":
    import sys

    sys.stdout.write(json.dumps(schema(), indent=1) + "\n")
