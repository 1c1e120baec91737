"""Conversion of values to JSON and back.

`encode` converts by the type of the value. `decode` converts by the annotation of the field that
the value is for, so that a file can only produce objects of the annotated types. The types that a
file can contain are described in `metacal.io.artifact.registry`.
"""

from __future__ import annotations

import math
import sys
import types
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, is_dataclass
from typing import Any, Literal, Union, get_args, get_origin

import numpy as np

from metacal.errors import ArtifactError, SavingError
from metacal.io.artifact.arrays import decode_array, encode_array
from metacal.io.artifact.messages import check_keys, describe_json, summarize_error, with_article
from metacal.io.artifact.registry import (
    CUSTOM_CONSTRUCTOR_OF_CLASS,
    STORED_FORM_OF_TYPE,
    StoredForm,
    Unsigned,
    find_allowed_names,
    find_sibling_classes,
    find_storable_subclasses,
    get_class_layout,
    get_union_members,
    resolve_alias,
)

# Strings that represent infinite floats in JSON.
_INFINITIES = ("inf", "-inf")

# Maximum nesting depth of objects, such as maps that contain other maps.
_MAX_DEPTH = 12

# Maximum number of choices that an error message quotes one by one.
_MAX_QUOTED_CHOICES = 4


def encode(value: Any, location: str) -> Any:
    """Convert a value to JSON types.

    Parameters
    ----------
    value : object
        Value of a type that a file can contain.

    location : str
        Name of the value in error messages.

    Returns
    -------
    JSON value

    Raises
    ------
    ArtifactError
        If the value cannot be stored.

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
    # Plain values come first, because they are the most frequent.
    if _is_plain_json(value):
        return value
    if isinstance(value, np.generic):
        value = value.item()
    if value is None or isinstance(value, bool | int | float | str):
        return _encode_scalar(value, location)
    if isinstance(value, dict):
        return {name: encode(entry, f"{location}.{name}") for name, entry in value.items()}
    if isinstance(value, tuple | list):
        return _encode_items(value, location)
    if isinstance(value, np.ndarray):
        return encode_array(value, location)
    stored_form = STORED_FORM_OF_TYPE.get(type(value))
    if stored_form is not None:
        stored_value = stored_form.to_stored(value, location)
        return encode(stored_value, location)
    return _encode_dataclass(value, location)


def _is_plain_json(value: Any) -> bool:
    """Check whether a value is None, a boolean, a finite float or a 64-bit integer."""
    if value is None or type(value) is bool:
        return True
    if type(value) is float:
        return math.isfinite(value)
    return _is_int64(value)


def _encode_scalar(value: Any, location: str) -> Any:
    """Convert None, a boolean, a number or a text to a JSON value."""
    if isinstance(value, int) and not -(2**63) <= value < 2**64:
        raise SavingError(
            f"{location} does not fit into 64 bits, so it cannot be saved. Use a smaller number."
        )
    if isinstance(value, str) and not _is_valid_unicode(value):
        raise SavingError(
            f"{location} is not valid Unicode text, because it contains an unpaired surrogate."
            " Rename it."
        )
    if not isinstance(value, float) or math.isfinite(value):
        return value
    if math.isnan(value):
        raise SavingError(f"{location} is NaN, so it cannot be saved. Fit the gate again.")
    return "inf" if value > 0 else "-inf"


def _encode_items(items: Sequence[Any], location: str) -> list[Any]:
    """Convert the items of a tuple or list to JSON values."""
    encoded_items = []
    for index, item in enumerate(items):
        if not _is_plain_json(item):
            item = encode(item, f"{location}[{index}]")
        encoded_items.append(item)
    return encoded_items


def _encode_dataclass(value: Any, location: str) -> dict[str, Any]:
    """Convert a dataclass to a JSON object. Raise SavingError for any other value."""
    cls: Any = type(value)
    if not is_dataclass(value):
        name = getattr(value, "__name__", None) or cls.__qualname__
        raise SavingError(
            f"{location} is {with_article(str(name))}, which a gate file cannot store. Use a"
            " plain value, or one of metacal's own objects."
        )
    json_object: dict[str, Any] = {}
    classes_by_stored_name = find_sibling_classes(cls)
    if classes_by_stored_name is not None:
        json_object["type"] = _find_stored_class_name(cls, classes_by_stored_name, location)

    layout = get_class_layout(cls)
    for key, entry_type in layout.type_of_key.items():
        entry = layout.get_entry(value, key)
        if layout.is_optional(key) and entry == layout.default_of_optional_key[key]:
            continue
        entry_location = f"{location}.{key}"
        stored_form = _find_stored_form(entry_type)
        if stored_form is not None and entry is not None:
            entry = stored_form.to_stored(entry, entry_location)
        json_object[key] = encode(entry, entry_location)
    return json_object


def _find_stored_class_name(
    cls: type, classes_by_stored_name: Mapping[str, type], location: str
) -> str:
    """Return the name under which a file stores a class.

    Raise SavingError if the class is not among those that a file can store.
    """
    # A lookup by the usual name avoids importing all subclasses.
    if classes_by_stored_name.get(cls.__name__) is cls:
        return cls.__name__
    for stored_name, storable_class in classes_by_stored_name.items():
        if storable_class is cls:
            return stored_name
    raise SavingError(
        f"{location} is {with_article(cls.__name__)}, which a gate file cannot store. Use"
        f" {', '.join(classes_by_stored_name)}."
    )


def _find_stored_form(annotation: Any) -> StoredForm | None:
    """Return the stored form of an annotation or of a member of its union."""
    for member in get_union_members(annotation):
        if member in STORED_FORM_OF_TYPE:
            return STORED_FORM_OF_TYPE[member]
    return None


def decode(annotation: Any, data: Any, location: str, depth: int = 0) -> Any:
    """Convert a JSON value to a value of the annotated type.

    Parameters
    ----------
    annotation : type
        Required type.

    data : JSON value
        Value to convert.

    location : str
        Position of the value in the file, used in error messages.

    depth : int, default=0
        Nesting depth of the value.

    Returns
    -------
    object

    Raises
    ------
    ArtifactError
        If the JSON value does not describe a value of the annotated type.

    Examples
    --------
    >>> decode(tuple[float, ...], [1.0, "inf"], "x")
    (1.0, inf)
    >>> decode(float | None, "one", "x")
    Traceback (most recent call last):
    metacal.errors.ArtifactError: x must be a number or null, but it is "one".
    """
    if depth > _MAX_DEPTH:
        raise ArtifactError(f"{location} is nested too deeply.")
    annotation = resolve_alias(annotation)
    # Plain values come first, because they are the most frequent. Floats need a conversion.
    if (
        annotation in _JSON_SCALAR_TYPES
        and annotation is not float
        and _has_json_type(annotation, data)
    ):
        return data
    # A registered stored form converts the JSON value back to its original type.
    stored_form = STORED_FORM_OF_TYPE.get(annotation)
    if stored_form is not None:
        stored_value = decode(stored_form.stored_type, data, location, depth)
        return stored_form.from_stored(stored_value, location)
    subclasses = find_storable_subclasses(annotation)
    if subclasses is not None:
        return _decode_subclass(subclasses, data, location, depth)

    for member_type in get_union_members(annotation):
        if not _has_json_type(member_type, data):
            continue
        is_union = member_type != annotation
        if is_union:
            return decode(member_type, data, location, depth)
        return _decode_matching_value(annotation, data, location, depth)
    raise ArtifactError(
        f"{location} must be {_describe_type(annotation)}, but it is {describe_json(data)}."
    )


def _decode_matching_value(annotation: Any, data: Any, location: str, depth: int) -> Any:
    """Convert a JSON value whose type matches the annotation; see `decode`."""
    if annotation is float:
        if type(data) is int and abs(data) > sys.float_info.max:
            raise ArtifactError(f"{location} holds a number that is too large.")
        return float(data)
    origin = get_origin(annotation)
    if origin in (tuple, list):
        return origin(_decode_items(annotation, data, location, depth))
    if np.ndarray in (annotation, origin):
        return decode_array(annotation, data, location)
    if is_dataclass(annotation):
        cls: Any = annotation
        return _construct_object(cls, decode_entries(cls, data, location, depth), location)
    return data


def _decode_subclass(subclasses: Mapping[str, type], data: Any, location: str, depth: int) -> Any:
    """Convert a JSON object to an instance of the subclass that its "type" names."""
    type_name = data
    if isinstance(data, dict):
        type_name = data.get("type")
    cls = None
    if isinstance(type_name, str):
        cls = subclasses.get(type_name)
    if cls is None:
        raise ArtifactError(
            f"{location} must be one of {', '.join(subclasses)}, but it is"
            f" {describe_json(type_name)}."
        )
    entries = decode_entries(cls, data, location, depth, has_type_name=True)
    return _construct_object(cls, entries, location)


def _decode_items(annotation: Any, data: list[Any], location: str, depth: int) -> Iterator[Any]:
    """Convert the items of a JSON list to their annotated types; see `decode`."""
    item_types = get_args(annotation)
    allows_any_length = get_origin(annotation) is list or item_types[1:] == (Ellipsis,)
    if allows_any_length:
        item_types = (item_types[0],) * len(data)
    if len(item_types) != len(data):
        raise ArtifactError(
            f"{location} must have {len(item_types)} entries, but it has {len(data)}."
        )
    for index, (item_type, item) in enumerate(zip(item_types, data)):
        yield decode(item_type, item, f"{location}[{index}]", depth + 1)


def decode_entries(
    cls: type, data: Any, location: str, depth: int = 0, *, has_type_name: bool = False
) -> dict[str, Any]:
    """Convert the entries of a JSON object to the types that a class requires.

    Parameters
    ----------
    cls : type
        Class whose entries the object contains.

    data : JSON value
        Object to convert.

    location : str
        Position of the object in the file, used in error messages.

    depth : int, default=0
        Nesting depth of the object.

    has_type_name : bool, default=False
        Whether the object contains the name of the class under "type".

    Returns
    -------
    dict of str to object
        Values of the entries, without omitted ones.

    Raises
    ------
    ArtifactError
        If the value is not an object, an entry is missing or superfluous, or has another type.
    """
    layout = get_class_layout(cls)
    present_keys = data.keys() if isinstance(data, dict) else ()
    expected_keys = []
    for key in layout.type_of_key:
        if key in present_keys or not layout.is_optional(key):
            expected_keys.append(key)
    type_key = ["type"] if has_type_name else []
    check_keys(data, type_key + expected_keys, location)
    decoded_entries = {}
    for key in expected_keys:
        entry_type = layout.type_of_key[key]
        decoded_entries[key] = decode(entry_type, data[key], f"{location}.{key}", depth + 1)
    for key, default in layout.default_of_optional_key.items():
        if key in decoded_entries and decoded_entries[key] == default:
            raise ArtifactError(
                f"{location}.{key} has its default value, so the file must not contain it."
            )
    return decoded_entries


def _construct_object(cls: Any, entries: dict[str, Any], location: str) -> Any:
    """Construct an object from the entries of a file.

    Entries that are not fields of the class are derived values. Raise ArtifactError if they
    differ from those of the constructed object.
    """
    custom_constructor = CUSTOM_CONSTRUCTOR_OF_CLASS.get(cls)
    if custom_constructor is not None:
        return call_constructor(custom_constructor, entries, location)
    attribute_of_key = get_class_layout(cls).attribute_of_key
    field_values = {
        attribute_of_key[key]: entry for key, entry in entries.items() if key in attribute_of_key
    }
    instance = call_constructor(cls, field_values, location)
    # The other entries are properties of the object, which follow from its fields.
    property_names = entries.keys() - attribute_of_key.keys()
    for property_name in property_names:
        stored_value = entries[property_name]
        if getattr(instance, property_name) != stored_value:
            raise ArtifactError(
                f"{location}.{property_name} is {describe_json(stored_value)}, which contradicts"
                " the other values."
            )
    return instance


def call_constructor(
    constructor: Callable[..., Any], values: Mapping[str, Any], location: str
) -> Any:
    """Call a constructor, and convert its errors to ArtifactError."""
    try:
        return constructor(**values)
    except (ValueError, TypeError, ArithmeticError, IndexError) as error:
        raise ArtifactError(f"{location}: {summarize_error(error)}") from error


def _has_json_type(annotation: Any, data: Any) -> bool:
    """Check whether a JSON value has the JSON type that represents an annotation."""
    if annotation in _JSON_SCALAR_TYPES:
        return _JSON_SCALAR_TYPES[annotation].contains(data)
    allowed_names = find_allowed_names(annotation)
    if allowed_names is not None:
        return type(data) is str and data in allowed_names
    origin = get_origin(annotation)
    if origin is Literal:
        return any(type(data) is type(choice) and data == choice for choice in get_args(annotation))
    if origin in (tuple, list):
        return isinstance(data, list)
    if annotation in STORED_FORM_OF_TYPE:
        return isinstance(data, dict | list)
    return isinstance(data, dict)


def _describe_type(annotation: Any) -> str:
    """Describe the values that an annotation allows, for an error message."""
    origin = get_origin(annotation)
    arguments = get_args(annotation)
    if origin in (Union, types.UnionType):
        return " or ".join(_describe_type(resolve_alias(member)) for member in arguments)
    allowed_names = find_allowed_names(annotation)
    if allowed_names is not None:
        return f"one of {', '.join(allowed_names)}"
    if origin is Literal and len(arguments) > _MAX_QUOTED_CHOICES:
        return f"one of {', '.join(arguments)}"
    if origin is Literal:
        return " or ".join(f'"{choice}"' for choice in arguments)
    if origin in (tuple, list):
        return "a list"
    if annotation in _JSON_SCALAR_TYPES:
        return _JSON_SCALAR_TYPES[annotation].description
    return "an object"


@dataclass(frozen=True)
class _JsonScalarType:
    """Type of numbers, texts, booleans or null, which JSON represents directly.

    Attributes
    ----------
    contains : callable
        Function that checks whether a JSON value has the type.

    description : str
        Description of the type in error messages.
    """

    contains: Callable[[Any], bool]
    description: str


def _is_float(data: Any) -> bool:
    """Check whether a JSON value is a number or the text of an infinite number."""
    return type(data) in (int, float) or (type(data) is str and data in _INFINITIES)


def _is_int64(data: Any) -> bool:
    """Check whether a JSON value is a signed integer of 64 bits."""
    return type(data) is int and -(2**63) <= data < 2**63


def _is_uint64(data: Any) -> bool:
    """Check whether a JSON value is an unsigned integer of 64 bits."""
    return type(data) is int and 0 <= data < 2**64


def _is_bool(data: Any) -> bool:
    """Check whether a JSON value is a boolean."""
    return type(data) is bool


def _is_text(data: Any) -> bool:
    """Check whether a JSON value is a text without unpaired surrogates."""
    return type(data) is str and _is_valid_unicode(data)


def _is_null(data: Any) -> bool:
    """Check whether a JSON value is null."""
    return data is None


def _is_scalar(data: Any) -> bool:
    """Check whether a JSON value is null, a boolean, a number or a text."""
    if data is None or type(data) in (bool, float):
        return True
    return _is_int64(data) or _is_text(data)


def _is_valid_unicode(text: str) -> bool:
    """Check whether a text contains no unpaired surrogate, which could not be printed."""
    return text.encode(errors="replace").decode() == text


# The keys are those of `registry.JSON_SCALAR_TYPES`.
_JSON_SCALAR_TYPES: dict[Any, _JsonScalarType] = {
    float: _JsonScalarType(_is_float, "a number"),
    int: _JsonScalarType(_is_int64, "a whole number"),
    Unsigned: _JsonScalarType(_is_uint64, "a whole number"),
    bool: _JsonScalarType(_is_bool, "true or false"),
    str: _JsonScalarType(_is_text, "text"),
    type(None): _JsonScalarType(_is_null, "null"),
    Any: _JsonScalarType(_is_scalar, "a plain value"),
}
