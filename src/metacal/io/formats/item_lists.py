"""JSON objects with a list of items, such as a document with its fields.

The score key `fields[*].score` selects every element of the list `fields`. If scores are read, each
element becomes a row. Other keys that begin with `fields[*]` select an entry of the same element, and
all other keys, such as `document`, an entry of the whole object.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from metacal.errors import InputError
from metacal.io.nested import get_nested

#: Case key that stands for the line of an object, if the object has no entry of this name.
LINE_KEY = "line"

_ITEM_KEY_PATTERN = re.compile(r"([^()\[\]]+)\[\*\](?:\.(.+))?")


def find_item_list(score_key: str | None) -> str | None:
    """Return the key of the list whose elements a score key selects, or None if it selects no list.

    Examples
    --------
    >>> find_item_list("fields[*].score"), find_item_list("mean(tokens[*].logprob)")
    ('fields', None)
    """
    match = _ITEM_KEY_PATTERN.fullmatch(score_key or "")
    return None if match is None else match[1]


def iterate_items(
    row: Mapping[str, Any], list_key: str, keys: Iterable[str | None], line_name: str
) -> Iterator[dict[str, Any]]:
    """Yield a row for each element of a list in a JSON object.

    Parameters
    ----------
    row : mapping
        JSON object.

    list_key : str
        Key of the list.

    keys : iterable of str or None
        Keys to add to each row.

    line_name : str
        File and number of the line, the value of `LINE_KEY`.

    Yields
    ------
    dict
        The entries of the object without the list, and the entries of the element by their whole key.

    Raises
    ------
    InputError
        If the value at `list_key` is no list.

    Examples
    --------
    >>> document = {"id": 7, "fields": [{"score": 0.9, "ok": True}, {"score": 0.2, "ok": False}]}
    >>> for item in iterate_items(document, "fields", ["fields[*].score", "line"], "a.jsonl:1"):
    ...     print(item)
    {'id': 7, 'line': 'a.jsonl:1', 'fields[*].score': 0.9}
    {'id': 7, 'line': 'a.jsonl:1', 'fields[*].score': 0.2}
    """
    items = get_nested(row, list_key)
    if items is None:
        return
    if not isinstance(items, list):
        raise InputError(
            f"{list_key!r} is {repr(items)[:40]}, and the key of the score needs a list of items"
            " there"
        )
    prefix = f"{list_key}[*]"
    item_keys = [key for key in dict.fromkeys(keys) if key is not None and key.startswith(prefix)]
    shared_entries = {name: value for name, value in row.items() if name != list_key}
    if LINE_KEY in keys:
        shared_entries.setdefault(LINE_KEY, line_name)
    for item in items:
        item_entries = {key: _get_item_entry(item, key.removeprefix(prefix)) for key in item_keys}
        yield {**shared_entries, **item_entries}


def _get_item_entry(item: Any, key_end: str) -> Any:
    """Return the entry of an item at the end of a key, or the item itself if the key ends there."""
    if not key_end:
        return item
    if not isinstance(item, Mapping):
        return None
    return get_nested(item, key_end.removeprefix("."))
