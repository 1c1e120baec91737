"""Text that `metacal fit` prints about a fitted gate."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from metacal.cli.printing import N_FORECAST_ROWS, print_result, wrap_lines
from metacal.cli.show import format_class_list, format_confidence_line

if TYPE_CHECKING:
    from metacal.gate import Gate


def print_certificate(gate: Gate, call_description: dict[str, Any], *, is_signed: bool) -> None:
    """Print the certificate and a description of the gate.

    Parameters
    ----------
    gate : Gate
        Fitted gate.
    call_description : dict
        Files of the call and number of rows, the first entries of the JSON result.
    is_signed : bool
        Whether the saved gate is signed.
    """
    assert gate.certificate is not None
    json_content = dict(call_description)
    # How many of the next rows the gate will accept, and how many of these are incorrect.
    forecast = gate.certificate.next_rows(N_FORECAST_ROWS)
    text_lines = [str(gate.certificate), f"  expect       {forecast}"]
    if gate.has_classes:
        calibrator = _describe_calibrator(gate)
        json_content |= {"n_classes": gate.n_classes, "calibrator": calibrator}
        text_lines.append(f"  classes      {gate.n_classes:,}{format_class_list(gate)}")
        text_lines.append(_format_calibrator_line(calibrator))
    else:
        json_content["accept_if"] = gate.condition
        text_lines.append(format_confidence_line(gate))
    json_content |= {
        "certificate": gate.certificate.to_dict(words=True),
        "next_rows": forecast.to_dict(),
        "signed": is_signed,
    }
    print_result(json_content, wrap_lines("\n".join(text_lines)))


def _format_calibrator_line(calibrator: dict[str, Any]) -> str:
    """Return the line with the name and the main parameters of the calibrator."""
    descriptions = [calibrator["kind"]]
    for name, value in calibrator.items():
        if name in ("temperature", "uniform"):
            descriptions.append(f"{name.replace('_', ' ')} {value:.4g}")
    return f"  calibrator   {', '.join(descriptions)}"


def _describe_calibrator(gate: Gate) -> dict[str, Any]:
    """Return the name and the numeric parameters of the calibrator as JSON types."""
    from metacal.maps.map import find_component_maps
    from metacal.maps.temperature import TemperatureMap
    from metacal.maps.uniform import UniformTemperatureMap

    assert gate.logits_source.recipe is not None
    calibration_map = gate.logits_source.map
    numeric_parameters = {
        name: value
        for name, value in vars(calibration_map).items()
        if isinstance(value, int | float)
    }
    # A temperature says more than the other parameters, so it replaces them.
    for temperature_map in (calibration_map, *find_component_maps(calibration_map)):
        if isinstance(temperature_map, TemperatureMap | UniformTemperatureMap):
            numeric_parameters = {"temperature": temperature_map.temperature}
        if isinstance(temperature_map, UniformTemperatureMap):
            numeric_parameters["uniform"] = temperature_map.uniform
    estimator_name = gate.logits_source.recipe.estimator
    return {"kind": estimator_name, **numeric_parameters}
