"""Which files are read: a folder, a pattern, a list of paths, or what lies behind a URL.

fsspec can be talked into reading anything: `reference://` renders templates, `a::b` reads one
system through another, local files included. Whoever passes on an address that came from elsewhere
must not have to know that: schemes come from a list, chains are refused, and a server's redirects
are followed to http addresses alone.
"""

from __future__ import annotations

import atexit
import contextlib
import fnmatch
import glob
import os
import re
import shutil
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from contextvars import ContextVar
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from metacal.errors import InputError, MetacalError, needs_extra, warn_caller
from metacal.io.request import Request
from metacal.rows.executors import within

#: Files; `metacal.io.reading` takes tables in memory too.
Paths = str | os.PathLike[str] | Sequence[str | os.PathLike[str]] | Any
#: What a URL may begin with.
SCHEMES = ("http", "https", "s3", "s3a", "gs", "gcs", "az", "abfs", "abfss", "file", "memory")
#: Seconds without a byte after which a server is given up.
SILENCE_S = 60.0
#: What filesystems call a checksum, or when a file was written.
_MARKS = (
    "ETag",
    "etag",
    "md5Hash",
    "content_md5",
    "mtime",
    "LastModified",
    "last_modified",
    "updated",
    "created",
)
#: Where copies go as long as `copies_removed` lasts.
_COPIES: ContextVar[str | None] = ContextVar("_COPIES", default=None)


def is_url(path: str) -> bool:
    """Whether a path is a URL, such as s3://bucket/logs, or a chain of them.

    Examples
    --------
    >>> is_url("s3://bucket/val.npz"), is_url("zip::s3://bucket/a.zip"), is_url("val.npz"), is_url("-")
    (True, True, False, False)
    """
    return re.match(r"[A-Za-z][A-Za-z0-9+.-]+(::.*)?://", path) is not None


def suffix_of(path: str) -> str:
    """What a name ends in, in small letters; of a web address without what follows the question
    mark.

    Examples
    --------
    >>> suffix_of("logs/a.CSV"), suffix_of("https://host/a.parquet?signature=0.1")
    ('.csv', '.parquet')
    """
    return Path(path_in(path)).suffix.lower()


def files_of(path: Paths, suffixes: Iterable[str]) -> list[str]:
    """The files that a path, a folder, a pattern, a URL or a list of these stands for, in order;
    URLs stay URLs.

    In a folder every file that metacal can read counts, those of inner folders too; names that
    begin with "_" or "." (`_SUCCESS`, checksums) do not, nor do pipes, sockets and devices, from
    which nothing may ever come.

    Examples
    --------
    >>> files_of("val.npz", [".npz"])
    ['val.npz']
    >>> files_of("logs/*.parquet", [".parquet"])
    Traceback (most recent call last):
    metacal.errors.InputError: logs/*.parquet: no file has such a name.
    """
    if not isinstance(path, str | os.PathLike):
        if not path:
            raise InputError("give at least one file of predictions; the list is empty.")
        return [name for one in path for name in files_of(one, suffixes)]
    text, known = os.fspath(path), tuple(suffixes)
    if is_url(text):
        return _behind(text, known)
    if os.path.isdir(text):
        return _in_folder(text, known)
    if text.endswith(("/", os.sep)):
        raise InputError(f"{text}: there is no such folder.")
    if glob.has_magic(text) and not os.path.exists(text):
        names = [name for name in glob.glob(text, recursive=True) if not os.path.isdir(name)]
        if not names:
            raise InputError(f"{text}: no file has such a name.")
        return _plain_files(names)
    return [text]


def _in_folder(folder: str, known: tuple[str, ...]) -> list[str]:
    found = []
    for inner, folders, names in os.walk(folder):
        folders[:] = sorted(name for name in folders if name[0] not in "._")
        readable = (
            name for name in names if name[0] not in "._" and Path(name).suffix.lower() in known
        )
        found += [os.path.join(inner, name) for name in readable]
    if not found:
        raise InputError(
            f"{folder}: there is no file of predictions in this folder; metacal reads"
            f" {', '.join(known)}."
        )
    return _plain_files(found)


def _plain_files(names: Sequence[str]) -> list[str]:
    """Those that are files, or links to nothing, of which reading will tell; whatever else has such
    a name is named.
    """
    odd = {name for name in names if not os.path.isfile(name) and os.path.exists(name)}
    for name in sorted(odd):
        warn_caller(
            f"{name}: this is a pipe, a socket or a device; among several files it is left out."
        )
    files = sorted(name for name in names if name not in odd)
    if not files:
        raise InputError("there are only pipes, sockets and devices of such a name; give a file.")
    return files


def is_same_file(path: str, other: str) -> bool:
    """Return whether two names lead to one file, through links of either kind or another case of
    letters.
    """
    if os.path.realpath(path) == os.path.realpath(other):
        return True
    with contextlib.suppress(OSError, ValueError):  # one of them does not exist
        return os.path.samefile(path, other)
    return False


def is_read(output: str, path: str, suffixes: Iterable[str]) -> bool:
    """Whether a file to be written is what is read, under whatever name, or among what a folder or
    a pattern names.
    """
    if is_same_file(output, path):
        return True
    if os.path.splitext(output)[1].lower() not in suffixes:
        return False
    here = os.path.realpath(output)
    if os.path.isdir(path):
        return here.startswith(os.path.join(os.path.realpath(path), ""))
    folder, name = os.path.split(path)
    if glob.has_magic(folder):
        return fnmatch.fnmatch(here, os.path.abspath(path))
    return os.path.dirname(here) == os.path.realpath(folder or ".") and fnmatch.fnmatch(
        os.path.basename(here), name
    )


def fetched(request: Request, names: Sequence[str]) -> list[Request]:
    """The same for each file; copies of those behind a URL go when Python ends, or when
    `copies_removed` does.
    """
    return [
        replace(request, path=name, file=_copy(name) if is_url(name) else None, lasting=True)
        for name in names
    ]


def _copy(url: str) -> str:
    outer = _COPIES.get()
    folder = tempfile.mkdtemp(prefix="metacal-", dir=outer)
    if outer is None:
        atexit.register(shutil.rmtree, folder, ignore_errors=True)
    with _plain_errors(url):
        system, inside = _system(url)
        copy = os.path.join(folder, Path(path_in(inside)).name)
        system.get_file(inside, copy)
    return copy


@contextlib.contextmanager
def copies_removed() -> Iterator[None]:
    """Delete the copies of what is fetched in here when this ends, not when Python does."""
    with tempfile.TemporaryDirectory(prefix="metacal-") as folder, within(_COPIES, folder):
        yield


def mark_of(url: str) -> dict[str, Any] | None:
    """What tells a file behind a URL from another in its place: its length and a checksum or a
    date; None for neither.

    Examples
    --------
    >>> import fsspec
    >>> fsspec.filesystem("memory").pipe("/mark/x.csv", b"1,2")
    >>> mark_of("memory://mark/x.csv")["bytes"]
    3
    """
    try:
        system, inside = _system(url)
        info = system.info(inside)
    except Exception:  # whoever fetches it says why
        return None
    marks = {name: str(info[name]) for name in _MARKS if info.get(name) is not None}
    return {"bytes": info.get("size"), **marks} if marks else None


def is_gone(url: str) -> bool:
    """Whether a store says that there is no such file any more; a web server that is not asked
    rightly says so too.
    """
    if _is_web(url):
        return False
    try:
        system, inside = _system(url)
        return not system.exists(inside)
    except Exception:  # not reached is not gone
        return False


def _behind(url: str, known: tuple[str, ...]) -> list[str]:
    """The URLs of the files that a URL stands for."""
    with _plain_errors(url):
        system, inside = _system(url)
        if _is_web(url) and "*" not in inside and not inside.endswith("/"):
            return [
                str(system.unstrip_protocol(inside))
            ]  # a question mark is no pattern there, a page no folder
        names = system.glob(inside) if glob.has_magic(inside) else [inside]
        if len(names) == 1 and system.isdir(names[0]):
            names = [
                name for name in system.find(names[0]) if not Path(name).name.startswith((".", "_"))
            ]
            names = [name for name in names if suffix_of(name) in known]
        if not names or not (len(names) > 1 or system.exists(names[0])):
            raise InputError(f"{url}: there is no such file.")
        return [str(system.unstrip_protocol(name)) for name in sorted(names)]


def _system(url: str) -> tuple[Any, str]:
    """The filesystem of a URL, and the path in it."""
    scheme = url.partition(":")[0].lower()
    if "::" in url:
        raise InputError(
            f"{url}: one address inside another (::) is not read; fetch the file, and give that."
        )
    if scheme not in SCHEMES:
        raise InputError(
            f"{url}: {scheme}:// is not read; metacal reads {', '.join(SCHEMES)}. Fetch the file,"
            " and give that."
        )
    options = {}
    with needs_extra(f"reading {url}", "url"):
        import fsspec

        if _is_web(url):
            import aiohttp

            # Its own default ends every transfer after five minutes, however well it goes on.
            patience = aiohttp.ClientTimeout(
                total=None, sock_connect=SILENCE_S, sock_read=SILENCE_S
            )
            options = {"client_kwargs": {"timeout": patience}}
    return fsspec.core.url_to_fs(url, **options)


def _is_web(url: str) -> bool:
    return url.lower().startswith(("http://", "https://"))


def path_in(name: str) -> str:
    """A name, of a web address the path alone."""
    return urlsplit(name).path if _is_web(name) else name


def without_query(name: str) -> str:
    """Return a web address without its query, which may hold a signature that changes; other names
    as they are.

    Examples
    --------
    >>> without_query("https://host/a.csv?signature=0.1"), without_query("logs/what?.csv")
    ('https://host/a.csv', 'logs/what?.csv')
    """
    if not _is_web(name):
        return name
    return urlsplit(name)._replace(query="", fragment="").geturl()


@contextlib.contextmanager
def _plain_errors(url: str) -> Iterator[None]:
    """What anybody on the way says, in one line."""
    try:
        yield
    except MetacalError:
        raise
    except Exception as error:  # every store has errors of its own
        raise InputError(f"{url}: {_reason(error)}.") from error


def _reason(error: Exception) -> str:
    said = next(
        (_SAID[kind.__name__] for kind in type(error).__mro__ if kind.__name__ in _SAID), None
    )
    if said is not None:
        return said.format(error=error, text=str(error)[:200], seconds=SILENCE_S).rstrip()
    if cause := getattr(error, "os_error", None):  # nobody was reached
        return f"no server answers there ({os.strerror(cause.errno) if cause.errno else cause})"
    plain = " ".join(str(error).split())[:200].rstrip(" .") or type(error).__name__
    return f"it cannot be read ({plain})"


#: What is said of an error by the name of its class, Python's own and those of aiohttp, which need
#: not be there.
_SAID = {
    "FileNotFoundError": "there is no such file",
    "PermissionError": "you have no permission to read it",
    "TimeoutError": (
        "nothing came for {seconds:g} s; try again later, or fetch it and give the file"
    ),
    "TooManyRedirects": "the server sends from one address to the next without end",
    "ClientResponseError": "the server answers {error.status} {error.message}",
    "ClientPayloadError": "the connection ended before the whole file had come; try again",
    "NonHttpUrlRedirectClientError": (
        "the server sends on to {text}, which is no web address, and is not read"
    ),
    "InvalidURL": "{error.url} is no address",
    "ServerDisconnectedError": "the server hung up without an answer",
}
