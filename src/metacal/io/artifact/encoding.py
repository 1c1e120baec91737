"""Plain values as JSON and back, with every type checked against the annotation of the field that
holds it.

What a file may hold is float, int, bool, str, None, tuples of these, NumPy arrays and dataclasses.
`encode` writes by value, `decode` reads by annotation: a file can only ever become what the
dataclass says it holds. A dataclass is an object with its fields; one of a family (maps, promises,
sources) says under "type" which one it is.
"""

from __future__ import annotations

import math
import sys
import types
from collections.abc import Callable, Iterable, Mapping
from dataclasses import fields, is_dataclass
from functools import cache
from typing import (
    Any,
    Literal,
    NamedTuple,
    NewType,
    NotRequired,
    Union,
    get_args,
    get_origin,
    get_type_hints,
)

import numpy as np

from metacal.errors import ArtifactError
from metacal.io.artifact.arrays import decode_array, encode_array
from metacal.io.artifact.messages import article, brief, exact_keys, shown
from metacal.maps.map import Map
from metacal.maps.methods import map_classes
from metacal.promises.kinds import promise_classes
from metacal.promises.promise import Promise

_INFINITE = ("inf", "-inf")
#: Maps inside maps inside maps.
_DEEPEST = 12

#: A whole number of 64 bits that may not fit a signed one: some labels are.
Unsigned = NewType("Unsigned", int)
#: Classes of which there are several, and where those are by the name that a file gives them under
#: "type".
FAMILIES: dict[Any, Callable[[], Mapping[str, type]]] = {Map: map_classes, Promise: promise_classes}
#: Text that is one of some names, of which there may become more while a program runs.
CHOICES: dict[Any, Callable[[], Iterable[str]]] = {}
#: What a file holds of classes whose fields do not say it: attributes, and the type of each in a
#: file.
ENTRIES: dict[type, dict[str, Any]] = {}
#: What makes such an object of its entries, where the class itself does not.
BUILDERS: dict[type, Callable[..., Any]] = {}


class Form(NamedTuple):
    """A type that stands in a file as another: the type of its shape there, how it is put into it,
    and taken out.
    """

    shape: Any
    write: Callable[[Any, str], Any]
    read: Callable[[Any, str], Any]


FORMS: dict[Any, Form] = {}


def row_form(cls: Any) -> Form:
    """The form of a dataclass of which there are many: the list of its values, in the order of its
    fields.
    """
    kinds = entries(cls)
    shape: Any = tuple.__class_getitem__(tuple(kinds.values()))
    return Form(
        shape,
        lambda one, where: [getattr(one, name) for name in kinds],
        lambda row, where: cls(*row),
    )


def encode(value: Any, where: str) -> Any:
    """Return `value` as JSON types; `where` names it in errors.

    Examples
    --------
    >>> encode((1.0, "a", float("inf")), "x")
    [1.0, 'a', 'inf']
    >>> encode(np.array([1.5, 2.0]), "x")
    {'dtype': '<f8', 'shape': [2], 'values': [1.5, 2.0]}
    >>> from metacal.maps.temperature import TemperatureMap
    >>> encode(TemperatureMap(0.5), "x")
    {'type': 'TemperatureMap', 'inverse_temperature': 0.5}
    """
    if _is_json(value):
        return value  # first, for there are many
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, int) and not -(2**63) <= value < 2**64:
        raise ArtifactError(
            f"{where} is a number beyond 64 bits, which cannot be saved; choose a smaller one."
        )
    if isinstance(value, str) and not _is_text(value):
        raise ArtifactError(
            f"{where} holds half a surrogate pair, which is no text and cannot be saved; rename it."
        )
    if value is None or isinstance(value, bool | int | str):
        return value
    if isinstance(value, float):
        if math.isnan(value):
            raise ArtifactError(f"{where} is NaN, which cannot be saved; fit again.")
        return value if math.isfinite(value) else ("inf" if value > 0 else "-inf")
    if isinstance(value, dict):
        return {name: encode(entry, f"{where}.{name}") for name, entry in value.items()}
    if isinstance(value, tuple | list):
        return [
            item if _is_json(item) else encode(item, f"{where}[{k}]")
            for k, item in enumerate(value)
        ]
    if isinstance(value, np.ndarray):
        return encode_array(value, where)
    if type(value) in FORMS:
        return encode(FORMS[type(value)].write(value, where), where)
    return _encode_record(value, where)


def _is_json(value: Any) -> bool:
    """Whether it is a plain number, true, false or null."""
    kind = type(value)
    return (
        value is None
        or kind is bool
        or (kind is float and math.isfinite(value))
        or _is_whole(value)
    )


def _encode_record(value: Any, where: str) -> dict[str, Any]:
    cls: Any = type(value)
    base = _base_of(cls)
    family = FAMILIES[base]() if base else None
    if not is_dataclass(value):
        name = getattr(value, "__name__", None) or type(value).__qualname__
        raise ArtifactError(
            f"{where} is {article(str(name))}, which a file cannot hold; give a plain value or one"
            " of metacal's own."
        )
    named = {}
    if family is not None:
        own: str = cls.__name__  # the usual name: a family need not be imported as a whole
        kinds = (
            [own]
            if family.get(own) is cls
            else [name for name, one in family.items() if one is cls]
        )
        if not kinds:
            raise ArtifactError(
                f"{where} is {article(own)}; what can be saved is {', '.join(family)}."
            )
        named = {"type": kinds[0]}
    plain, (own_entries, silent) = {}, _layout(cls)
    for name, annotation in own_entries.items():
        entry, at = getattr(value, name), f"{where}.{name}"
        form = next((FORMS[kind] for kind in options_of(annotation) if kind in FORMS), None)
        if name not in silent or entry != silent[name]:
            plain[name] = encode(
                entry if form is None or entry is None else form.write(entry, at), at
            )
    return {**named, **plain}


def decode(annotation: Any, data: Any, where: str, depth: int = 0) -> Any:
    """Return the value of type `annotation` that `data` describes, or raise ArtifactError.

    Examples
    --------
    >>> decode(tuple[float, ...], [1.0, "inf"], "x")
    (1.0, inf)
    >>> decode(float | None, "one", "x")
    Traceback (most recent call last):
    metacal.errors.ArtifactError: x must be a number or null, not "one".
    """
    if depth > _DEEPEST:
        raise ArtifactError(f"{where} is nested too deeply.")
    annotation = resolved(annotation)
    if annotation in _PLAIN and annotation is not float and _fits(annotation, data):
        return data
    if annotation in FORMS:
        form = FORMS[annotation]
        return form.read(decode(form.shape, data, where, depth), where)
    family = family_of(annotation)
    if family is not None:
        cls = _member(family, data, where)
        return _object(cls, decode_entries(cls, data, where, depth, named=True), where)
    fitting = [option for option in options_of(annotation) if _fits(option, data)]
    if not fitting:
        raise ArtifactError(f"{where} must be {_said(annotation)}, not {shown(data)}.")
    if fitting[0] != annotation:
        return decode(fitting[0], data, where, depth)
    if annotation is float:
        if type(data) is int and abs(data) > sys.float_info.max:
            raise ArtifactError(f"{where} is too large a number.")
        return float(data)
    origin = get_origin(annotation)
    if origin in (tuple, list):
        return origin(_items(annotation, data, where, depth))
    if np.ndarray in (annotation, origin):
        return decode_array(annotation, data, where)
    if is_dataclass(annotation):
        return _object(annotation, decode_entries(annotation, data, where, depth), where)  # type: ignore[arg-type]
    return data


def _object(cls: Any, values: dict[str, Any], where: str) -> Any:
    """The object; entries that are no fields of it follow from those that are."""
    if cls in BUILDERS:
        return built(BUILDERS[cls], values, where)
    names = {each.name for each in fields(cls)}
    made = built(cls, {name: value for name, value in values.items() if name in names}, where)
    for name in values.keys() - names:
        if getattr(made, name) != values[name]:
            raise ArtifactError(
                f"{where}: {name} {shown(values[name])} does not follow from the rest."
            )
    return made


def decode_entries(
    cls: type, data: Any, where: str, depth: int = 0, *, named: bool = False
) -> dict[str, Any]:
    """The entries that an object has of a class, each of its own type; those that are silent are
    not there.
    """
    own, silent = _layout(cls)
    there = data if isinstance(data, dict) else {}
    names = [name for name in own if name in there or name not in silent]
    exact_keys(data, [*(["type"] if named else []), *names], where)
    values = {name: decode(own[name], data[name], f"{where}.{name}", depth + 1) for name in names}
    for name in silent:
        if name in values and values[name] == silent[name]:
            raise ArtifactError(f"{where}: {name} must not be there, for it says nothing.")
    return values


def _member(family: Mapping[str, type], data: Any, where: str) -> type:
    """The class of a family that an object says it is of."""
    kind = data.get("type") if isinstance(data, dict) else data
    cls = family.get(kind) if isinstance(kind, str) else None
    if cls is None:
        raise ArtifactError(f"{where} must be one of {', '.join(family)}, not {shown(kind)}.")
    return cls


def family_of(annotation: Any) -> Mapping[str, type] | None:
    """The classes that may stand where one is asked for, by their names in a file; None for what
    has no family.

    Examples
    --------
    >>> from metacal.promises.promise import ByPart
    >>> sorted(family_of(ByPart)), family_of(float)
    (['MaxFalsePositiveRate', 'MaxMiscoverage', 'MinAccuracy', 'MinPrecision', 'MinRecall', 'TwoSided'], None)
    """
    base = _base_of(annotation)
    if base is None or base == annotation:
        return FAMILIES[base]() if base else None
    return {name: cls for name, cls in FAMILIES[base]().items() if issubclass(cls, annotation)}


@cache
def _base_of(annotation: Any) -> Any:
    """The base of the family that a class is of, None where it has none."""
    if annotation in FAMILIES or not isinstance(annotation, type):
        return annotation if annotation in FAMILIES else None
    return next((base for base in FAMILIES if issubclass(annotation, base)), None)


def entries(cls: type) -> dict[str, Any]:
    """What a file holds of a class, and the type of each entry: of its fields, unless ENTRIES says
    otherwise.
    """
    known = ENTRIES.get(cls)
    return (
        {each.name: annotations_of(cls)[each.name] for each in fields(cls)}
        if known is None
        else known
    )


@cache
def _layout(cls: type) -> tuple[dict[str, Any], dict[str, Any]]:
    """Both of these, looked up once: everything is entered by the time that a file is read."""
    return entries(cls), silent_values(cls)


def silent_values(cls: type) -> dict[str, Any]:
    """Entries that are there only where they say something, and what they are where they are
    not.
    """
    follow = {name: None for name, kind in entries(cls).items() if get_origin(kind) is NotRequired}
    return {
        each.name: each.default for each in fields(cls) if each.metadata.get("optional")
    } | follow


#: The annotations of a class as types, evaluated once: what is ours is never evaluated because of a
#: file.
annotations_of: Callable[[Any], dict[str, Any]] = cache(get_type_hints)


@cache
def resolved(annotation: Any) -> Any:
    """The type that an alias or NotRequired stands for, its parameters put in; anything else comes
    back as it is.

    From NumPy 2.5 on `NDArray` is a `typing.TypeAliasType`: the origin of `Float` is the alias, no
    longer `np.ndarray`.
    """
    if get_origin(annotation) is NotRequired:
        return resolved(get_args(annotation)[0])
    # The origin first: a parametrised alias passes `__value__` on from the bare one.
    alias = next((a for a in (get_origin(annotation), annotation) if hasattr(a, "__value__")), None)
    if alias is None:
        return annotation
    value = alias.__value__
    given = dict(
        zip(alias.__type_params__, get_args(annotation), strict=False)
    )  # a bare alias has none given
    if given:
        value = value[tuple(given[parameter] for parameter in value.__parameters__)]
    return resolved(value)


@cache
def options_of(annotation: Any) -> tuple[Any, ...]:
    """The types that a union allows, of those that a file can hold (a random Generator is none); of
    others itself.
    """
    if get_origin(annotation) not in (Union, types.UnionType) or annotation in FAMILIES:
        return (annotation,)
    known = {*_PLAIN, *CHOICES, *FORMS, np.ndarray}
    return tuple(
        option
        for option in map(resolved, get_args(annotation))
        if get_origin(option)
        or option in known
        or is_dataclass(option)
        or family_of(option) is not None
    )


def built(cls: Callable[..., Any], values: Mapping[str, Any], where: str) -> Any:
    """Call a constructor; whatever it objects to becomes an ArtifactError."""
    try:
        return cls(**values)
    except (ValueError, TypeError, ArithmeticError, IndexError) as error:
        raise ArtifactError(f"{where}: {brief(error)}") from error


def _fits(annotation: Any, data: Any) -> bool:
    """Whether the JSON type of `data` is what the annotation is written as."""
    plain = _PLAIN.get(annotation)
    if plain is not None:
        return plain[0](data)
    if annotation in CHOICES:
        return type(data) is str and data in CHOICES[annotation]()
    origin = get_origin(annotation)
    if origin is Literal:
        return any(type(data) is type(choice) and data == choice for choice in get_args(annotation))
    if origin in (tuple, list):
        return isinstance(data, list)
    return isinstance(data, dict if annotation not in FORMS else dict | list)


def _is_text(data: str) -> bool:
    return (
        data.encode(errors="replace").decode() == data
    )  # half a surrogate pair could never be printed


def _is_whole(data: Any) -> bool:
    return type(data) is int and -(2**63) <= data < 2**63


#: Plain types: what of JSON is one, and what a message calls it.
_PLAIN: dict[Any, tuple[Callable[[Any], bool], str]] = {
    float: (
        lambda data: type(data) in (int, float) or (type(data) is str and data in _INFINITE),
        "a number",
    ),
    int: (_is_whole, "a whole number"),
    Unsigned: (lambda data: type(data) is int and 0 <= data < 2**64, "a whole number"),
    bool: (lambda data: type(data) is bool, "true or false"),
    str: (lambda data: type(data) is str and _is_text(data), "text"),
    type(None): (lambda data: data is None, "null"),
    Any: (
        lambda data: type(data) in (type(None), bool, float) or _is_whole(data) or _fits(str, data),
        "a plain value",
    ),
}


def _items(annotation: Any, data: list[Any], where: str, depth: int) -> Iterable[Any]:
    kinds = get_args(annotation)
    if get_origin(annotation) is list or kinds[1:] == (Ellipsis,):
        kinds = (kinds[0],) * len(data)
    if len(kinds) != len(data):
        raise ArtifactError(f"{where} must have {len(kinds)} entries, not {len(data)}.")
    return (
        decode(kind, item, f"{where}[{k}]", depth + 1)
        for k, (kind, item) in enumerate(zip(kinds, data))
    )


def _said(annotation: Any) -> str:
    origin, arguments = get_origin(annotation), get_args(annotation)
    if origin in (Union, types.UnionType):
        return " or ".join(_said(resolved(option)) for option in arguments)
    if annotation in CHOICES or (origin is Literal and len(arguments) > 4):
        return f"one of {', '.join(CHOICES[annotation]() if annotation in CHOICES else arguments)}"
    if origin is Literal:
        return " or ".join(f'"{choice}"' for choice in arguments)
    if origin in (tuple, list):
        return "a list"
    return _PLAIN[annotation][1] if annotation in _PLAIN else "an object"
