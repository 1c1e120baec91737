"""Registry of the types that a file can contain.

A file can contain float, int, bool, str, None, tuples of these, NumPy arrays and dataclasses. The
other modules of this package register here how their types are stored:

- *family*: a base class with several subclasses, for example the maps. The JSON object of a
  subclass contains its name under "type".
- *choice*: a text that must be one of several names.
- *field types*: the entries of a class in a file and their types. By default, these are the fields
  of the dataclass. An entry that is *omitted* from the file has a default value.
- *stored form*: another type that represents a type in the file.
"""

from __future__ import annotations

import types
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, fields, is_dataclass
from functools import cache
from typing import Any, NewType, NotRequired, Union, get_args, get_origin, get_type_hints

import numpy as np

from metacal.certificates.stored_fields import get_stored_key, is_optional_field
from metacal.maps.map import Map
from metacal.maps.methods import get_map_classes
from metacal.promises.kinds import load_promise_classes
from metacal.promises.promise import Promise

#: Type of unsigned 64-bit integers, which class labels can have.
Unsigned = NewType("Unsigned", int)


@dataclass(frozen=True)
class StoredForm:
    """Representation of a type by another type in a file.

    Attributes
    ----------
    stored_type : type
        Type in the file.

    to_stored : callable
        Function that converts a value to `stored_type`. Its second argument is the position of
        the value in the file, for error messages.

    from_stored : callable
        Function that converts a value of `stored_type` back. Its second argument is the same.
    """

    stored_type: Any
    to_stored: Callable[[Any, str], Any]
    from_stored: Callable[[Any, str], Any]


#: For each base class, a function that returns its storable subclasses by their name in a file.
#: Each value is a function because users can register more subclasses at run time.
STORABLE_SUBCLASS_LISTERS: dict[Any, Callable[[], Mapping[str, type]]] = {
    Map: get_map_classes,
    Promise: load_promise_classes,
}

#: For each type of text that must be one of several names, a function that lists these names.
#: Each value is a function because users can register more names at run time.
ALLOWED_NAME_LISTERS: dict[Any, Callable[[], Iterable[str]]] = {}

#: Types of the stored entries of each class whose entries differ from its fields.
FIELD_TYPES: dict[type, dict[str, Any]] = {}

#: Function that constructs an instance if the class constructor does not accept the entries.
CUSTOM_CONSTRUCTOR_OF_CLASS: dict[type, Callable[..., Any]] = {}

#: Stored form of each type that is represented by another type in a file.
STORED_FORM_OF_TYPE: dict[Any, StoredForm] = {}

#: Types that JSON represents directly.
JSON_SCALAR_TYPES: tuple[Any, ...] = (float, int, Unsigned, bool, str, type(None), Any)


def build_list_form(cls: Any) -> StoredForm:
    """Build the stored form of a dataclass as the list of its field values.

    It is shorter than an object with keys, for classes with many instances in a file.
    """
    type_of_field = get_field_types(cls)
    stored_type: Any = tuple.__class_getitem__(tuple(type_of_field.values()))

    def to_stored(value: Any, location: str) -> list[Any]:
        return [getattr(value, name) for name in type_of_field]

    def from_stored(values: Any, location: str) -> Any:
        return cls(*values)

    return StoredForm(stored_type=stored_type, to_stored=to_stored, from_stored=from_stored)


#: Cached `typing.get_type_hints`, so that no annotation is evaluated while a file is read.
type_hints: Callable[[Any], dict[str, Any]] = cache(get_type_hints)


def get_field_types(cls: type) -> dict[str, Any]:
    """Return the entries of a class in a file and their types."""
    registered_types = FIELD_TYPES.get(cls)
    if registered_types is not None:
        return registered_types
    return {get_stored_key(field): type_hints(cls)[field.name] for field in fields(cls)}


def find_optional_defaults(cls: type) -> dict[str, Any]:
    """Return the entries of a class that a file can omit, with their default values.

    These are the optional fields of the dataclass, and the derived entries that `FIELD_TYPES`
    declares as `NotRequired`, whose default is None.
    """
    default_of_key: dict[str, Any] = {}
    for field in fields(cls):
        if is_optional_field(field):
            default_of_key[get_stored_key(field)] = field.default
    for key, entry_type in get_field_types(cls).items():
        if get_origin(entry_type) is NotRequired:
            default_of_key[key] = None
    return default_of_key


@dataclass(frozen=True)
class ClassLayout:
    """Entries of a class in a file.

    Attributes
    ----------
    type_of_key : dict of str to type
        Keys of the entries and their types, see `get_field_types`.

    default_of_optional_key : dict of str to object
        Keys of the optional entries. The file omits an entry that has this default value.

    attribute_of_key : dict of str to str
        Name of the attribute that is stored under each key.
    """

    type_of_key: dict[str, Any]
    default_of_optional_key: dict[str, Any]
    attribute_of_key: dict[str, str]

    def get_entry(self, instance: object, key: str) -> Any:
        """Return the entry of an instance that is stored under a key.

        A derived entry is not a field, but a property that is stored under its own name.
        """
        attribute = self.attribute_of_key.get(key, key)
        return getattr(instance, attribute)

    def is_optional(self, key: str) -> bool:
        """Check whether a file omits the entry if it has its default value."""
        return key in self.default_of_optional_key


@cache
def get_class_layout(cls: type) -> ClassLayout:
    """Return the layout of a registered class in a file."""
    return ClassLayout(
        type_of_key=get_field_types(cls),
        default_of_optional_key=find_optional_defaults(cls),
        attribute_of_key={get_stored_key(field): field.name for field in fields(cls)},
    )


def find_storable_subclasses(annotation: Any) -> Mapping[str, type] | None:
    """Return the storable subclasses of an annotation, keyed by name in a file.

    Parameters
    ----------
    annotation : type
        Base class in `STORABLE_SUBCLASS_LISTERS`, or a class derived from one.

    Returns
    -------
    mapping of str to type, or None
        None if the annotation has no base class in `STORABLE_SUBCLASS_LISTERS`.

    Examples
    --------
    >>> from metacal.promises.promise import SubgroupPromise
    >>> subclasses = find_storable_subclasses(SubgroupPromise)
    >>> subclasses["MinRecall"].__name__, "Both" in subclasses
    ('MinRecall', False)
    >>> find_storable_subclasses(float) is None
    True
    """
    base = _find_registered_base(annotation)
    if base is None:
        return None
    subclasses = STORABLE_SUBCLASS_LISTERS[base]()
    if base == annotation:
        return subclasses
    return {name: cls for name, cls in subclasses.items() if issubclass(cls, annotation)}


def find_allowed_names(annotation: Any) -> Iterable[str] | None:
    """Return the allowed names of a type, or None if its values are not names."""
    name_lister = ALLOWED_NAME_LISTERS.get(annotation)
    if name_lister is None:
        return None
    return name_lister()


def find_sibling_classes(cls: type) -> Mapping[str, type] | None:
    """Return the storable classes with the same base as a class, keyed by name.

    None if the class has no registered base. A file then does not contain the name of the class.
    """
    base = _find_registered_base(cls)
    if base is None:
        return None
    return STORABLE_SUBCLASS_LISTERS[base]()


@cache
def _find_registered_base(annotation: Any) -> Any:
    """Return the registered base class of an annotation, or None."""
    if annotation in STORABLE_SUBCLASS_LISTERS:
        return annotation
    if not isinstance(annotation, type):
        return None
    return next((base for base in STORABLE_SUBCLASS_LISTERS if issubclass(annotation, base)), None)


@cache
def resolve_alias(annotation: Any) -> Any:
    """Replace a type alias or NotRequired by the type that it denotes.

    From NumPy 2.5 on, `NDArray` is a `typing.TypeAliasType`: the origin of `Float` is then the
    alias and not `np.ndarray`.
    """
    if get_origin(annotation) is NotRequired:
        return resolve_alias(get_args(annotation)[0])
    # The origin comes first, because a parametrised alias also has the `__value__` of its origin.
    alias = None
    for candidate in (get_origin(annotation), annotation):
        if hasattr(candidate, "__value__"):
            alias = candidate
            break
    if alias is None:
        return annotation
    value = alias.__value__
    # A bare alias has type parameters but no arguments.
    arguments = dict(zip(alias.__type_params__, get_args(annotation), strict=False))
    if arguments:
        value = value[tuple(arguments[parameter] for parameter in value.__parameters__)]
    return resolve_alias(value)


@cache
def get_union_members(annotation: Any) -> tuple[Any, ...]:
    """Return the types of a union that a file can contain.

    A union can have other members, such as `np.random.Generator`. For an annotation that is not
    a union, return the annotation itself.
    """
    is_union = get_origin(annotation) in (Union, types.UnionType)
    if not is_union or annotation in STORABLE_SUBCLASS_LISTERS:
        return (annotation,)
    resolved_members = map(resolve_alias, get_args(annotation))
    return tuple(member for member in resolved_members if _is_storable(member))


def _is_storable(annotation: Any) -> bool:
    """Check whether a file can contain values of a type that is not a union."""
    if get_origin(annotation) or is_dataclass(annotation):
        return True
    if annotation in (*JSON_SCALAR_TYPES, *ALLOWED_NAME_LISTERS, *STORED_FORM_OF_TYPE, np.ndarray):
        return True
    return find_storable_subclasses(annotation) is not None
