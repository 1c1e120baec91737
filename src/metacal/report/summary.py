"""Summary: every number of the report, as one frozen value with a JSON shape. The page and the
plots draw from it.

`summarise` makes it from rows, their truth and a gate. Columns are NumPy arrays here and lists in
`to_dict`; what is undefined is NaN here and None there. Nothing is rounded before `to_dict`, which
keeps seven significant digits of what is only drawn and all digits of what is printed.
"""

from __future__ import annotations

import math
import shlex
from collections.abc import Sequence
from dataclasses import dataclass, is_dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike

from metacal.errors import InputError, spelled
from metacal.formulas import Array, Codes
from metacal.gate import Gate
from metacal.gate.judged import opened
from metacal.maps.composed import default_base
from metacal.maps.methods import method_named
from metacal.promises.parts.thresholds import plain_groups
from metacal.report.measured import Measured, Promise, Settings, decide, promised, read, walk
from metacal.report.methods import arrays_sha256, methods
from metacal.report.operating import Curves, frontier_points, operating_curves
from metacal.report.reliability import Diagram, diagrams
from metacal.report.sides import sides_of
from metacal.report.tables import class_table, part_table, striking_rows
from metacal.rows import Rows, validate, workers
from metacal.rows.arrays import fraction
from metacal.rows.plausibility import unquestioned

if TYPE_CHECKING:
    from metacal.estimators.compare import Comparison

#: Number of the JSON shape; it changes when an entry changes its meaning.
FORMAT = 1
_DIGITS = 7
#: Tables up to this many elements are evaluated with bootstrap intervals, rows x resamples up to
#: the second number.
_TABLE_ELEMENTS, _RESAMPLED_ROWS = 20_000_000, 20_000_000


@dataclass(frozen=True, eq=False)
class Source:
    """Where the numbers come from.

    Attributes
    ----------
    file, artifact : str or None
        The file of labelled rows and the file of the fitted gate or calibrator, as the user named
        them.
    sha256, hashed : str
        Hash of the data, and what was hashed: "file" (its bytes) or "arrays" (table and labels).
    n_rows, n_classes, n_correct : int
        No classes where there are scores in place of logits.
    score : str
        Name of the ranking score behind every threshold.
    calibrator : str or None
        Name of the calibrator, None for the softmax of the logits as they came.
    n_without_score : int
        Rows that are left out.
    """

    file: str | None
    artifact: str | None
    sha256: str
    hashed: str
    n_rows: int
    n_classes: int
    n_correct: int
    score: str
    calibrator: str | None
    n_without_score: int = 0


@dataclass(frozen=True, eq=False)
class Summary:
    """Every number of the report.

    Attributes
    ----------
    source, settings : Source, Settings
    promise : Promise or None
        None without a gate.
    evaluation : dict
        What `metacal evaluate --json` prints of the same rows: n_rows, n_accepted, n_classes,
        level, n_bins, accepted_rows, all_rows, gate, uncalibrated.
    diagrams : tuple of Diagram
        Before (all rows), and with a calibrator after (all rows), and with a gate before and after
        (accepted rows).
    curves : Curves
    frontier : dict
        What `frontier_points` gives.
    sides : dict or None
        Of two classes: what is called by either of them.
    classes : dict
        What `class_table` gives.
    parts : list of dict
        What `part_table` gives, by predicted class, and by group where the rows have one.
    mistakes, hits : lists of dict
        The most confident mistakes and the least confident right answers, most striking first.
    comparison : dict or None
        What `metacal.compare(...).to_dict()` gives.
    methods : dict
        Definitions as (term, text), and the versions of what computed the numbers.
    """

    source: Source
    settings: Settings
    promise: Promise | None
    evaluation: dict[str, Any]
    diagrams: tuple[Diagram, ...]
    curves: Curves
    frontier: dict[str, Any]
    sides: dict[str, Any] | None
    classes: dict[str, Any]
    parts: list[dict[str, Any]]
    mistakes: list[dict[str, Any]]
    hits: list[dict[str, Any]]
    comparison: dict[str, Any] | None
    methods: dict[str, Any]

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON types: None for what is undefined, "inf" for infinity.

        Evaluation, promise and curves keep every digit: the page prints them, and rounding twice
        would show another last digit than `metacal evaluate` does. The rest keeps seven significant
        digits.
        """
        digits = {"evaluation": 17, "promise": 17, "curves": 17, "parts": 5}
        whole = {
            name: plain(value, digits.get(name, _DIGITS)) for name, value in vars(self).items()
        }
        # A threshold must go on accepting the same rows: it keeps all its digits.
        whole["frontier"]["threshold"] = plain(self.frontier["threshold"], 17)
        return {"format": FORMAT, **whole}


def summarise(
    X: ArrayLike,
    y: ArrayLike,
    gate: Gate | Any = None,
    *,
    large: Any = None,
    classes: Sequence[Any] | Array | None = None,
    class_names: Sequence[str] | None = None,
    ids: Any = None,
    groups: Any = None,
    input: str | None = None,
    level: float = 0.95,
    delta: float = 0.1,
    n_bins: int = 15,
    n_resamples: int | None = None,
    seed: int = 0,
    compare: bool | Sequence[str] | Comparison | None = None,
    progress: Any = None,
    file: str | None = None,
    artifact: str | None = None,
    sha256: str | None = None,
    command: str | None = None,
    n_jobs: int | None = None,
) -> Summary:
    """Compute every number of the report; a table of logits is read block by block, each row once.

    Parameters
    ----------
    X, y, gate, large
        As `metacal.write_report` takes them. Rows without a score are left out; `Rows` of logits
        are taken as checked. Without a gate, the softmax of the logits and the curves of its
        entropy.
    classes, class_names : sequences, optional
        The labels in column order (the gate's own, or 0 … K-1, when None), and how to print them.
    ids : sequence, optional
        A name for each row.
    groups : sequence, optional
        The group of each row: a table of its own, and what a gate by group decides by.
    input : "logits" or "probabilities", optional
        What the columns are; as the gate has it, or logits.
    level, n_bins, n_resamples, seed
        As in `metacal.metrics.evaluate`. `n_resamples` None takes 1,000 for up to 20,000 rows, 200
        for up to 100,000 and none beyond (or beyond 20 million logits): estimates and exact
        intervals of shares are always given.
    delta : float
        The bands of the curves and the frontier hold at all points at once with probability 1 -
        delta.
    compare : True, names, or a finished Comparison, optional
        Compare calibrators by cross-validation on these rows: all of them, or those named.
    progress : callable, optional
        That of `metacal.compare`.
    file, artifact, sha256 : str, optional
        Where rows and gate come from, and the file's hash; the arrays are hashed when it is not
        given.
    command : str, optional
        How a `metacal fit` command for these rows begins; "metacal fit FILE" when None.
    n_jobs : int, optional
        Threads; never changes a number.

    Examples
    --------
    >>> import metacal as mc
    >>> (fit_x, fit_y), (new_x, new_y) = mc.datasets.load("cifar10-resnet110").split(5000, random_state=0)
    >>> cal = mc.MetaCal(mc.MinAccuracy(0.97)).fit(fit_x, fit_y)
    >>> summary = summarise(new_x, new_y, cal, n_resamples=0)
    >>> summary.promise.verdicts[0]["text"]
    'kept: coverage accuracy 0.9735 [0.9698, 0.9767], promised at least 0.97.'
    >>> round(summary.diagrams[0].ece["estimate"], 4)
    0.0507
    """
    fraction("level", level)
    fraction("delta", delta)
    own, given = opened(gate, X, large)
    through, tables = read(own, given, classes, input)
    settings = Settings(
        level, delta, n_bins, _resamples(n_resamples, len(tables[0]), through.n_classes), seed
    )
    n_classes = through.n_classes
    order = validate.class_list(
        through.classes if classes is None and n_classes else classes, n_classes
    )
    names = _names(class_names, order)
    with workers(n_jobs) as executor:
        if through.kind == "logits":
            codes, rows = (
                validate.label_codes(y, len(tables[0]), order),
                Rows(tables[0], executor=executor),
            )
            data = walk(own, through, rows, codes, groups, settings)
        else:
            data = decide(through, tables, y, groups, settings)
    evaluation = data.evaluation.to_dict()
    two = through.kind == "logits" and len(names) == 2 and 0 < data.codes.sum() < len(data.codes)
    return Summary(
        source=Source(
            file=file,
            artifact=artifact,
            sha256=arrays_sha256(tables, y) if sha256 is None else sha256,
            hashed="arrays" if sha256 is None else "file",
            n_rows=len(data.codes),
            n_without_score=len(tables[0]) - len(data.codes),
            n_classes=len(names),
            n_correct=int(data.correct.sum()),
            score=data.score_name,
            calibrator=_calibrator(own),
        ),
        settings=settings,
        promise=promised(through, data),
        evaluation={
            name: part
            for name, part in evaluation.items()
            if name not in ("promise", "answered_by")
        },
        diagrams=diagrams(data, settings),
        curves=operating_curves(
            data.doubt,
            data.correct,
            delta=delta,
            threshold=data.threshold,
            higher_is_surer=data.score_name.startswith("-"),
            **_command(through, command, file, delta),
        ),
        frontier=frontier_points(data.doubt, data.correct, delta=delta),
        sides=sides_of(through, Rows(tables[0]), data.codes, names, delta, level) if two else None,
        classes=class_table(names, data),
        parts=_parts(through, data, names, groups, level),
        mistakes=striking_rows(data, ~data.correct, data.doubt, names, ids),
        hits=striking_rows(data, data.correct, -data.doubt, names, ids),
        comparison=_comparison(
            compare, tables, data.codes, random_state=seed, n_jobs=n_jobs, progress=progress
        ),
        methods=methods(settings, data.score_name, through.kind),
    )


def _resamples(wanted: int | None, n: int, n_classes: int) -> int:
    if wanted is not None:
        return wanted
    if n * max(1, n_classes) > _TABLE_ELEMENTS:
        return 0
    return next((draws for draws in (1000, 200) if n * draws <= _RESAMPLED_ROWS), 0)


def _names(class_names: Any, classes: Array) -> Array:
    """How to print the classes."""
    n = len(classes)
    if class_names is not None and len(class_names) != n:
        raise InputError(
            f"class_names must have a name for each of the {n} columns; got {len(class_names)}."
        )
    return np.asarray(classes if class_names is None else class_names, dtype=object)


def _calibrator(gate: Gate | None) -> str | None:
    """Who fitted the map, or the maps of a cascade."""
    if gate is None or not gate.n_classes:
        return None
    return ", ".join(
        dict.fromkeys(gate.stage(k).source.calibrator_name for k in range(len(gate.stages)))
    )


def _parts(
    gate: Gate, data: Measured, names: Array, groups: Any, level: float
) -> list[dict[str, Any]]:
    """By predicted class, and by group where the rows have one, each side of it where there are
    two.
    """
    by = [("class", names, data.predicted)] if len(names) else []
    if groups is not None:
        own = plain_groups(groups)[data.numbers]
        sides = gate.part_names(data.predicted, own) if gate.policy.at else None
        cells, place = np.unique(own if sides is None else sides, axis=0, return_inverse=True)
        by.append(("group", cells, place.ravel()))
    certificate, columns = gate.certificate, (data.correct, data.accept)
    return [part_table(*part, *columns, level=level, certificate=certificate) for part in by]


def _command(gate: Gate, given: str | None, file: str | None, delta: float) -> dict[str, Any]:
    """How a command begins and ends that certifies a point; none for a score without a name, or for
    a cascade.

    What is `given` says how the rows are read; what the gate was fitted with is added where it does
    not say so.
    """
    source, confidence = (
        gate.source,
        "" if delta == 0.1 else f" --confidence {round(1.0 - delta, 12):g}",
    )
    end, begin = (
        f"{confidence} -o cal.json",
        given or shlex.join(["metacal", "fit", file or "FILE"]),
    )
    if gate.kind == "cascade" or not isinstance(source.score, str):
        return {"command": None, "command_end": end}
    if gate.kind == "scores":
        own = {"--score-key": source.score, "--higher-is": source.higher_is.removeprefix("surer")}
    else:
        learned = source.recipe is not None and (
            gate.certificate is None or gate.certificate.labelled
        )
        base = method_named(source.recipe.estimator) if learned else None
        own = {"--input": source.input.removeprefix("logits")}
        own["--calibrator"] = (
            "" if base is None or base.name == default_base(gate.n_classes) else base.name
        )
        end = end if source.score == "entropy" else f" --score {source.score}{end}"
    more = [
        word
        for name, value in own.items()
        if value and f" {name} " not in begin
        for word in (name, value)
    ]
    return {"command": " ".join([begin, *map(shlex.quote, more)]), "command_end": end}


def _comparison(
    wanted: Any, tables: Sequence[Any], codes: Codes, **options: Any
) -> dict[str, Any] | None:
    if wanted is None or wanted is False:
        return None
    from metacal.estimators.compare import (
        Comparison,
        compare,
    )  # scikit-learn: as long as all the rest of a page

    if isinstance(wanted, Comparison):
        return wanted.to_dict()
    if len(tables) > 1 or tables[0].ndim < 2:
        out = spelled("compare", "--compare")
        raise InputError(f"calibrators are compared on one table of logits; leave out {out}.")
    names = None if wanted is True else list(wanted)
    with unquestioned():  # they may be logarithms of probabilities
        # Folds are drawn from the rows: they are held in memory.
        return compare(np.asarray(tables[0]), codes, names, **options).to_dict()


def plain(value: Any, digits: int = _DIGITS) -> Any:
    """A value of this module as plain JSON types, floats to so many significant digits (17 keep
    all).

    Examples
    --------
    >>> plain({"a": np.array([1 / 3, np.nan]), "b": (True, 2)})
    {'a': [0.3333333, None], 'b': [True, 2]}
    """
    if isinstance(value, float):  # nearly all of a page: asked first
        if math.isnan(value):
            return None
        if math.isinf(value):
            return "inf" if value > 0 else "-inf"
        rounded = float(f"{value:.{digits}g}")
        return int(rounded) if rounded.is_integer() and abs(rounded) < 1e15 else rounded
    if isinstance(value, tuple | list):
        return [plain(item, digits) for item in value]
    if isinstance(value, np.ndarray | np.generic):
        return plain(value.tolist(), digits)
    if isinstance(value, dict):
        return {str(name): plain(item, digits) for name, item in value.items()}
    return plain(vars(value), digits) if is_dataclass(value) else value
