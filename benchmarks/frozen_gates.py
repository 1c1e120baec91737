"""Some 330 gates fitted on fixed rows and kept in a file: what a change of the code is held
against.

Every promise, calibrator, score and kind of rows, per class and per group, with units, importance
and costs, score gates, cascades, wrapped classifiers, labelled pools, the paper's rules. Kept of
each: decisions and probabilities on rows that were held out, thresholds, every fact and every text
of the certificate, and what `evaluate` and `verify` say of some, with the whole report page. A gate
that is refused keeps the error's text. `frozen_cases.py` has the gates.

python benchmarks/frozen_gates.py write before.npz              # a quarter of a minute python
benchmarks/frozen_gates.py compare before.npz new.npz    # every difference; exit code 1 where there
is one
"""

from __future__ import annotations

import json
import sys
import warnings
from collections import Counter
from collections.abc import Iterator
from typing import Any

import numpy as np
from frozen_cases import FAMILIES
from numpy.typing import NDArray

import metacal as mc


def frozen() -> dict[str, Any]:
    """What every gate says, by its name; the error's text where there is none."""
    kept: dict[str, Any] = {}
    for family in FAMILIES:
        for name, said in family():
            assert name not in kept, name
            try:
                kept[name] = said()
            except mc.MetacalError as error:
                kept[name] = {"refused": f"{type(error).__name__}: {error}"}
    return kept


def write(path: str) -> None:
    """Fit all gates; arrays as they are, everything else as JSON."""
    warnings.simplefilter("ignore")
    arrays: dict[str, NDArray[Any]] = {}
    said: dict[str, dict[str, Any]] = {}
    for name, answers in frozen().items():
        said[name] = {
            key: value for key, value in answers.items() if not isinstance(value, np.ndarray)
        }
        arrays |= {
            f"{name}|{key}": value
            for key, value in answers.items()
            if isinstance(value, np.ndarray)
        }
    np.savez_compressed(path, **arrays, said=np.array(json.dumps(said)))
    refused = [name for name, answers in said.items() if "refused" in answers]
    print(f"{len(said)} gates in {path}; refused: {', '.join(refused)}")


def flat(value: Any, at: str = "") -> Iterator[tuple[str, Any]]:
    """Every number and text below, with the way to it."""
    if isinstance(value, dict | list):
        for key, inner in value.items() if isinstance(value, dict) else enumerate(value):
            yield from flat(inner, f"{at}/{key}")
    else:
        yield at, value


def contents(path: str) -> dict[str, Any]:
    """What is in a file, by gate and kind."""
    with np.load(path) as file:
        arrays = {name: file[name] for name in file.files if name != "said"}
        said = json.loads(str(file["said"]))
    return {
        **arrays,
        **{f"{name}|{key.lstrip('/')}": value for name in said for key, value in flat(said[name])},
    }


def difference(one: Any, other: Any) -> str | None:
    """In which way two answers differ; None where they are the same bits."""
    if not isinstance(one, np.ndarray) or not isinstance(other, np.ndarray):
        return None if one == other else f"{excerpt(one, other)!r} -> {excerpt(other, one)!r}"
    if one.dtype != other.dtype or one.shape != other.shape:
        return f"{one.dtype}{one.shape} -> {other.dtype}{other.shape}"
    if one.tobytes() == other.tobytes():
        return None
    differs = (one != other) & ~((one != one) & (other != other))
    away = (
        np.abs(one[differs] - other[differs]).max()
        if one.dtype.kind == "f" and differs.any()
        else None
    )
    return f"{int(differs.sum())} of {one.size} entries" + (
        "" if away is None else f", at most {away:.3g} apart"
    )


def excerpt(text: Any, other: Any, around: int = 60) -> Any:
    """Of two long texts what is about the first character in which they differ."""
    if (
        not isinstance(text, str)
        or not isinstance(other, str)
        or max(len(text), len(other)) <= 4 * around
    ):
        return text
    at = next(
        (i for i, (a, b) in enumerate(zip(text, other, strict=False)) if a != b),
        min(len(text), len(other)),
    )
    return f"…{text[max(0, at - around) : at + around]}…"


def compare(before: str, after: str) -> int:
    """Print every difference; how many there are."""
    one, other = contents(before), contents(after)
    lines = [(name, "gone") for name in one.keys() - other.keys()]
    lines += [(name, "new") for name in other.keys() - one.keys()]
    lines += [
        (name, text)
        for name in one.keys() & other.keys()
        if (text := difference(one[name], other[name]))
    ]
    for name, text in sorted(lines):
        print(f"{name}: {text}")
    gates = {name.partition("|")[0] for name in one} | {name.partition("|")[0] for name in other}
    changed = Counter(name.partition("|")[2].partition("/")[0] for name, _ in lines)
    differing = {name.partition("|")[0] for name, _ in lines}
    print(
        f"{len(gates)} gates, {len(gates - differing)} equal to the bit; {len(lines)} differences:"
        f" {dict(changed)}"
    )
    if lines:
        print(f"if the changes are meant, run: python benchmarks/frozen_gates.py write {before}")
    return len(lines)


if __name__ == "__main__":
    if len(sys.argv) == 3 and sys.argv[1] == "write":
        write(sys.argv[2])
    elif len(sys.argv) == 4 and sys.argv[1] == "compare":
        sys.exit(1 if compare(*sys.argv[2:]) else 0)
    else:
        sys.exit(__doc__)
