"""JSON objects with a list of items, such as a document with its fields.

The score key `fields[*].score` selects every element of the list `fields`. If scores are read, each
element becomes a row. Other keys that begin with `fields[*]` select an entry of the same element, and
all other keys, such as `document`, an entry of the whole object.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from metacal.errors import FileContentError
from metacal.io.nested import get_nested_value

#: Key that stands for the file and line number of an object without an entry of this name.
LINE_NAME_KEY = "line"

#: Keys of lists in responses of language models. The objects in them are not scored items.
_RESPONSE_LISTS = ("choices", "messages", "content", "tool_calls", "top_logprobs", "tokens")
_ITEM_KEY_PATTERN = re.compile(r"(?P<list_key>[^()\[\]]+)\[\*\](?:\.(.+))?")


def find_item_list_key(score_key: str | None) -> str | None:
    """Return the key of the list whose elements a score key selects, or None.

    Examples
    --------
    >>> find_item_list_key("fields[*].score"), find_item_list_key("mean(tokens[*].logprob)")
    ('fields', None)
    """
    match = _ITEM_KEY_PATTERN.fullmatch(score_key or "")
    return None if match is None else match["list_key"]


def iterate_items(
    row: Mapping[str, Any], list_key: str, requested_keys: Iterable[str | None], line_name: str
) -> Iterator[dict[str, Any]]:
    """Yield a row for each element of a list in a JSON object.

    Parameters
    ----------
    row : mapping
        JSON object.

    list_key : str
        Key of the list.

    requested_keys : iterable of str or None
        Keys of the entries to read. Those of an item begin with the key of the list, as in
        "fields[*].score".

    line_name : str
        File and number of the line, the value of `LINE_NAME_KEY`.

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
    items = get_nested_value(row, list_key)
    if items is None:
        return
    if not isinstance(items, list):
        raise FileContentError(
            f"The key of the score requires a list of items in {list_key!r}, but got"
            f" {repr(items)[:40]}."
        )
    item_prefix = f"{list_key}[*]"
    distinct_keys = dict.fromkeys(requested_keys)
    item_keys = [key for key in distinct_keys if key is not None and key.startswith(item_prefix)]
    shared_entries = {name: value for name, value in row.items() if name != list_key}
    if LINE_NAME_KEY in distinct_keys:
        shared_entries.setdefault(LINE_NAME_KEY, line_name)
    for item in items:
        item_entries = {
            key: _get_item_entry(item, key.removeprefix(item_prefix)) for key in item_keys
        }
        yield {**shared_entries, **item_entries}


def _get_item_entry(item: Any, key_end: str) -> Any:
    """Return the entry of an item at a key, or the item itself for an empty key."""
    if not key_end:
        return item
    if not isinstance(item, Mapping):
        return None
    return get_nested_value(item, key_end.removeprefix("."))


def expand_item_lists(objects: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return one row per item if the objects have one list of scored items.

    Without such a list, or with several, each object is one row.

    Parameters
    ----------
    objects : sequence of mapping
        Objects whose nested entries have dotted names.

    Returns
    -------
    list of dict
        The entries of an item have names such as "fields[*].score".

    Examples
    --------
    >>> expand_item_lists([{"id": 7, "fields": [{"score": 0.9}, {"score": 0.2}]}])
    [{'id': 7, 'fields[*].score': 0.9}, {'id': 7, 'fields[*].score': 0.2}]
    >>> expand_item_lists([{"id": 7, "logits": [0.5, 1.5]}])
    [{'id': 7, 'logits': [0.5, 1.5]}]
    """
    scored_list_keys = set()
    for json_object in objects:
        for name, entry in json_object.items():
            if _is_list_of_scored_items(name, entry):
                scored_list_keys.add(name)
    if len(scored_list_keys) != 1:
        return [dict(json_object) for json_object in objects]
    list_key = scored_list_keys.pop()
    item_rows: list[dict[str, Any]] = []
    for json_object in objects:
        entry_names = _list_entry_names_of_items(json_object.get(list_key))
        item_keys = [f"{list_key}[*].{name}" for name in entry_names]
        item_rows += iterate_items(json_object, list_key, item_keys, line_name="")
    return item_rows


def _is_list_of_scored_items(name: str, value: Any) -> bool:
    """Check whether a value is a list of objects that each have a number."""
    if name.rpartition(".")[2] in _RESPONSE_LISTS or not isinstance(value, list) or not value:
        return False
    return all(isinstance(item, Mapping) and _has_number(item) for item in value)


def _has_number(item: Mapping[str, Any]) -> bool:
    """Check whether an object has an entry that is a number and not a boolean."""
    return any(
        isinstance(value, int | float) and not isinstance(value, bool) for value in item.values()
    )


def _list_entry_names_of_items(items: Any) -> list[str]:
    """Return the names of the entries of the objects in a list."""
    if not isinstance(items, list):
        return []
    distinct_names: dict[str, None] = {}
    for item in items:
        if isinstance(item, Mapping):
            distinct_names.update(dict.fromkeys(item))
    return list(distinct_names)
