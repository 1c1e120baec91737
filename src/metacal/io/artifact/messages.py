"""What the messages about files are made of: values in a few words, and the one about keys."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from metacal.errors import ArtifactError


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
    for name in names:
        if name not in data:
            raise ArtifactError(f"{where}: {name!r} is missing.")
    for name in data:
        if name not in names:
            raise ArtifactError(f"{where}: {shown(name)} does not belong here.")


@contextmanager
def naming(path: str) -> Iterator[None]:
    """Errors about what a file holds begin with its name.

    Examples
    --------
    >>> with naming("cal.json"):
    ...     exact_keys([], ["a"], "map")
    Traceback (most recent call last):
    metacal.errors.ArtifactError: cal.json: map must be an object, not a list.
    """
    try:
        yield
    except ArtifactError as error:
        raise ArtifactError(f"{path}: {error}") from error.__cause__


def without_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """The object of these pairs, as JSON's reader hands them over; KeyError where a name stands
    there twice.
    """
    found = dict(pairs)
    if len(found) < len(pairs):
        names = [name for name, _ in pairs]
        raise KeyError(next(name for k, name in enumerate(names) if name in names[:k]))
    return found


def brief(error: BaseException) -> str:
    """What an error says, on one line of at most 300 characters: it may quote the file."""
    said = " ".join(str(error).split()) or type(error).__name__
    plain = "".join(
        sign if sign.isprintable() else sign.encode("unicode_escape").decode()
        for sign in said[:300]
    )
    return f"{plain} ..." if len(said) > 300 else plain


def article(noun: str) -> str:
    """The noun with its article."""
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
