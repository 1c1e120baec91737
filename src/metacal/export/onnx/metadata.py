"""What a model file says about its gate: the promise, the certificate, the classes, and what it was made from."""

from __future__ import annotations

import json
from contextlib import suppress
from typing import Any

from metacal import __version__
from metacal.errors import ArtifactError
from metacal.gate import Gate, Stage
from metacal.io.artifact.document import Content, document_of
from metacal.io.artifact.wrapping import checksum

#: All keys begin with this.
PREFIX = "metacal."


def metadata_of(gate: Gate, exported: Gate, outputs: dict[str, str], group: str | None = None) -> dict[str, str]:
    """The metadata properties of an exported graph, as text. onnxruntime gives them back as `custom_metadata_map`.

    `exported` is the gate as it is exported, which may read something else. `metacal.artifact_hash` is the SHA-256 of
    the gate as `metacal.save` would write it, without its wrapping: the same however many threads an estimator was
    given; `metacal.thresholds` has those of the classes or groups, where each has its own, `metacal.groups` the groups'
    names in the order of their numbers, `metacal.group_input` the input that takes these; `metacal.data_hash` is that
    of the calibration rows, where the gate carries it. What belongs to a later stage of a cascade begins with its name:
    `metacal.large_threshold`.

    Examples
    --------
    >>> import metacal as mc
    >>> gate = mc.TemperatureScaling().fit([[2.0, 0.0], [0.0, 1.0], [0.5, 0.0]], [0, 1, 1]).gate_
    >>> properties = metadata_of(gate, gate, {"probs": "probs"})
    >>> properties["metacal.calibrator"], properties["metacal.classes"], "metacal.promise" in properties
    ('TemperatureMap', '[0, 1]', False)
    """
    certificate, own = exported.certificate, exported.thresholds
    known = {
        "version": __version__,
        "outputs": json.dumps(outputs),
        "data_hash": gate.data_hash,
    }
    with suppress(ArtifactError):  # fitted inside a classifier, say: it works, but has no file
        known["artifact_hash"] = checksum(document_of(Content(gate)))
    for number, stage in enumerate(exported.stages):
        known |= {(f"{stage.name}_" if number else "") + name: text for name, text in _of_stage(stage).items()}
    if len(exported.stages) > 1:
        known |= {"kind": "Cascade", "answered_by": json.dumps([*(stage.name for stage in exported.stages), "person"])}
    if exported.n_classes:
        known["classes"] = json.dumps(gate.classes.tolist())
    if certificate is None:
        known |= {"score": None, "threshold": None}
    else:
        label = gate.reject_label
        known["promise"] = certificate.statement
        known["certificate"] = json.dumps(certificate.to_dict(words=True), allow_nan=False, sort_keys=True)
        if exported.n_classes:
            known["reject_label"] = json.dumps(label.item() if hasattr(label, "item") else label)
    if own is not None:
        values = [repr(value) for value in own.values]
        known["thresholds"] = json.dumps({"by": own.by, "names": list(own.names), "values": values})
        known |= {"groups": json.dumps(list(own.names)), "group_input": group} if group is not None else {}
    return {PREFIX + name: text for name, text in known.items() if text is not None}


def _of_stage(stage: Stage) -> dict[str, str]:
    source: Any = stage.source
    known = {"score": str(source.score), "threshold": repr(stage.policy.threshold)}
    if source.kind == "scores":
        return known | {"input": "scores", "higher_is": source.higher_is}
    return known | {"input": source.input, "calibrator": type(source.map).__name__}


def write_metadata(model: Any, properties: dict[str, str]) -> None:
    """Add properties to a model, in place of those of the same name."""
    kept = {entry.key: entry.value for entry in model.metadata_props}
    del model.metadata_props[:]
    for key, value in (kept | properties).items():
        model.metadata_props.add(key=key, value=value)
