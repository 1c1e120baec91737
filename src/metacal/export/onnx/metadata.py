"""Metadata properties of an exported graph.

onnxruntime returns them as `custom_metadata_map`. All keys begin with "metacal.".
"""

from __future__ import annotations

import json
from contextlib import suppress
from typing import Any

from metacal import __version__
from metacal.errors import ArtifactError
from metacal.export.onnx.graph import onnx_library
from metacal.gate import Gate, ScoreSource, Stage
from metacal.io.artifact.document import Content, encode_document
from metacal.io.artifact.wrapping import checksum

#: Prefix of all keys.
PREFIX = "metacal."


def gate_metadata(
    gate: Gate, exported: Gate, outputs: dict[str, str], group: str | None = None
) -> dict[str, str]:
    """Return the metadata properties of an exported gate.

    Parameters
    ----------
    gate : Gate
        Fitted gate.

    exported : Gate
        The gate as it is exported. It may read another input.

    outputs : dict of str to str
        Names of the gate's outputs in the graph, by their usual name.

    group : str or None, default=None
        Name of the input with the group of each row.

    Returns
    -------
    dict of str to str
        Among others:

        - `metacal.artifact_hash`: SHA-256 of the document that `metacal.save` would write, which
          does not depend on the number of threads of the estimator;
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
    >>> properties = gate_metadata(gate, gate, {"probs": "probs"})
    >>> properties["metacal.calibrator"], properties["metacal.classes"]
    ('TemperatureMap', '[0, 1]')
    >>> "metacal.promise" in properties
    False
    """
    properties: dict[str, str | None] = {
        "version": __version__,
        "outputs": json.dumps(outputs),
        "data_hash": gate.data_hash,
    }
    # A gate inside a classifier may contain a calibrator that cannot be saved.
    with suppress(ArtifactError):
        properties["artifact_hash"] = checksum(encode_document(Content(gate)))
    properties |= _stages_metadata(exported)
    if exported.has_classes:
        properties["classes"] = json.dumps(gate.classes.tolist())
    properties |= _promise_metadata(gate, exported)
    properties |= _thresholds_metadata(exported, group)
    return {PREFIX + name: text for name, text in properties.items() if text is not None}


def _stages_metadata(exported: Gate) -> dict[str, str]:
    """Return the properties of all stages, those of later ones with the name of the stage."""
    properties = {}
    for index, stage in enumerate(exported.stages):
        prefix = "" if index == 0 else f"{stage.name}_"
        for name, text in _stage_metadata(stage).items():
            properties[prefix + name] = text
    if exported.is_cascade:
        stage_names = [stage.name for stage in exported.stages]
        properties["kind"] = "Cascade"
        properties["answered_by"] = json.dumps([*stage_names, "person"])
    return properties


def _stage_metadata(stage: Stage) -> dict[str, str]:
    """Return the properties of one stage."""
    source = stage.source
    properties = {"score": str(source.score), "threshold": repr(stage.thresholds.threshold)}
    if isinstance(source, ScoreSource):
        properties["input"] = "scores"
        properties["higher_is"] = source.higher_is
    else:
        properties["input"] = source.input
        properties["calibrator"] = type(source.map).__name__
    return properties


def _promise_metadata(gate: Gate, exported: Gate) -> dict[str, str | None]:
    """Return the properties of the promise; without one, remove score and threshold."""
    certificate = exported.certificate
    if certificate is None:
        return {"score": None, "threshold": None}
    properties: dict[str, str | None] = {
        "promise": certificate.statement,
        "certificate": json.dumps(certificate.to_dict(), allow_nan=False, sort_keys=True),
    }
    if exported.has_classes:
        label = gate.reject_label
        if hasattr(label, "item"):
            label = label.item()
        properties["reject_label"] = json.dumps(label)
    return properties


def _thresholds_metadata(exported: Gate, group: str | None) -> dict[str, str]:
    """Return the properties of the thresholds of classes or groups, if there are any."""
    thresholds = exported.subgroup_thresholds
    if thresholds is None:
        return {}
    names = list(thresholds.names)
    values: list[Any] = []
    for value in thresholds.values:
        # A group of two classes has a threshold for each predicted class.
        values.append([repr(side) for side in value] if isinstance(value, tuple) else repr(value))
    description: dict[str, Any] = {"by": thresholds.subgroup_kind, "names": names, "values": values}
    if thresholds.decision_offsets:
        description["at"] = [repr(offset) for offset in thresholds.decision_offsets]
    properties = {"thresholds": json.dumps(description)}
    if group is not None:
        properties["groups"] = json.dumps(names)
        properties["group_input"] = group
    return properties


def write_metadata(model: Any, properties: dict[str, str]) -> None:
    """Add properties to a model, and replace those with the same key."""
    existing_properties = {entry.key: entry.value for entry in model.metadata_props}
    helper = onnx_library("ONNX export").helper
    helper.set_model_props(model, existing_properties | properties)
