"""Parts of the error messages about JSON files, and the check of an object's keys."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from metacal.errors import ArtifactError

# Maximum numbers of characters that a message quotes from an error and from a JSON value.
_MAX_ERROR_LENGTH = 300
_MAX_VALUE_LENGTH = 40


def check_keys(data: Any, names: Sequence[str], location: str) -> None:
    """Check that a JSON value is an object with exactly the given keys.

    Parameters
    ----------
    data : JSON value
        Value to check.

    names : sequence of str
        Required keys.

    location : str
        Position of the value in the file, used in error messages.

    Raises
    ------
    ArtifactError
        If the value is not an object, a key is missing, or there is another key.

    Examples
    --------
    >>> check_keys({"a": 1, "c": 2}, ["a", "b"], "map")
    Traceback (most recent call last):
    metacal.errors.ArtifactError: map must have the entry 'b', which is missing.
    """
    if not isinstance(data, dict):
        raise ArtifactError(f"{location} must be an object, but it is {describe_json(data)}.")
    for name in names:
        if name not in data:
            raise ArtifactError(f"{location} must have the entry {name!r}, which is missing.")
    for name in data:
        if name not in names:
            raise ArtifactError(f"{location} has the unexpected entry {describe_json(name)}.")


@contextmanager
def prefix_errors_with(path: str) -> Iterator[None]:
    """Prefix the message of an ArtifactError with a file name.

    Examples
    --------
    >>> with prefix_errors_with("cal.json"):
    ...     check_keys([], ["a"], "map")
    Traceback (most recent call last):
    metacal.errors.ArtifactError: cal.json: map must be an object, but it is a list.
    """
    try:
        yield
    except ArtifactError as error:
        raise type(error)(f"{path}: {error}") from error.__cause__


def object_without_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Build a JSON object from its key-value pairs, and reject duplicate keys.

    This is an `object_pairs_hook` for the json module, which would keep the last duplicate.
    """
    json_object = dict(pairs)
    if len(json_object) < len(pairs):
        seen_keys = set()
        for key, _ in pairs:
            if key in seen_keys:
                raise KeyError(key)
            seen_keys.add(key)
    return json_object


def summarize_error(error: BaseException) -> str:
    """Return the message of an error on one line of limited length.

    Characters that cannot be printed are escaped, because the message may quote the file.
    """
    message = " ".join(str(error).split()) or type(error).__name__
    characters = []
    for character in message[:_MAX_ERROR_LENGTH]:
        if not character.isprintable():
            character = character.encode("unicode_escape").decode()
        characters.append(character)
    summary = "".join(characters)
    if len(message) > _MAX_ERROR_LENGTH:
        return f"{summary} ..."
    return summary


def with_article(noun: str) -> str:
    """Return a noun with its indefinite article."""
    if noun[:1] in "AEIOUaeiou":
        return f"an {noun}"
    return f"a {noun}"


def describe_json(data: Any) -> str:
    """Describe a JSON value in a few words for an error message."""
    if isinstance(data, dict):
        return "an object"
    if isinstance(data, list):
        return "a list"
    if data is None:
        return "null"
    if isinstance(data, bool):
        return "true" if data else "false"
    if isinstance(data, str):
        return '"' + data[:_MAX_VALUE_LENGTH].encode("unicode_escape").decode() + '"'
    return repr(data)[:_MAX_VALUE_LENGTH]
