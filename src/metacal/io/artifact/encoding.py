"""Plain values as JSON and back, with every type checked against the field's own annotation.

What a fitted map may hold is float, int, bool, str, None, tuples of these, NumPy arrays and other maps. `encode` writes
by value, `decode` reads by annotation: a file can only ever become what the dataclass says it holds.
"""

from __future__ import annotations

import base64
import binascii
import math
import types
from collections import ChainMap
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields, is_dataclass
from functools import cache
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

import numpy as np
from numpy.typing import NDArray

from metacal.errors import ArtifactError
from metacal.maps.map import Map
from metacal.maps.methods import map_classes

#: name -> frozen dataclass: what may stand inside another map.
Maps = Mapping[str, type]

#: Arrays up to this many elements are written as numbers, larger ones as base64.
_READABLE = 64
_KINDS = ("<f2", "<f4", "<f8", "|i1", "<i2", "<i4", "<i8", "|u1", "<u2", "<u4", "<u8", "|b1")
_DTYPES = {kind: np.dtype(kind) for kind in _KINDS}
_INFINITE = {"inf": math.inf, "-inf": -math.inf}
#: Maps inside maps inside maps.
_DEEPEST = 8
#: Beyond this a parameter is no result of a fit, and products of two overflow.
LARGEST = 1e100


def encode(value: Any, where: str, maps: Maps) -> Any:
    """Return `value` as JSON types; `where` names it in errors.

    Examples
    --------
    >>> encode((1.0, "a", float("inf")), "x", {})
    [1.0, 'a', 'inf']
    >>> encode(np.array([1.5, 2.0]), "x", {})
    {'dtype': '<f8', 'shape': [2], 'values': [1.5, 2.0]}
    """
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, int) and not -(2**63) <= value < 2**63:
        raise ArtifactError(f"{where} is a number beyond 64 bits, which cannot be saved; choose a smaller one.")
    if isinstance(value, str) and not _is_text(value):
        raise ArtifactError(f"{where} holds half a surrogate pair, which is no text and cannot be saved; rename it.")
    if value is None or isinstance(value, bool | int | str):
        return value
    if isinstance(value, float):
        if math.isnan(value):
            raise ArtifactError(f"{where} is NaN, which cannot be saved; fit again.")
        return value if math.isfinite(value) else ("inf" if value > 0 else "-inf")
    if isinstance(value, tuple | list):
        return [encode(item, f"{where}[{k}]", maps) for k, item in enumerate(value)]
    if isinstance(value, np.ndarray):
        return _encode_array(value, where)
    return encode_map(value, where, maps)


def encode_map(value: Any, where: str, maps: Maps) -> dict[str, Any]:
    """Return a registered map as {"type": its name, then its fields}."""
    name = type(value).__name__
    if maps.get(name) is not type(value):
        shown = getattr(value, "__name__", None) or name
        raise ArtifactError(f"{where} ({shown}) is code, not data, and cannot be saved; use one of metacal's own.")
    plain = {f.name: encode(getattr(value, f.name), f"{where}.{f.name}", maps) for f in fields(maps[name])}
    return {"type": name, **plain}


def decode(annotation: Any, data: Any, where: str, maps: Maps, depth: int = 0) -> Any:
    """Return the value of type `annotation` that `data` describes, or raise ArtifactError.

    Examples
    --------
    >>> decode(tuple[float, ...], [1.0, "inf"], "x", {})
    (1.0, inf)
    >>> decode(float | None, "one", "x", {})
    Traceback (most recent call last):
    metacal.errors.ArtifactError: x must be a number or null, not "one".
    """
    if depth > _DEEPEST:
        raise ArtifactError(f"{where} is nested too deeply.")
    annotation = resolved(annotation)
    origin, arguments = get_origin(annotation), get_args(annotation)
    if origin in (Union, types.UnionType):
        for option in map(resolved, arguments):
            if _fits(option, data):
                return decode(option, data, where, maps, depth)
        raise _mismatch(annotation, data, where)
    if not _fits(annotation, data):
        raise _mismatch(annotation, data, where)
    if annotation is float:
        return _INFINITE[data] if isinstance(data, str) else _number(data, where)
    if origin is tuple:
        return _decode_tuple(arguments, data, where, maps, depth)
    if annotation is np.ndarray or origin is np.ndarray:
        return _decode_array(annotation, data, where)
    if isinstance(data, dict):
        return decode_map(data, where, maps, depth=depth, only=annotation if isinstance(annotation, type) else None)
    return data


def decode_map(data: Any, where: str, maps: Maps, *, depth: int = 0, only: type | None = None) -> Any:
    """Return the registered map that `data` describes; `only` that class, if given."""
    kind = data.get("type") if isinstance(data, dict) else None
    cls = maps.get(kind) if isinstance(kind, str) else None
    if cls is None or (only is not None and not issubclass(cls, only)):
        known = [name for name in maps if only is None or issubclass(maps[name], only)]
        named = shown(data.get("type")) if isinstance(data, dict) else shown(data)
        raise ArtifactError(f"{where} must be one of {', '.join(known)}, not {named}.")
    annotations = annotations_of(cls)
    names = [field.name for field in fields(cls)]
    exact_keys(data, ["type", *names], where)
    values = {n: decode(annotations[n], data[n], f"{where}.{n}", maps, depth + 1) for n in names}
    return built(cls, values, where)


def maps_in(cls: type) -> ChainMap[str, type]:
    """A map's class, and those of the maps that its fields may hold, by name.

    Examples
    --------
    >>> from metacal.maps.temperature import TemperatureMap
    >>> list(maps_in(TemperatureMap))
    ['TemperatureMap']
    """
    found: ChainMap[str, type] = ChainMap({cls.__name__: cls})
    for annotation in annotations_of(cls).values():
        for part in get_args(annotation) or (annotation,):
            if part is Map:
                found.maps.append(map_classes())  # type: ignore[arg-type] # it is only read
            elif isinstance(part, type) and is_dataclass(part):
                found.maps.extend(maps_in(part).maps)
    return found


@cache
def annotations_of(cls: type) -> dict[str, Any]:
    """The annotations of a class as types, evaluated once: what is ours is never evaluated because of a file."""
    return get_type_hints(cls)


def resolved(annotation: Any) -> Any:
    """The type that an alias stands for, its parameters put in; whatever is no alias comes back as it is.

    From NumPy 2.5 on `NDArray` is a `typing.TypeAliasType`: the origin of `NDArray[np.float64]` is the alias, no longer
    `np.ndarray`.

    Examples
    --------
    >>> get_origin(resolved(NDArray[np.float64])) is np.ndarray
    True
    >>> resolved(float)
    <class 'float'>
    """
    # The origin first: a parametrised alias passes `__value__` on from the bare one.
    alias = next((a for a in (get_origin(annotation), annotation) if hasattr(a, "__value__")), None)
    if alias is None:
        return annotation
    value = alias.__value__
    given = dict(zip(alias.__type_params__, get_args(annotation), strict=False))  # a bare alias has none given
    if given:
        value = value[tuple(given[parameter] for parameter in value.__parameters__)]
    return resolved(value)


def built(cls: Callable[..., Any], values: Mapping[str, Any], where: str) -> Any:
    """Call a constructor; whatever it objects to becomes an ArtifactError."""
    try:
        return cls(**values)
    except (ValueError, TypeError, ArithmeticError, IndexError) as error:
        raise ArtifactError(f"{where}: {brief(error)}") from error


def exact_keys(data: Any, names: Sequence[str], where: str) -> None:
    """Raise unless `data` is an object with just these keys.

    Examples
    --------
    >>> exact_keys({"a": 1, "c": 2}, ["a", "b"], "map")
    Traceback (most recent call last):
    metacal.errors.ArtifactError: map: 'b' is missing.
    """
    if not isinstance(data, dict):
        raise ArtifactError(f"{where} must be an object, not {shown(data)}.")
    missing = [name for name in names if name not in data]
    extra = [name for name in data if name not in names]
    if missing:
        raise ArtifactError(f"{where}: {missing[0]!r} is missing.")
    if extra:
        raise ArtifactError(f"{where}: {shown(extra[0])} does not belong here.")


def brief(error: BaseException) -> str:
    """What an error says, on one line of at most 300 characters: it may quote the file.

    Examples
    --------
    >>> brief(ValueError(f"two{chr(10)}lines")), brief(MemoryError())
    ('two lines', 'MemoryError')
    """
    said = " ".join(str(error).split()) or type(error).__name__
    plain = "".join(sign if sign.isprintable() else sign.encode("unicode_escape").decode() for sign in said[:300])
    return f"{plain} ..." if len(said) > 300 else plain


def article(noun: str) -> str:
    """The noun with its article.

    Examples
    --------
    >>> article("estimator")
    'an estimator'
    """
    return f"{'an' if noun[:1] in 'AEIOUaeiou' else 'a'} {noun}"


def shown(data: Any) -> str:
    """A JSON value in a few words, for messages."""
    if isinstance(data, dict | list):
        return "an object" if isinstance(data, dict) else "a list"
    if data is None or isinstance(data, bool):
        return {None: "null", True: "true", False: "false"}[data]
    if isinstance(data, str):
        return '"' + data[:40].encode("unicode_escape").decode() + '"'
    return repr(data)[:40]


def _fits(annotation: Any, data: Any) -> bool:
    """Whether the JSON type of `data` is what the annotation is written as."""
    origin = get_origin(annotation)
    if origin is Literal:
        return any(type(data) is type(choice) and data == choice for choice in get_args(annotation))
    if annotation is float:
        return type(data) in (int, float) or (type(data) is str and data in _INFINITE)
    if annotation is int:
        return type(data) is int and -(2**63) <= data < 2**63
    if annotation in (None, type(None)):
        return data is None
    if annotation in (bool, str):
        return type(data) is annotation and (annotation is bool or _is_text(data))
    if origin is tuple:
        return isinstance(data, list)
    if annotation is Any:
        return data is None or type(data) is bool or type(data) is float or _fits(int, data) or _fits(str, data)
    return isinstance(data, dict)


def _is_text(data: str) -> bool:
    try:
        data.encode()
    except UnicodeEncodeError:  # half a surrogate pair: it could never be printed
        return False
    return True


def _number(data: float, where: str) -> float:
    try:
        return float(data)
    except OverflowError:
        raise ArtifactError(f"{where} is too large a number.") from None


def _decode_tuple(arguments: tuple[Any, ...], data: list[Any], where: str, maps: Maps, depth: int) -> tuple[Any, ...]:
    if len(arguments) == 2 and arguments[1] is Ellipsis:
        arguments = (arguments[0],) * len(data)
    if len(arguments) != len(data):
        raise ArtifactError(f"{where} must have {len(arguments)} entries, not {len(data)}.")
    pairs = zip(arguments, data, strict=True)
    return tuple(decode(a, item, f"{where}[{k}]", maps, depth + 1) for k, (a, item) in enumerate(pairs))


def _encode_array(array: NDArray[Any], where: str) -> dict[str, Any]:
    little = np.ascontiguousarray(array).astype(array.dtype.newbyteorder("<"), copy=False)
    if little.dtype.str not in _DTYPES:
        raise ArtifactError(f"{where} is an array of {array.dtype}, which cannot be saved.")
    head = {"dtype": little.dtype.str, "shape": list(array.shape)}
    if array.size <= _READABLE and np.isfinite(little).all():
        return {**head, "values": little.ravel().tolist()}
    return {**head, "base64": base64.b64encode(little.tobytes()).decode("ascii")}


def _decode_array(annotation: Any, data: dict[str, Any], where: str) -> NDArray[Any]:
    packed = "base64" in data
    exact_keys(data, ["dtype", "shape", "base64" if packed else "values"], where)
    kind, shape = data["dtype"], data["shape"]
    if type(kind) is not str or kind not in _DTYPES:
        raise ArtifactError(f"{where}: unknown dtype {shown(kind)}.")
    if not isinstance(shape, list) or len(shape) > 8 or not all(_fits(int, n) and n >= 0 for n in shape):
        raise ArtifactError(f"{where}: a shape is a list of whole numbers.")
    size, dtype = math.prod(shape), _DTYPES[kind]  # Python's integers: nothing overflows, nothing is allocated
    flat = _unpacked(data["base64"], dtype, where) if packed else _listed_numbers(data["values"], dtype, where)
    if len(flat) != size:
        raise ArtifactError(f"{where}: {len(flat)} numbers for shape {shape}.")
    array = flat.reshape(shape).astype(dtype.newbyteorder("="))
    # Written so that NaN fails too.
    if dtype.kind == "f" and not (np.abs(array.astype(np.float64, copy=False)) <= LARGEST).all():
        raise ArtifactError(f"{where} holds a number that is not finite or beyond {LARGEST:g}.")
    wanted = next((a for a in get_args(get_args(annotation)[1])), Any) if get_args(annotation) else Any
    if wanted is not Any and isinstance(wanted, type) and not issubclass(array.dtype.type, wanted):
        raise ArtifactError(f"{where} must be an array of {wanted.__name__}, not of {array.dtype}.")
    array.flags.writeable = False
    return array


def _unpacked(text: Any, dtype: np.dtype[Any], where: str) -> NDArray[Any]:
    try:
        content = base64.b64decode(text if type(text) is str else "?", validate=True)
        return np.frombuffer(content, dtype=dtype)
    except (binascii.Error, ValueError):
        raise ArtifactError(f"{where}: the base64 data are damaged.") from None


def _listed_numbers(values: Any, dtype: np.dtype[Any], where: str) -> NDArray[Any]:
    wanted: Any = {"f": float, "i": int, "u": int, "b": bool}[dtype.kind]
    if not isinstance(values, list) or not all(type(v) is not str and _fits(wanted, v) for v in values):
        raise ArtifactError(f"{where}: values must be a list of plain numbers.")
    if dtype.kind in "iu":
        info = np.iinfo(dtype)
        # Asked of Python's integers: NumPy 1 wraps what does not fit, and says nothing.
        if not all(int(info.min) <= value <= int(info.max) for value in values):
            raise ArtifactError(f"{where}: a number does not fit {dtype}.")
    try:
        return np.array(values, dtype=dtype)
    except (OverflowError, ValueError):
        raise ArtifactError(f"{where}: a number does not fit {dtype}.") from None


def _mismatch(annotation: Any, data: Any, where: str) -> ArtifactError:
    return ArtifactError(f"{where} must be {_said(annotation)}, not {shown(data)}.")


def _said(annotation: Any) -> str:
    origin, arguments = get_origin(annotation), get_args(annotation)
    if origin in (Union, types.UnionType):
        return " or ".join(_said(resolved(option)) for option in arguments)
    if origin is Literal:
        return " or ".join(f'"{choice}"' for choice in arguments)
    if origin is tuple:
        return "a list"
    names = {float: "a number", int: "a whole number", bool: "true or false", str: "text", type(None): "null"}
    return names.get(annotation, "a plain value" if annotation is Any else "an object")
