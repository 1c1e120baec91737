"""summarise: from rows, their truth and a fitted gate to every number of the report."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from metacal.errors import InputError
from metacal.estimators.compare import Comparison
from metacal.estimators.compare import compare as compare_calibrators
from metacal.gate import Gate
from metacal.gate.judged import opened
from metacal.promises.parts.thresholds import plain_groups
from metacal.promises.shares import at_least, at_most
from metacal.promises.verdict import Verdict
from metacal.report.measured import Measured, decide, read, walk
from metacal.report.methods import arrays_sha256, methods
from metacal.report.operating import frontier_points, operating_curves
from metacal.report.reliability import diagrams
from metacal.report.summary import PartTable, Promise, Settings, Source, Summary
from metacal.report.tables import class_table, part_table, striking_rows
from metacal.rows import Rows, validate, workers
from metacal.rows.plausibility import unquestioned

#: Tables up to this many elements are evaluated with bootstrap intervals, rows x resamples up to the second number.
_TABLE_ELEMENTS, _RESAMPLED_ROWS = 20_000_000, 20_000_000
_MOST_RESAMPLES, _FEWEST_RESAMPLES = 1000, 200


def summarise(
    X: ArrayLike,
    y: ArrayLike,
    gate: Gate | Any = None,
    *,
    large: Any = None,
    classes: Sequence[Any] | NDArray[Any] | None = None,
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
    X, y : array-like
        Logits (or what the gate reads) and true labels of rows that the classifier was not trained on, and preferably
        not the ones the gate was fitted on; for a gate on scores the scores, and whether each row is right. Rows
        without a score are left out. `Rows` of logits are taken as checked.
    gate : Gate, or fitted MetaCal, ScoreGate, Cascade or calibrator, optional
        What is reported on. Without it, the softmax of the logits and the curves of its entropy.
    large : table, optional
        Of a cascade: the large model's table of the same rows.
    classes, class_names : sequences, optional
        The labels in column order (the gate's own, or 0 … K-1, when None), and how to print them.
    ids : sequence, optional
        A name for each row.
    groups : sequence, optional
        The group of each row: a table of its own, and what a gate by group decides by.
    input : "logits" or "probabilities", optional
        What the columns are; as the gate has it, or logits.
    level, n_bins, n_resamples, seed
        As in `metacal.metrics.evaluate`. `n_resamples` None takes 1,000 for up to 20,000 rows, 200 for up to 100,000
        and none beyond (or beyond 20 million logits): estimates and exact intervals of shares are always given.
    delta : float
        The bands of the curves and the frontier hold at all points at once with probability 1 - delta.
    compare : True, names, or a finished Comparison, optional
        Compare calibrators by cross-validation on these rows: all of them, or those named.
    progress : callable, optional
        That of `metacal.compare`.
    file, artifact, sha256 : str, optional
        Where rows and gate come from, and the file's hash; the arrays are hashed when it is not given.
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
    'coverage accuracy 0.9735 [0.9698, 0.9767]: kept.'
    >>> round(summary.diagram("before", "all").ece["estimate"], 4)
    0.0507
    """
    validate.fraction("level", level)
    validate.fraction("delta", delta)
    own, given = opened(gate, X, large)
    through, tables = read(own, given, classes, input)
    settings = Settings(level, delta, n_bins, _resamples(n_resamples, len(tables[0]), through.n_classes), seed)
    n_classes = through.n_classes
    order = validate.class_list(through.classes if classes is None and n_classes else classes, n_classes)
    names = _names(class_names, order)
    with workers(n_jobs) as executor:
        if through.kind == "logits":
            codes, rows = validate.label_codes(y, len(tables[0]), order), Rows(tables[0], executor=executor)
            data = walk(own, through, rows, codes, groups, settings)
        else:
            data = decide(through, tables, y, groups, settings)
    evaluation = data.evaluation.to_dict()
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
        promise=_promise(through, data),
        evaluation={name: part for name, part in evaluation.items() if name not in ("promise", "answered_by")},
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
        classes=class_table(names, data),
        parts=_parts(data, names, groups, level=level, certificate=through.certificate),
        mistakes=striking_rows(data, ~data.correct, data.doubt, names, ids),
        hits=striking_rows(data, data.correct, -data.doubt, names, ids),
        comparison=_comparison(compare, tables, data.codes, random_state=seed, n_jobs=n_jobs, progress=progress),
        methods=methods(settings, data.score_name, through.kind),
    )


def _resamples(wanted: int | None, n: int, n_classes: int) -> int:
    if wanted is not None:
        return wanted
    if n * max(1, n_classes) > _TABLE_ELEMENTS or n * _FEWEST_RESAMPLES > _RESAMPLED_ROWS:
        return 0
    return _MOST_RESAMPLES if n * _MOST_RESAMPLES <= _RESAMPLED_ROWS else _FEWEST_RESAMPLES


def _names(class_names: Any, classes: NDArray[Any]) -> NDArray[Any]:
    """How to print the classes."""
    n = len(classes)
    if class_names is not None and len(class_names) != n:
        raise InputError(f"class_names must have a name for each of the {n} columns; got {len(class_names)}.")
    return np.asarray(classes if class_names is None else class_names, dtype=object)


def _calibrator(gate: Gate | None) -> str | None:
    """Who fitted the map, or the maps of a cascade."""
    if gate is None or not gate.n_classes:
        return None
    return ", ".join(dict.fromkeys(stage.source.calibrator_name for stage in gate.stages))


def _parts(data: Measured, names: NDArray[Any], groups: Any, **options: Any) -> tuple[PartTable, ...]:
    """By predicted class, and by group where the rows have one."""
    by = [("class", names, data.predicted)] if len(names) else []
    if groups is not None:
        by.append(("group", *np.unique(plain_groups(groups)[data.numbers], return_inverse=True)))
    return tuple(part_table(*part, data.correct, data.accept, **options) for part in by)


def _promise(gate: Gate, data: Measured) -> Promise | None:
    found = data.evaluation
    certificate, verdict = found.certificate, found.verdict
    if certificate is None or verdict is None or data.accept is None:
        return None
    by = certificate.parts.by if certificate.parts is not None else ""
    return Promise(
        statement=certificate.statement,
        certificate=tuple(certificate.lines),
        threshold=gate.threshold,
        assumptions=certificate.assumptions,
        notes=tuple(map(str, certificate.notes)),
        verdicts=tuple(spoken(part, int(data.accept.sum()), by) for part in verdict.heads),
        kept=verdict.kept,
        refuted=verdict.refuted,
        fitted_here=found.fitted_here,
        answered_by=found.answered_by,
    )


def spoken(part: Verdict, n_accepted: int, by: str = "") -> dict[str, Any]:
    """One quantity's verdict as the page gets it: no reader has to know what a quantity's name means.

    Examples
    --------
    >>> from metacal.promises.quantity import MISCOVERAGE
    >>> kept = Verdict(MISCOVERAGE, 0.1, 0.08, 0.07, 0.09, 0.95, True, False)
    >>> told = spoken(kept, 900)
    >>> told["direction"], told["limit"], told["counted"], told["curve"]
    ('at most', '10%', 'of the right answers were turned away', 'miscoverage')
    """
    promised = part.quantity
    where = "" if part.part is None else f" in {by} {part.part}, which has the most against it"
    counted = promised.measured.format(n_accepted=n_accepted)
    if where:  # so many are accepted in all, not there
        counted = counted.replace(f"the {n_accepted:,} ", "the ")
    return {
        **part.to_dict(),
        "direction": promised.direction,
        "counted": counted + where,
        "curve": promised.short,
        "limit": promised.written(part.target, at_least, at_most),
        "mean": promised.mean,
        "text": str(part),
    }


def _command(gate: Gate, given: str | None, file: str | None, delta: float) -> dict[str, Any]:
    """How a command begins and ends that certifies a point; none for a score without a name, or for a cascade."""
    source = gate.source
    confidence = "" if delta == 0.1 else f" --confidence {round(1.0 - delta, 12):g}"
    begin, end = f"metacal fit {file or 'FILE'}", f"{confidence} -o cal.json"
    if gate.kind == "cascade" or not isinstance(source.score, str):
        return {"command": None, "command_end": end}
    if gate.kind == "scores":
        begin += f" --score-key {source.score}{'' if source.higher_is == 'surer' else ' --higher-is doubtful'}"
    elif source.score != "entropy":
        end = f" --score {source.score}{end}"
    return {"command": begin if given is None else given, "command_end": end}


def _comparison(wanted: Any, tables: Sequence[Any], codes: NDArray[np.intp], **options: Any) -> dict[str, Any] | None:
    if wanted is None or wanted is False:
        return None
    if isinstance(wanted, Comparison):
        return wanted.to_dict()
    if len(tables) > 1 or tables[0].ndim < 2:
        raise InputError("calibrators are compared on one table of logits; leave compare (--compare) out here.")
    names = None if wanted is True else list(wanted)
    with unquestioned():  # they may be logarithms of probabilities
        # Folds are drawn from the rows: they are held in memory.
        return compare_calibrators(np.asarray(tables[0]), codes, names, **options).to_dict()
