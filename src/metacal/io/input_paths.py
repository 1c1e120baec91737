"""Resolution of input paths: files, directories, patterns, URLs and lists."""

from __future__ import annotations

import contextlib
import fnmatch
import glob
import os
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from metacal.errors import FileReadError, warn_caller
from metacal.io.remote import download, is_url, list_remote_files
from metacal.io.request import Request

#: Types that are accepted as input paths.
Paths = str | os.PathLike[str] | Sequence[str | os.PathLike[str]] | Any
#: Initial characters of the file names to skip in a directory, such as `_SUCCESS`.
_HIDDEN_INITIALS = "._"


def list_input_files(path: Paths, suffixes: Iterable[str]) -> list[str]:
    """List the files that a path, a directory, a pattern or a URL stands for.

    A directory stands for all files in it, at any depth, that have one of the suffixes. Names that
    begin with "_" or "." are skipped, and so are pipes, sockets and devices, because reading them
    might wait forever.

    Parameters
    ----------
    path : path or sequence of paths
        Input as the user gave it.

    suffixes : iterable of str
        Suffixes of the files to include from a directory.

    Returns
    -------
    list of str
        File names, sorted within each directory or pattern. URLs remain URLs.

    Raises
    ------
    InputError
        If there is no such file or directory.

    Examples
    --------
    >>> list_input_files("val.npz", [".npz"])
    ['val.npz']
    >>> list_input_files("logs/*.parquet", [".parquet"])
    Traceback (most recent call last):
    metacal.errors.FileReadError: logs/*.parquet: no file matches this pattern.
    """
    if not isinstance(path, str | os.PathLike):
        if not path:
            raise FileReadError(
                "The list of files is empty. Pass at least one file of predictions."
            )
        input_files: list[str] = []
        for single_path in path:
            input_files.extend(list_input_files(single_path, suffixes))
        return input_files

    path_text = os.fspath(path)
    if is_url(path_text):
        return list_remote_files(path_text, tuple(suffixes))
    if os.path.isdir(path_text):
        return _list_directory(path_text, tuple(suffixes))
    if path_text.endswith(("/", os.sep)):
        raise FileReadError(f"{path_text}: the folder does not exist.")
    if glob.has_magic(path_text) and not os.path.exists(path_text):
        return _expand_pattern(path_text)
    return [path_text]


def _expand_pattern(pattern: str) -> list[str]:
    """Return the files that match a pattern."""
    file_names = [name for name in glob.glob(pattern, recursive=True) if not os.path.isdir(name)]
    if not file_names:
        raise FileReadError(f"{pattern}: no file matches this pattern.")
    return _drop_special_files(file_names)


def _list_directory(directory: str, suffixes: tuple[str, ...]) -> list[str]:
    """Return the visible files with one of the suffixes in a directory, at any depth."""
    paths = []
    for parent, subdirectories, names in os.walk(directory):
        # os.walk skips hidden directories if the list is changed in place.
        subdirectories[:] = sorted(
            name for name in subdirectories if name[0] not in _HIDDEN_INITIALS
        )
        for name in names:
            is_visible = name[0] not in _HIDDEN_INITIALS
            if is_visible and Path(name).suffix.lower() in suffixes:
                paths.append(os.path.join(parent, name))
    if not paths:
        raise FileReadError(
            f"{directory}: the folder contains no file of predictions. metacal reads"
            f" {', '.join(suffixes)}."
        )
    return _drop_special_files(paths)


def _drop_special_files(paths: Sequence[str]) -> list[str]:
    """Sort the paths, leaving out pipes, sockets and devices with a warning.

    A broken symbolic link remains in the list, so that reading it reports the problem.
    """
    special_paths = {path for path in paths if os.path.exists(path) and not os.path.isfile(path)}
    for path in sorted(special_paths):
        warn_caller(
            f"{path}: the path is a pipe, a socket or a device, so it was left out. If you pass"
            " several files, all must be regular files."
        )
    file_paths = sorted(path for path in paths if path not in special_paths)
    if not file_paths:
        raise FileReadError(
            "Only pipes, sockets and devices match this pattern, but a regular file is required."
        )
    return file_paths


def is_same_file(path: str, other_path: str) -> bool:
    """Check whether two names denote the same file, also through links or letter case."""
    if os.path.realpath(path) == os.path.realpath(other_path):
        return True
    # os.path.samefile raises an error if one of the files does not exist.
    with contextlib.suppress(OSError, ValueError):
        return os.path.samefile(path, other_path)
    return False


def is_also_input(output: str, path: str, suffixes: Iterable[str]) -> bool:
    """Check whether an output file is among the input files.

    Parameters
    ----------
    output : str
        File to be written.

    path : str
        Input: a file, a directory or a pattern.

    suffixes : iterable of str
        Suffixes of the files that are read from a directory.

    Returns
    -------
    bool
    """
    if is_same_file(output, path):
        return True
    if os.path.splitext(output)[1].lower() not in suffixes:
        return False

    output_path = os.path.realpath(output)
    if os.path.isdir(path):
        return output_path.startswith(os.path.join(os.path.realpath(path), ""))
    directory, name_pattern = os.path.split(path)
    if glob.has_magic(directory):
        return fnmatch.fnmatch(output_path, os.path.abspath(path))
    if os.path.dirname(output_path) != os.path.realpath(directory or "."):
        return False
    return fnmatch.fnmatch(os.path.basename(output_path), name_pattern)


def build_request_of_each_file(request: Request, paths: Sequence[str]) -> list[Request]:
    """Return one copy of the request for each file. Remote files are downloaded first."""
    requests = []
    for path in paths:
        local_copy = None
        if is_url(path):
            local_copy = download(path)
        requests.append(replace(request, path=path, copy_path=local_copy, copy_is_permanent=True))
    return requests
