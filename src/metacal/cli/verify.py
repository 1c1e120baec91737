"""`metacal verify`: an exact test of the promise on labelled rows."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import click

from metacal.cli.options import as_command, column_option, option, option_group
from metacal.cli.printing import EXIT_NOT_SUPPORTED, EXIT_REFUTED, print_result, wrap_lines
from metacal.cli.read_options import ReadOptions
from metacal.cli.values import build_number_parser

if TYPE_CHECKING:
    from metacal.cli.gate_rows import GateRows
    from metacal.gate import Gate
    from metacal.promises.verification import Verification

parse_confidence = build_number_parser(
    0.5,
    1.0,
    "one above 0.5, such as 0.95",
    "is not above 0.5 and below 1",
)


@dataclass(frozen=True)
class Options:
    """Options of `metacal verify`."""

    confidence: float = option(
        "Confidence level of the interval.",
        "C",
        type=parse_confidence,
        default=0.95,
    )
    unit_key: str | None = column_option("Column of clusters of dependent rows.")
    reading: ReadOptions = option_group(ReadOptions)


@as_command(Options, "GATE", "FILE", has_help_sections=True)
def command(artifact: str, file: str, options: Options) -> None:
    """Test on new labelled rows whether a gate still keeps its promise.

    GATE was saved by 'metacal fit'. FILE holds logits and true labels of rows that neither the
    classifier nor 'metacal fit' has seen, for example those of last week. The verdict is kept if
    the estimate meets the target, undecided if it does not but the interval includes the target,
    and refuted if the whole interval misses the target. The promise is not judged if FILE holds
    rows of the fit.

    The exit code is 0 if the promise is kept or undecided, 1 if it is not judged, and 3 if it is
    refuted. For a cascade, pass the large model's file with --large.

    \b
    Examples:
      metacal verify cal.json lastweek.npz
      metacal verify cal.json lastweek.csv --confidence 0.99 --json
      metacal verify cal.json lastweek.parquet --unit-key patient
    """  # noqa: D301
    from metacal.cli.gate_rows import read_gate_rows
    from metacal.cli.reading import load_gate

    gate = load_gate(artifact, file)
    if gate.certificate is None:
        raise click.UsageError(
            f"{artifact} holds {gate.logits_source.calibrator_name} without a gate, so it has no"
            " promise to verify. To measure its calibration, run 'metacal evaluate'."
        )
    reading = replace(options.reading, unit_key=options.unit_key)
    gate_rows = read_gate_rows(gate, artifact, file, reading)
    verification = _verify_rows(gate, artifact, gate_rows, options.confidence)

    json_content = {"file": file, "artifact": artifact, **verification.to_dict()}
    if reading.large is not None:
        json_content["large"] = reading.large
    print_result(json_content, wrap_lines(verification.text(f" of {file} through {artifact}")))
    if verification.refuted:
        click.get_current_context().exit(EXIT_REFUTED)
    # Rows of the fit cannot judge the promise.
    includes_fit_rows = verification.verdict.fit_rows is not None
    if includes_fit_rows:
        click.get_current_context().exit(EXIT_NOT_SUPPORTED)


def _verify_rows(gate: Gate, artifact: str, gate_rows: GateRows, confidence: float) -> Verification:
    """Test the promise of a gate on labelled rows.

    Parameters
    ----------
    gate : Gate
        Gate with a certificate.
    artifact : str
        Name of its file in messages.
    gate_rows : GateRows
        Rows to test on.
    confidence : float
        Confidence level of the intervals.

    Returns
    -------
    Verification
    """
    from metacal.certification.units import Units
    from metacal.estimators.verify import verify_cases
    from metacal.gate.judged import judge_rows
    from metacal.gate.judged_cases import check_case_columns, is_about_cases, judge_case_rows
    from metacal.promises.verification import verify_decisions

    assert gate.certificate is not None
    columns = gate_rows.columns
    needs_labels = any(quantity.needs_labels for quantity, _ in gate.certificate.limits)
    truth = gate_rows.require_truth() if needs_labels else gate_rows.truth
    if is_about_cases(gate) or columns.cases is not None:
        check_case_columns(gate, columns.units)
        judged_cases = judge_case_rows(
            gate, gate_rows.tables[0], truth, columns.cases, columns.groups
        )
        gate_rows.warn_of_fit_rows(judged_cases.fit_rows, artifact)
        return verify_cases(gate.certificate, judged_cases, confidence)
    decisions = judge_rows(gate, gate_rows.tables, truth, columns.groups)
    gate_rows.note_rows_without_score(len(decisions) + gate_rows.count_unlabelled_rows_with_score())
    gate_rows.warn_of_fit_rows(decisions.fit_rows, artifact)
    clusters_of_judged_rows: Units | None = None
    if columns.units is not None:
        clusters = Units(columns.units)
        clusters_of_judged_rows = clusters.take(decisions.row_indices, len(columns))
    return verify_decisions(
        gate.certificate,
        decisions.accept,
        decisions.correct,
        confidence,
        losses=decisions.losses,
        row_subgroups=decisions.row_subgroups,
        units=clusters_of_judged_rows,
        overlap_with_fit=decisions.fit_rows,
    )
