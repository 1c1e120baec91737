"""The JSON Schema (draft 2020-12) of saved files, made from the same annotations that the reader
checks.

`python docs/artifact_schema.py` prints it; built pages have it beside them. Whatever the schema
refuses `load` refuses too; `load` refuses more: numbers that do not agree with each other, a wrong
checksum, a map without probabilities.
"""

from __future__ import annotations

import json
import sys
from dataclasses import is_dataclass
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

import numpy as np

from metacal.certificates.certificate import Certificate
from metacal.certificates.notes import NOTE_TEXTS, Note
from metacal.io.artifact.arrays import DTYPES
from metacal.io.artifact.audit import MAX_NOTES, note_fact_types
from metacal.io.artifact.document import SavedGate
from metacal.io.artifact.registry import (
    STORABLE_SUBCLASS_LISTERS,
    STORED_FORM_OF_TYPE,
    Unsigned,
    find_allowed_names,
    find_optional_defaults,
    find_storable_subclasses,
    get_field_types,
    get_union_members,
    resolve_alias,
)
from metacal.io.artifact.signature import N_SIGNATURE_DIGITS
from metacal.io.artifact.sources import MAX_JOBS
from metacal.io.artifact.stages import MAX_STAGES
from metacal.io.artifact.wrapping import FORMAT, VERSION

Schema = dict[str, Any]

_HASH = {"type": "string", "pattern": "^sha256:[0-9a-f]{64}$"}
_SHARE = {"type": "number", "exclusiveMinimum": 0, "exclusiveMaximum": 1}
_POSITIVE = {"type": "number", "exclusiveMinimum": 0}
_COUNT = {"type": "integer", "minimum": 0}
#: What the entries of these names are besides, wherever they stand.
_BOUNDS: dict[str, Schema] = {
    **dict.fromkeys(("alpha", "beta", "epsilon", "delta", "max_miscoverage"), _SHARE),
    **dict.fromkeys(("limit", "review", "target", "share"), _POSITIVE),
    "mean_cost": {"type": "number", "minimum": 0},
    "labelled": {"const": False},
    "fallback": {"const": "pooled"},
    "n_jobs": {"type": "integer", "minimum": -MAX_JOBS, "maximum": MAX_JOBS, "not": {"const": 0}},
    "stages": {"minItems": 1, "maxItems": MAX_STAGES},
    "notes": {"maxItems": MAX_NOTES},
    "items": {"minItems": 1},
    "values": {"minItems": 1},
    "data_hash": _HASH,
    "random_state": {"type": "integer"},
    "n_classes_": {"type": "integer", "minimum": 2},
}
_SIMPLE: dict[Any, Schema] = {
    float: {"$ref": "#/$defs/number"},
    int: {"type": "integer", "minimum": -(2**63), "maximum": 2**63 - 1},
    Unsigned: {"type": "integer", "minimum": 0, "maximum": 2**64 - 1},
    bool: {"type": "boolean"},
    str: {"type": "string"},
    type(None): {"type": "null"},
    Any: {"type": ["null", "boolean", "number", "string"]},
}
#: What says itself what it holds.
_REFERRED = {Certificate: "certificate", Note: "note"}
_ARRAYS = {np.float64: "<f8", np.int64: "<i8"}


def schema() -> Schema:
    """The schema of everything that this metacal saves.

    Examples
    --------
    >>> schema()["properties"]["version"]
    {'const': 3}
    """
    signatures = [_signature(algorithm, digits) for algorithm, digits in N_SIGNATURE_DIGITS.items()]
    around = {
        "format": {"const": FORMAT},
        "version": {"const": VERSION},
        "metacal_version": {"type": "string"},
    }
    sealed = {"checksum": _HASH, "signature": {"oneOf": signatures}}
    families = [
        cls
        for base in STORABLE_SUBCLASS_LISTERS
        for cls in (find_storable_subclasses(base) or {}).items()
    ]
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "$id": f"urn:metacal:artifact:{VERSION}",
        "title": f"A calibrator or gate saved by metacal, format {VERSION}",
        **_object({**around, **_entries(SavedGate), **sealed}, optional=("signature",)),
        "$defs": {
            "number": {"oneOf": [{"type": "number"}, {"enum": ["inf", "-inf"]}]},
            "array": _array(),
            **{name: _record(cls, {"type": {"const": name}}) for name, cls in families},
            "certificate": _record(Certificate),
            "note": {"oneOf": [_note(kind) for kind in NOTE_TEXTS]},
        },
    }


def of(annotation: Any) -> Schema:
    """What `encoding.decode` takes for this annotation."""
    annotation = resolve_alias(annotation)
    origin, arguments, family = (
        get_origin(annotation),
        get_args(annotation),
        find_storable_subclasses(annotation),
    )
    if annotation in _REFERRED:
        return {"$ref": f"#/$defs/{_REFERRED[annotation]}"}
    if annotation in STORED_FORM_OF_TYPE:
        return of(STORED_FORM_OF_TYPE[annotation].stored_type)
    if family is not None:
        return {"anyOf": [{"$ref": f"#/$defs/{name}"} for name in family]}
    if len(get_union_members(annotation)) > 1:
        return {"anyOf": [of(option) for option in get_union_members(annotation)]}
    allowed_names = find_allowed_names(annotation)
    if allowed_names is not None:
        return {"enum": list(allowed_names)}
    if origin is Literal:
        return {"enum": list(arguments)}
    if origin is tuple and arguments[-1] is Ellipsis:
        return {"type": "array", "items": of(arguments[0])}
    if origin is tuple:
        size = len(arguments)
        return {
            "type": "array",
            "prefixItems": list(map(of, arguments)),
            "minItems": size,
            "maxItems": size,
        }
    if origin is np.ndarray:
        kind = get_args(arguments[1])[0]
        return {
            "allOf": [
                {"$ref": "#/$defs/array"},
                {"properties": {"dtype": {"const": _ARRAYS[kind]}}},
            ]
        }
    return _record(annotation) if is_dataclass(annotation) else _SIMPLE[annotation]  # type: ignore[arg-type]


def _record(cls: type, named: Schema | None = None) -> Schema:
    return _object({**(named or {}), **_entries(cls)}, optional=tuple(find_optional_defaults(cls)))


def _entries(cls: type) -> Schema:
    silent = find_optional_defaults(cls)
    return {
        name: _entry(name, kind, silent=name in silent)
        for name, kind in get_field_types(cls).items()
    }


def _entry(name: str, annotation: Any, *, silent: bool = False) -> Schema:
    """An entry, its bounds put in; null is allowed where it is said to be, and it does not stand
    for silence.
    """
    options = get_union_members(annotation)
    there = [of(option) for option in options if option is not type(None)]
    bound = _BOUNDS.get(name, _COUNT if name.startswith("n_") else None)
    if bound is not None:
        there = [
            bound if option == _SIMPLE[Any] else {"allOf": [option, bound]} for option in there
        ]
    null = type(None) in options or (bound is not None and Any in options)
    there += [{"type": "null"}] if null and not silent else []
    return there[0] if len(there) == 1 else {"anyOf": there}


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


def _array() -> Schema:
    head = {
        "dtype": {"enum": list(DTYPES)},
        "shape": {"type": "array", "items": _COUNT, "maxItems": 8},
    }
    values = {"type": "array", "items": {"type": ["number", "boolean"]}}
    packed = {"type": "string", "contentEncoding": "base64"}
    return {"oneOf": [_object({**head, "values": values}), _object({**head, "base64": packed})]}


def _note(kind: str) -> Schema:
    return _object(
        {
            "kind": {"const": kind},
            **{name: of(fact) for name, fact in note_fact_types(kind).items()},
        }
    )


def write(path: Path) -> None:
    """Write it to a file."""
    path.write_text(json.dumps(schema(), indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    sys.stdout.write(json.dumps(schema(), indent=1) + "\n")
