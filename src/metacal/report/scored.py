"""summarise_scores: the numbers of the report where there are scores in place of logits.

The page is the same one: no classes (`n_classes` is 0), no reliability before calibration, and after it only where the
gate has a confidence.
"""

from __future__ import annotations

import hashlib
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from metacal.errors import InputError
from metacal.gate import ScoredGate
from metacal.gate.scored import HigherIs, doubt_name, doubt_of, plain_name
from metacal.metrics.evaluation import evaluate_scores
from metacal.metrics.toplabel import TopLabel
from metacal.promises.verdict import judge
from metacal.report.methods import methods
from metacal.report.operating import frontier_points, operating_curves
from metacal.report.reliability import diagram
from metacal.report.rows import class_table, striking_rows
from metacal.report.summary import Curves, Diagram, Methods, Promise, Row, Settings, Source, Summary
from metacal.report.verdicts import spoken
from metacal.rows.score_columns import score_and_correct

Float = NDArray[np.float64]
Flags = NDArray[np.bool_]

#: Rows times resamples that the bootstrap may take, as for tables.
_MOST_RESAMPLES, _RESAMPLED_ROWS = 1000, 20_000_000


def summarise_scores(
    score: Any,
    correct: Any,
    gate: ScoredGate | None = None,
    *,
    score_name: str = "score",
    higher_is: HigherIs = "surer",
    ids: Any = None,
    level: float = 0.95,
    delta: float = 0.1,
    n_bins: int = 15,
    n_resamples: int | None = None,
    seed: int = 0,
    file: str | None = None,
    artifact: str | None = None,
    sha256: str | None = None,
    command: str | None = None,
) -> Summary:
    """Compute every number of the report on scores; rows without a score are left out.

    Parameters
    ----------
    score, correct : array-like
        A score for each row, and whether the row is right.
    gate : ScoredGate, optional
        What is reported on; it knows the name of the score and what a higher one says.
    score_name, higher_is
        The same, where there is no gate.
    ids, level, delta, n_bins, n_resamples, seed, file, artifact, sha256, command
        As in `summarise`.

    Examples
    --------
    >>> rng = np.random.default_rng(0)
    >>> mark = rng.random(500)
    >>> found = summarise_scores(mark, rng.random(500) > (1 - mark) ** 2, n_resamples=0)
    >>> found.source.score, found.source.n_classes, found.diagrams
    ('-score', 0, ())
    """
    given, right = score_and_correct(score, correct)
    there = np.flatnonzero(~np.isnan(given))
    if not len(there):
        raise InputError("no row has a score: there is nothing to report on.")
    doubt = doubt_of(given[there], higher_is) if gate is None else gate.doubt(given[there])
    kept = right[there]
    accept = None if gate is None else gate.accepts(given[there])
    confidence = None if gate is None or gate.curve is None else gate.curve(doubt)
    name = doubt_name(plain_name(score_name), higher_is) if gate is None else gate.certificate.score
    resamples = _resamples(n_resamples, len(there))
    settings = Settings(level, delta, n_bins, resamples, seed)
    evaluation = evaluate_scores(
        doubt,
        kept,
        accept=accept,
        confidence=confidence,
        n_bins=n_bins,
        level=level,
        n_resamples=resamples,
        random_state=seed,
    ).to_dict()
    shown = np.full(len(there), np.nan) if confidence is None else confidence
    listed: dict[str, Any] = {"shown": shown, "accept": accept, "ids": None if ids is None else np.asarray(ids)[there]}
    return Summary(
        source=Source(
            file=file,
            artifact=artifact,
            sha256=_sha256(given, right) if sha256 is None else sha256,
            hashed="arrays" if sha256 is None else "file",
            n_rows=len(there),
            n_classes=0,
            n_correct=int(kept.sum()),
            score=name,
            calibrator=None,
        ),
        settings=settings,
        promise=None if gate is None or accept is None else _promise(gate, doubt, kept, accept, level),
        evaluation={**evaluation, "uncalibrated": None, "calibration": None},
        diagrams=_diagrams(confidence, kept, evaluation["all_rows"], settings),
        curves=_curves(
            name,
            doubt,
            kept,
            delta=delta,
            threshold=None if gate is None else gate.threshold,
            command=command if command is not None else f"metacal fit {file or 'FILE'} --score-key {name.lstrip('-')}",
            command_end=_command_end(delta),
        ),
        frontier=frontier_points(doubt, kept, delta=delta),
        classes=class_table(np.empty(0, dtype=object), np.empty(0, np.intp), kept[:0], None, np.empty(0)),
        parts=(),
        mistakes=_striking(doubt, ~kept, there, most_confident=True, **listed),
        hits=_striking(doubt, kept, there, most_confident=False, **listed),
        comparison=None,
        methods=_methods(settings, name),
    )


def _curves(name: str, doubt: Float, correct: Flags, **options: Any) -> Curves:
    """The operating points; the command names a threshold as the score is written."""
    found = operating_curves(doubt, correct, **options)
    if not name.startswith("-"):
        return found
    turned = (text[1:] if text.startswith("-") else f"-{text}" for text in found.threshold_text)
    return replace(found, threshold_text=tuple(text if text != "-0" else "0" for text in turned))


def _resamples(wanted: int | None, n: int) -> int:
    if wanted is not None:
        return wanted
    return _MOST_RESAMPLES if n * _MOST_RESAMPLES <= _RESAMPLED_ROWS else 0


def _promise(gate: ScoredGate, doubt: Float, correct: Flags, accept: Flags, level: float) -> Promise:
    certificate = gate.certificate
    verdict = judge(certificate, accept, correct, level, gate.losses(correct))
    return Promise(
        statement=certificate.statement,
        certificate=tuple(certificate.lines),
        threshold=gate.threshold,
        assumptions=certificate.assumptions,
        notes=tuple(map(str, certificate.notes)),
        verdicts=tuple(spoken(part, int(accept.sum())) for part in verdict.parts),
        kept=verdict.kept,
        refuted=verdict.refuted,
        fitted_here=gate.fitted_on(doubt, correct),
    )


def _diagrams(
    confidence: Float | None, correct: Flags, metrics: dict[str, Any], settings: Settings
) -> tuple[Diagram, ...]:
    if confidence is None:
        return ()
    top = TopLabel(confidence, correct.astype(np.float64))
    options: dict[str, Any] = {"n_bins": settings.n_bins, "level": settings.level}
    return (diagram(top, "after", "all", "Calibrated confidence, all rows", metrics=metrics, **options),)


def _striking(
    doubt: Float,
    chosen: Flags,
    there: NDArray[np.intp],
    *,
    most_confident: bool,
    shown: Float,
    accept: Flags | None,
    ids: Any,
) -> tuple[Row, ...]:
    """Rows worth a look, by their numbers in the file; they have neither a class nor an answer."""
    nothing = np.zeros(len(doubt), dtype=np.intp)
    rows = striking_rows(
        doubt,
        chosen,
        most_confident=most_confident,
        names=np.array([""], dtype=object),
        codes=nothing,
        predicted=nothing,
        confidence=shown,
        accept=accept,
        ids=ids,
    )
    return tuple(replace(row, row=int(there[row.row])) for row in rows)


def _command_end(delta: float) -> str:
    confidence = "" if delta == 0.1 else f" --confidence {round(1.0 - delta, 12):g}"
    return f"{confidence} -o cal.json"


def _methods(settings: Settings, name: str) -> Methods:
    found = methods(settings, name)
    higher = "higher = surer" if name.startswith("-") else "higher = less sure"
    own = {
        "score": f"{name.removeprefix('-')}, as it was given, {higher}; rows without one are left out here, and are "
        "always rejected",
        "right": "as the rows themselves say",
        "ECE": "expected calibration error: mean over rows of |share of right rows - mean confidence| of their bin, "
        f"{settings.n_bins} bins of equal width (or of equal counts) on the calibrated confidence",
    }
    kept = tuple((term, own.get(term, text)) for term, text in found.definitions if term != "class-wise ECE")
    return replace(found, definitions=kept)


def _sha256(score: NDArray[np.floating[Any]], correct: Flags) -> str:
    digest = hashlib.sha256(f"{len(score)} scores".encode())
    digest.update(score.astype("<f8").tobytes())
    digest.update(correct.astype(np.uint8).tobytes())
    return digest.hexdigest()
