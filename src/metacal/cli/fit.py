"""metacal fit: from labelled predictions to a certificate and a saved gate."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from metacal.cli.options import (
    CALIBRATORS,
    SCORES,
    Reading,
    check_jobs,
    check_not_an_input,
    jobs_option,
    json_option,
    reading_options,
    share,
)
from metacal.cli.printing import note, say_json, wrapped

if TYPE_CHECKING:
    from metacal.io.predictions import Predictions
    from metacal.meta import MetaCal


@click.command()
@click.argument("file", type=click.Path())
@click.option(
    "--min-accuracy", type=share, metavar="B", help="Promise: what is accepted is right at least B of the time."
)
@click.option(
    "--max-miscoverage", type=share, metavar="A", help="Promise: at most A of the right answers are turned away."
)
@click.option(
    "--confidence", type=share, metavar="C", help="How surely, over the draw of the rows of FILE.  [default: 0.9]"
)
@click.option("--in-expectation", is_flag=True, help="Promise the average over calibration sets instead.")
@click.option("--score", type=click.Choice(SCORES), default="entropy", show_default=True, help="What ranks the rows.")
@click.option(
    "--calibrator",
    type=click.Choice(list(CALIBRATORS)),
    default="temperature",
    show_default=True,
    help="What turns the logits of accepted rows into probabilities.",
)
@click.option("--reject-label", metavar="LABEL", help="Prediction for rejected rows.  [default: -1, or 'rejected']")
@reading_options()
@jobs_option
@click.option("-o", "--output", type=click.Path(), metavar="JSON", help="Save the result here, for apply and evaluate.")
@json_option
def command(
    file: str,
    min_accuracy: float | None,
    max_miscoverage: float | None,
    confidence: float | None,
    in_expectation: bool,
    score: str,
    calibrator: str,
    reject_label: str | None,
    reading: Reading,
    n_jobs: int | None,
    output: str | None,
    as_json: bool,
) -> None:
    """Fit a calibrator and a gate that carries a written promise.

    FILE holds logits and true labels of rows that the classifier was not trained on: .npz (arrays logits, labels), .npy
    with --labels, or .csv / .tsv with a header, a column per class and a column label; - is csv on standard input.

    The certificate is printed: what is promised, how surely, from how many rows. -o saves gate and calibrator.

    \b
    Examples:
      metacal fit val.npz --min-accuracy 0.97 -o cal.json
      metacal fit val.csv --max-miscoverage 0.05 --confidence 0.95 -o cal.json
      metacal fit logits.npy --labels labels.txt --classes cat,dog,bird --min-accuracy 0.9
      metacal fit probs.npz --input probabilities --min-accuracy 0.97 --json
    """  # noqa: D301
    constraint = _promise(min_accuracy, max_miscoverage, confidence, in_expectation)
    check_not_an_input(output, file, reading.labels)
    check_jobs(n_jobs)

    import metacal
    from metacal.cli.reading import read

    found = read(file, reading)
    labels = found.require_labels()
    estimator = metacal.MetaCal(
        getattr(metacal, constraint[0])(*constraint[1:]),
        calibrator=getattr(metacal, CALIBRATORS[calibrator])(),
        score=score,
        reject_label=_reject_label(reject_label, found),
        input=found.input,
        classes=found.classes,
        n_jobs=n_jobs,
    ).fit(found.table, labels)
    if output is not None:
        metacal.save(estimator, output)
    base = _described(estimator)
    if as_json:
        answer = {"file": file, "certificate": estimator.certificate_.to_dict(), "calibrator": base, "saved": output}
        say_json(answer)
    else:
        numbers = ", ".join(f"{name.replace('_', ' ')} {value:.4g}" for name, value in base.items() if name != "kind")
        click.echo(wrapped(f"{estimator.certificate_}\n  calibrator   {base['kind']}, {numbers}"))
    if output is not None:
        note(f"Saved to {output}. Next: metacal evaluate TEST --with {output}")
    elif not as_json:
        note("Nothing was saved; -o cal.json saves the gate for metacal apply.")


def _promise(
    min_accuracy: float | None, max_miscoverage: float | None, confidence: float | None, in_expectation: bool
) -> tuple[str, float, float | None]:
    if (min_accuracy is None) == (max_miscoverage is None):
        raise click.UsageError(
            "give one promise, either --min-accuracy (say 0.97: what is accepted is right at least 97% of the time) or "
            "--max-miscoverage (say 0.05: at most 5% of the right answers are turned away)."
        )
    if confidence is not None and in_expectation:
        raise click.UsageError("--confidence and --in-expectation exclude each other; give one.")
    # 1 - 0.9 is 0.09999999999999998: say 0.1, as the user did.
    delta = None if in_expectation else round(1.0 - (0.9 if confidence is None else confidence), 12)
    if min_accuracy is not None:
        return "MinCoverageAccuracy", min_accuracy, delta
    assert max_miscoverage is not None
    return "MaxMiscoverage", max_miscoverage, delta


def _reject_label(text: str | None, found: Predictions) -> str | int:
    named = found.classes is not None and isinstance(found.classes[0], str)
    if named:
        return "rejected" if text is None else text
    try:
        return -1 if text is None else int(text)
    except ValueError:
        raise click.BadParameter(
            f"{text!r} must be a whole number, as the classes are.", param_hint="'--reject-label'"
        ) from None


def _described(estimator: MetaCal) -> dict[str, Any]:
    """The base calibrator's name and its numbers, as far as they are single numbers."""
    base = estimator.calibrator_
    numbers = {name: value for name, value in vars(base.map_).items() if isinstance(value, int | float)}
    if hasattr(base, "temperature_"):
        numbers = {"temperature": base.temperature_}
    return {"kind": type(base).__name__, **numbers}
