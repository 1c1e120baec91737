"""Metadata properties of an exported graph.

onnxruntime returns them as `custom_metadata_map`. All keys begin with "metacal.".
"""

from __future__ import annotations

import json
from contextlib import suppress
from typing import Any

from metacal import __version__
from metacal.certificates.certificate import Certificate
from metacal.errors import ArtifactError
from metacal.export.onnx.gate import AttachedGate
from metacal.export.onnx.graph import import_onnx
from metacal.gate import Gate, ScoreSource, Stage
from metacal.gate.thresholds import SubgroupThresholds
from metacal.io.artifact.document import SavedContent, encode_document
from metacal.io.artifact.wrapping import checksum

#: Prefix of all metadata keys that metacal writes.
METADATA_PREFIX = "metacal."


def gate_metadata(fitted_gate: Gate, gate_model: AttachedGate) -> dict[str, str]:
    """Return the metadata properties of an exported gate.

    Parameters
    ----------
    fitted_gate : Gate
        Gate as it was fitted.

    gate_model : AttachedGate
        Gate as it is exported. It may read probabilities instead of logits.

    Returns
    -------
    dict of str to str
        Among others:

        - `metacal.artifact_hash`: SHA-256 of the document that `metacal.save` would write, which
          does not depend on the number of threads of the estimator;
        - `metacal.rejected`: probabilities of rejected rows, "calibrated" or "uniform";
        - `metacal.data_hash`: SHA-256 of the calibration rows, if the gate contains it;
        - `metacal.thresholds`: thresholds of classes or groups, if each has its own;
        - `metacal.groups`: names of the groups in the order of their indices;
        - `metacal.group_input`: name of the input with these indices.

        The keys of a later stage of a cascade begin with its name, for example
        `metacal.large_threshold`.

    Examples
    --------
    >>> import metacal as mc
    >>> gate = mc.TemperatureScaling().fit([[2.0, 0.0], [0.0, 1.0], [0.5, 0.0]], [0, 1, 1]).gate_
    >>> exported = AttachedGate(None, gate, ("logits",), {"probs": "probs"}, "calibrated")
    >>> properties = gate_metadata(gate, exported)
    >>> properties["metacal.calibrator"], properties["metacal.classes"]
    ('TemperatureMap', '[0, 1]')
    >>> "metacal.promise" in properties
    False
    """
    exported_gate = gate_model.gate
    properties = {"version": __version__, "outputs": json.dumps(gate_model.output_names)}
    if fitted_gate.data_hash is not None:
        properties["data_hash"] = fitted_gate.data_hash
    # A gate inside a classifier may contain a calibrator that cannot be saved.
    with suppress(ArtifactError):
        properties["artifact_hash"] = checksum(encode_document(SavedContent(fitted_gate)))
    properties |= _stages_metadata(exported_gate)
    if exported_gate.certificate is None:
        # The graph of a gate without a promise has only the output `probs`.
        del properties["score"]
        del properties["threshold"]
    if exported_gate.has_classes:
        properties["classes"] = json.dumps(fitted_gate.classes.tolist())
    if exported_gate.certificate is not None:
        properties |= _certificate_metadata(exported_gate.certificate)
        if exported_gate.has_classes:
            properties["reject_label"] = _encode_label(fitted_gate.reject_label)
            properties["rejected"] = gate_model.rejected
    if exported_gate.subgroup_thresholds is not None:
        properties |= _thresholds_metadata(
            exported_gate.subgroup_thresholds, gate_model.group_input_name
        )
    return {METADATA_PREFIX + name: text for name, text in properties.items()}


def _stages_metadata(gate: Gate) -> dict[str, str]:
    """Return the metadata of all stages, prefixed by the stage name after the first."""
    gate_properties = {}
    for stage_index, stage in enumerate(gate.stages):
        is_first_stage = stage_index == 0
        name_prefix = "" if is_first_stage else f"{stage.name}_"
        for property_name, text in _stage_metadata(stage).items():
            gate_properties[name_prefix + property_name] = text
    if gate.is_cascade:
        stage_names = [stage.name for stage in gate.stages]
        gate_properties["kind"] = "Cascade"
        gate_properties["answered_by"] = json.dumps([*stage_names, "person"])
    return gate_properties


def _stage_metadata(stage: Stage) -> dict[str, str]:
    """Return the score, threshold and input of one stage as metadata."""
    source = stage.source
    stage_properties = {"score": str(source.score), "threshold": repr(stage.thresholds.threshold)}
    if isinstance(source, ScoreSource):
        stage_properties["input"] = "scores"
        stage_properties["higher_is"] = source.higher_is
    else:
        stage_properties["input"] = source.input
        stage_properties["calibrator"] = type(source.map).__name__
    return stage_properties


def _certificate_metadata(certificate: Certificate) -> dict[str, str]:
    """Return the promise in words and the certificate as JSON."""
    return {
        "promise": certificate.statement,
        "certificate": json.dumps(certificate.to_dict(), allow_nan=False, sort_keys=True),
    }


def _encode_label(label: Any) -> str:
    """Encode a class label, which may be a NumPy scalar, as JSON."""
    if hasattr(label, "item"):
        label = label.item()
    return json.dumps(label)


def _thresholds_metadata(
    thresholds: SubgroupThresholds, group_input_name: str | None
) -> dict[str, str]:
    """Return the thresholds of predicted classes or groups as metadata."""
    subgroup_names = list(thresholds.subgroup_names)
    encoded_thresholds: list[str | list[str]] = []
    for threshold in thresholds.subgroup_thresholds:
        if isinstance(threshold, tuple):
            # In two-class problems, a group can have one threshold per predicted class.
            encoded_thresholds.append([repr(class_threshold) for class_threshold in threshold])
        else:
            encoded_thresholds.append(repr(threshold))
    description: dict[str, Any] = {
        "by": thresholds.subgroup_kind,
        "names": subgroup_names,
        "values": encoded_thresholds,
    }
    if thresholds.group_decision_offsets:
        description["at"] = [repr(offset) for offset in thresholds.group_decision_offsets]
    threshold_properties = {"thresholds": json.dumps(description)}
    if group_input_name is not None:
        threshold_properties["groups"] = json.dumps(subgroup_names)
        threshold_properties["group_input"] = group_input_name
    return threshold_properties


def write_metadata(model: Any, properties: dict[str, str]) -> None:
    """Add metadata properties to a model, and replace properties of equal key."""
    existing_properties = {entry.key: entry.value for entry in model.metadata_props}
    helper = import_onnx("ONNX export").helper
    helper.set_model_props(model, existing_properties | properties)
