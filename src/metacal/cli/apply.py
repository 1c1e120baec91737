"""metacal apply: calibrated probabilities and decisions for new rows."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from metacal.cli.options import Reading, check_jobs, check_not_an_input, jobs_option, json_option, reading_options
from metacal.cli.printing import note, say_json

if TYPE_CHECKING:
    from metacal.io.predictions import Predictions


@click.command()
@click.argument("artifact", type=click.Path())
@click.argument("file", type=click.Path())
@click.option("-o", "--output", metavar="OUT", help="Where the rows go: .npz, .csv or .tsv; - is csv on stdout.")
@reading_options(labels=False)
@jobs_option
@json_option
def command(artifact: str, file: str, output: str | None, reading: Reading, n_jobs: int | None, as_json: bool) -> None:
    """Give new rows calibrated probabilities and an accept/reject decision.

    ARTIFACT is what `metacal fit` saved; FILE holds logits of the same classifier, with or without labels. OUT has for
    each row its id (if FILE has ids), prediction (the reject label where rejected), accept, score (higher: less sure)
    and one probability per class.

    \b
    Examples:
      metacal apply cal.json new.npz -o out.csv
      metacal apply cal.json new.csv -o - | head
      metacal apply cal.json new.npz --json          only count: rows, accepted, coverage
    """  # noqa: D301
    _check_output(output, as_json)
    check_not_an_input(output, file, artifact)
    check_jobs(n_jobs)

    import metacal
    from metacal.cli.reading import read_for
    from metacal.io.writing import write_table

    estimator = metacal.load(artifact)
    if n_jobs is not None:
        estimator.set_params(n_jobs=n_jobs)
    found = read_for(estimator, artifact, file, reading)
    columns = _columns(estimator, found)
    if output is not None:
        write_table(output, columns, class_names=_names(estimator, found))
    summary: dict[str, Any] = {"file": file, "n": len(found)}
    if "accept" in columns:
        accepted = int(columns["accept"].sum())
        summary |= {"accepted": accepted, "coverage": accepted / len(found)}
    if as_json:
        say_json({**summary, "output": output})
    elif output != "-":
        gate = f", {summary['accepted']:,} accepted ({100 * summary['coverage']:.1f}%)" if "accepted" in summary else ""
        note(f"{len(found):,} rows{gate}; written to {output}.")


def _check_output(output: str | None, as_json: bool) -> None:
    if output is None and not as_json:
        raise click.UsageError("say where the rows go: -o out.csv, -o out.npz, or -o - for csv on stdout.")
    if output == "-" and as_json:
        raise click.UsageError("-o - and --json both want stdout; write the rows to a file.")
    if output not in (None, "-") and not str(output).lower().endswith((".npz", ".csv", ".tsv")):
        raise click.BadParameter(f"{output} must end in .npz, .csv or .tsv (or be -).", param_hint="'-o'")


def _columns(estimator: Any, found: Predictions) -> dict[str, Any]:
    from metacal.certificate import accepts

    columns: dict[str, Any] = {} if found.ids is None else {"id": found.ids.ravel()}
    columns["prediction"] = estimator.predict(found.table)
    if hasattr(estimator, "certificate_"):
        score = estimator.ranking_scores(found.table)
        columns |= {"accept": accepts(score, estimator.threshold_), "score": score}
    return columns | {"probs": estimator.predict_proba(found.table)}


def _names(estimator: Any, found: Predictions) -> Any:
    """The classes where they were named; else the names that FILE has for its columns."""
    return estimator.classes_.tolist() if estimator.classes is not None else found.class_names
