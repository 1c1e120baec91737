"""What a model file says about its gate: the promise, the certificate, the classes, and what it was made from."""

from __future__ import annotations

import json
from typing import Any

from metacal import __version__
from metacal.errors import ArtifactError
from metacal.export.fitted import gate_of
from metacal.gate import Gate
from metacal.io.artifact.document import Content, document_of
from metacal.io.artifact.wrapping import checksum

#: All keys begin with this.
PREFIX = "metacal."


#: The input that a gate by group has besides the logits, and what it holds.
GROUP = "group"
GROUP_SAYS = "the place of each row's group in the list metacal.groups; any other number is rejected"


def metadata_of(cal: Any, fitted: Gate, outputs: dict[str, str], group: str = GROUP) -> dict[str, str]:
    """The metadata properties of an exported graph, as text. onnxruntime gives them back as `custom_metadata_map`.

    `fitted` is the gate as it is exported, which may read something else than `cal`. `metacal.artifact_hash` is the
    SHA-256 of the gate as `metacal.save` would write it, without its wrapping: the same however many threads an
    estimator was given; `metacal.thresholds` has those of the classes or groups, where each has its own,
    `metacal.groups` the groups' names in the order of their numbers, `metacal.group_input` the input that takes these;
    `metacal.data_hash` is that of the calibration rows, where the gate carries it.

    Examples
    --------
    >>> import metacal as mc
    >>> cal = mc.TemperatureScaling().fit([[2.0, 0.0], [0.0, 1.0], [0.5, 0.0]], [0, 1, 1])
    >>> from metacal.export.fitted import fitted_parts
    >>> found = metadata_of(cal, fitted_parts(cal), {"probs": "probs"})
    >>> found["metacal.calibrator"], found["metacal.classes"], "metacal.promise" in found
    ('TemperatureMap', '[0, 1]', False)
    """
    gate = gate_of(cal)
    found = {
        "version": __version__,
        "calibrator": type(fitted.map).__name__,
        "input": fitted.input,
        "classes": json.dumps(gate.classes.tolist()),
        "outputs": json.dumps(outputs),
    }
    artifact = _artifact_hash(gate)
    if artifact is not None:
        found["artifact_hash"] = artifact
    if fitted.certificate is not None:
        certificate = fitted.certificate.to_dict(words=True)
        found |= {
            "promise": fitted.certificate.statement,
            "certificate": json.dumps(certificate, allow_nan=False, sort_keys=True),
            "score": str(fitted.score),
            "threshold": repr(fitted.threshold),
            "reject_label": json.dumps(_plain(gate.reject_label)),
        }
    if fitted.thresholds is not None:
        own = fitted.thresholds
        values = [repr(value) for value in own.values]
        found["thresholds"] = json.dumps({"by": own.by, "names": list(own.names), "values": values})
        found |= {"groups": json.dumps(list(own.names)), "group_input": group} if fitted.by_group else {}
    if gate.data_hash is not None:
        found["data_hash"] = gate.data_hash
    return {PREFIX + name: text for name, text in found.items()}


def write_metadata(model: Any, properties: dict[str, str]) -> None:
    """Add properties to a model, in place of those of the same name."""
    kept = [entry for entry in model.metadata_props if entry.key not in properties]
    pairs = [(entry.key, entry.value) for entry in kept]
    del model.metadata_props[:]
    for key, value in [*pairs, *properties.items()]:
        entry = model.metadata_props.add()
        entry.key, entry.value = key, value


def _artifact_hash(gate: Gate) -> str | None:
    try:
        return checksum(document_of(Content(gate)))
    except ArtifactError:  # fitted inside a classifier, say: it works, but has no file
        return None


def _plain(label: Any) -> Any:
    return label.item() if hasattr(label, "item") else label
