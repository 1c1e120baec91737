"""Names of result files, derived from the names of their sources."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

from metacal.io.remote import is_url, url_path, without_query

#: Number of hexadecimal digits in a distinct name.
_N_DIGITS = 10


def build_short_result_name(source: str, suffix: str) -> str:
    """Return the file name of a source with another suffix.

    Examples
    --------
    >>> build_short_result_name("logs/x.csv", ".parquet")
    'x.parquet'
    """
    return f"{Path(url_path(source)).stem}{suffix}"


def build_distinct_result_name(source: str, suffix: str) -> str:
    """Return a file name that depends on the whole path of a source.

    Examples
    --------
    >>> build_distinct_result_name("s3://logs/monday/x.csv", ".parquet")
    'x-....parquet'
    >>> monday_name = build_distinct_result_name("s3://logs/monday/x.csv", ".parquet")
    >>> monday_name == build_distinct_result_name("s3://logs/friday/x.csv", ".parquet")
    False
    """
    identity_bytes = get_source_identity(source).encode("utf-8", "surrogateescape")
    digest = hashlib.sha256(identity_bytes).hexdigest()
    return f"{Path(url_path(source)).stem}-{digest[:_N_DIGITS]}{suffix}"


def get_full_source_name(source: str) -> str | None:
    """Return the absolute name of a source, or None for standard input."""
    if source == "-":
        return None
    if is_url(source):
        return source
    return os.path.abspath(source)


def get_source_identity(source: str) -> str:
    """Return the full name of a source, without the query of a web address."""
    return without_query(get_full_source_name(source) or source)
