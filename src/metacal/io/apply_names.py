"""Names of the result files of a folder, and the check that no result is read as an input."""

from __future__ import annotations

import os
from collections.abc import Sequence

from metacal.errors import FileWriteError
from metacal.io.formats import FORMATS, list_extensions
from metacal.io.input_paths import Paths, is_also_input
from metacal.io.remote import get_suffix
from metacal.io.result_names import build_distinct_result_name, build_short_result_name


def choose_suffix(output_format: str | None, first_source: str) -> str:
    """Return the suffix of result files, by default that of the first source."""
    if output_format is not None:
        return f".{output_format}"
    # Results have several columns, which an .npy file cannot hold.
    suffix = get_suffix(first_source).replace(".npy", ".npz")
    if suffix in list_extensions(writable=True):
        return suffix
    return ".parquet"


def check_results_are_not_read(
    source: Paths, sources: Sequence[str], folder: str, suffix: str
) -> None:
    """Raise InputError if a result would be written to a file that is also a source.

    Parameters
    ----------
    source : path or sequence of paths
        Sources as the user gave them.

    sources : sequence of str
        Paths of all sources.

    folder : str
        Directory of the results.

    suffix : str
        Suffix of the results.
    """
    for source_path in sources:
        input_paths = [source_path]
        # A directory or pattern may also match files that do not exist yet.
        if isinstance(source, str):
            input_paths.append(source)
        possible_result_names = (
            build_short_result_name(source_path, suffix),
            build_distinct_result_name(source_path, suffix),
        )
        for result_name in possible_result_names:
            target = os.path.join(folder, result_name)
            if any(is_also_input(target, input_path, FORMATS) for input_path in input_paths):
                raise FileWriteError(f"{target} is also an input file. Write to another file.")
