"""Remote files: listing, downloading and identifying files behind URLs.

fsspec supports protocols that read much more than their address suggests: `reference://` renders
templates, and `a::b` reads one file system through another, local files included. An address may
come from an untrusted source. Therefore only the protocols in `SCHEMES` are accepted, chained
addresses are rejected, and redirects are followed to http addresses only.
"""

from __future__ import annotations

import atexit
import contextlib
import glob
import os
import re
import shutil
import tempfile
from collections.abc import Iterator
from contextvars import ContextVar
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from metacal.errors import FileReadError, MetacalError, needs_extra
from metacal.rows.executors import set_context_variable

#: URL schemes that can be read.
SCHEMES = ("http", "https", "s3", "s3a", "gs", "gcs", "az", "abfs", "abfss", "file", "memory")
#: Number of seconds without data after which a download fails.
TIMEOUT_SECONDS = 60.0
#: Maximum number of characters of the reason for an error.
_MAX_REASON_LENGTH = 200
#: Keys under which fsspec file systems report a checksum or a modification time.
_VERSION_KEYS = (
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
#: Messages for exceptions, by class name, because aiohttp may not be installed.
_ERROR_MESSAGES = {
    "FileNotFoundError": "the file does not exist",
    "PermissionError": "permission to read the file was denied",
    "TimeoutError": (
        "the server sent nothing for {seconds:g} s; try again later, or download the file and pass it"
    ),
    "TooManyRedirects": "the server redirects too many times",
    "ClientResponseError": "the server answers {error.status} {error.message}",
    "ClientPayloadError": "the connection ended before the file was complete; try again",
    "NonHttpUrlRedirectClientError": (
        "the server redirects to {text}, which is not a web address and is not read"
    ),
    "InvalidURL": "{error.url} is not a valid address",
    "ServerDisconnectedError": "the server closed the connection without an answer",
}

#: Directory of the downloaded copies while `delete_downloads_after_use` is active.
_copy_directory: ContextVar[str | None] = ContextVar("metacal_copy_directory", default=None)


def is_url(path: str) -> bool:
    """Check whether a path is a URL, such as s3://bucket/logs, or a chain of URLs.

    Examples
    --------
    >>> is_url("s3://bucket/val.npz"), is_url("zip::s3://bucket/a.zip")
    (True, True)
    >>> is_url("val.npz"), is_url("-")
    (False, False)
    """
    return re.match(r"[A-Za-z][A-Za-z0-9+.-]+(::.*)?://", path) is not None


def get_suffix(path: str) -> str:
    """Return the lower-case suffix of a path or URL, ignoring any query.

    Examples
    --------
    >>> get_suffix("logs/a.CSV"), get_suffix("https://host/a.parquet?signature=0.1")
    ('.csv', '.parquet')
    """
    return Path(url_path(path)).suffix.lower()


def url_path(name: str) -> str:
    """Return the path part of a web address, or any other name unchanged."""
    if _is_web_address(name):
        return urlsplit(name).path
    return name


def without_query(name: str) -> str:
    """Return a web address without its query, or any other name unchanged.

    The query may hold a signature that changes between calls.

    Examples
    --------
    >>> without_query("https://host/a.csv?signature=0.1"), without_query("logs/what?.csv")
    ('https://host/a.csv', 'logs/what?.csv')
    """
    if not _is_web_address(name):
        return name
    return urlsplit(name)._replace(query="", fragment="").geturl()


def list_remote_files(url: str, suffixes: tuple[str, ...]) -> list[str]:
    """Return the URLs of the files that a remote path or pattern stands for.

    Parameters
    ----------
    url : str
        Address of a file or a directory, or a pattern.

    suffixes : tuple of str
        Suffixes of the files to include from a directory.

    Returns
    -------
    list of str
        Sorted by name.

    Raises
    ------
    InputError
        If there is no such file, or if the file system cannot be reached.
    """
    with _input_error_if_request_fails(url):
        file_system, path = _open_file_system(url)
        # A question mark in a web address begins the query and is not a wildcard.
        is_single_page = _is_web_address(url) and "*" not in path and not path.endswith("/")
        if is_single_page:
            return [str(file_system.unstrip_protocol(path))]

        remote_names = [path]
        if glob.has_magic(path):
            remote_names = file_system.glob(path)
        if len(remote_names) == 1 and file_system.isdir(remote_names[0]):
            remote_names = _list_remote_directory(file_system, remote_names[0], suffixes)
        if not remote_names or (len(remote_names) == 1 and not file_system.exists(remote_names[0])):
            raise FileReadError(f"{url}: the file does not exist. Check the address.")
        return [str(file_system.unstrip_protocol(name)) for name in sorted(remote_names)]


def _list_remote_directory(
    file_system: Any, directory: str, suffixes: tuple[str, ...]
) -> list[str]:
    """Return the visible files of a remote directory that have one of the suffixes."""
    remote_names = []
    for name in file_system.find(directory):
        is_hidden = Path(name).name.startswith((".", "_"))
        if not is_hidden and get_suffix(name) in suffixes:
            remote_names.append(name)
    return remote_names


def download(url: str) -> str:
    """Copy a remote file to a temporary directory and return the path of the copy.

    The copy is deleted when the enclosing `delete_downloads_after_use` ends, or when Python ends.
    """
    parent_directory = _copy_directory.get()
    directory = tempfile.mkdtemp(prefix="metacal-", dir=parent_directory)
    if parent_directory is None:
        atexit.register(shutil.rmtree, directory, ignore_errors=True)
    with _input_error_if_request_fails(url):
        file_system, path = _open_file_system(url)
        copy_path = os.path.join(directory, Path(url_path(path)).name)
        file_system.get_file(path, copy_path)
    return copy_path


@contextlib.contextmanager
def delete_downloads_after_use() -> Iterator[None]:
    """Delete the files downloaded within this context when the context ends."""
    with (
        tempfile.TemporaryDirectory(prefix="metacal-") as directory,
        set_context_variable(_copy_directory, directory),
    ):
        yield


def compute_remote_fingerprint(url: str) -> dict[str, Any] | None:
    """Return the size of a remote file with its checksum or modification time.

    Returns
    -------
    dict or None
        None if the file cannot be reached, or has neither a checksum nor a modification time.

    Examples
    --------
    >>> import fsspec
    >>> fsspec.filesystem("memory").pipe("/mark/x.csv", b"1,2")
    >>> compute_remote_fingerprint("memory://mark/x.csv")["bytes"]
    3
    """
    try:
        file_system, path = _open_file_system(url)
        file_info = file_system.info(path)
    except Exception:
        # The subsequent download raises the same error with a message for the user.
        return None
    found_versions = {}
    for key in _VERSION_KEYS:
        if file_info.get(key) is not None:
            found_versions[key] = str(file_info[key])
    if not found_versions:
        return None
    return {"bytes": file_info.get("size"), **found_versions}


def is_remote_file_gone(url: str) -> bool:
    """Check whether a file store reports that a file no longer exists.

    The result is False for web servers, because a server may also report a missing file if the
    request lacks permission. It is False as well if the store cannot be reached.
    """
    if _is_web_address(url):
        return False
    try:
        file_system, path = _open_file_system(url)
        return not file_system.exists(path)
    except Exception:
        # Each file store raises its own types of exceptions.
        return False


def _open_file_system(url: str) -> tuple[Any, str]:
    """Return the fsspec file system of a URL and the path in it."""
    scheme = url.partition(":")[0].lower()
    if "::" in url:
        raise FileReadError(
            f"{url}: metacal does not support addresses inside other addresses (::). Download the"
            " file, and pass its path."
        )
    if scheme not in SCHEMES:
        raise FileReadError(
            f"{url}: metacal does not support {scheme}:// addresses, only {', '.join(SCHEMES)}."
            " Download the file, and pass its path."
        )
    options = {}
    with needs_extra(f"reading {url}", "url"):
        import fsspec

        if _is_web_address(url):
            import aiohttp

            # By default, aiohttp aborts every transfer after five minutes, even an active one.
            timeout = aiohttp.ClientTimeout(
                total=None, sock_connect=TIMEOUT_SECONDS, sock_read=TIMEOUT_SECONDS
            )
            options = {"client_kwargs": {"timeout": timeout}}
    return fsspec.core.url_to_fs(url, **options)


def _is_web_address(name: str) -> bool:
    return name.lower().startswith(("http://", "https://"))


@contextlib.contextmanager
def _input_error_if_request_fails(url: str) -> Iterator[None]:
    """Convert any exception of a remote file system to an InputError."""
    try:
        yield
    except MetacalError:
        raise
    except Exception as error:
        # Each file store raises its own types of exceptions.
        raise FileReadError(f"{url}: {_describe_remote_error(error)}.") from error


def _describe_remote_error(error: Exception) -> str:
    """Describe an exception of a remote file system in one line."""
    for error_class in type(error).__mro__:
        template = _ERROR_MESSAGES.get(error_class.__name__)
        if template is not None:
            message = template.format(
                error=error, text=str(error)[:_MAX_REASON_LENGTH], seconds=TIMEOUT_SECONDS
            )
            return message.rstrip()

    connection_error = getattr(error, "os_error", None)
    if connection_error:
        reason = connection_error
        if connection_error.errno:
            reason = os.strerror(connection_error.errno)
        return f"no server answers there ({reason})"
    one_line = " ".join(str(error).split())
    reason = one_line[:_MAX_REASON_LENGTH].rstrip(" .") or type(error).__name__
    return f"it cannot be read ({reason})"
