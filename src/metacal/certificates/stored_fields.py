"""Keys of dataclass fields in saved files.

A field is stored under its own name, unless its metadata names another *key*. An *optional* field
is omitted from a file while it has its default value.
"""

from __future__ import annotations

from dataclasses import Field, fields
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

#: Metadata of a field that files omit if it has its default value.
OPTIONAL = {"optional": True}


def stored_as(key: str, *, is_optional: bool = False) -> dict[str, Any]:
    """Return the metadata of a dataclass field with another name in saved files."""
    return {"key": key, "optional": is_optional}


def get_stored_key(field: Field[Any]) -> str:
    """Return the key of a dataclass field in saved files."""
    stored_key: str = field.metadata.get("key", field.name)
    return stored_key


def is_optional_field(field: Field[Any]) -> bool:
    """Check whether saved files omit a dataclass field at its default value."""
    return bool(field.metadata.get("optional", False))


def get_stored_values(instance: DataclassInstance) -> dict[str, Any]:
    """Return the field values of a dataclass by their keys in saved files."""
    return {get_stored_key(field): getattr(instance, field.name) for field in fields(instance)}
