"""A calibrated gate as an MLflow model, by models-from-code: the file is the model, nothing is
pickled.

Log it, with the artifact that `metacal.save` or `metacal fit` wrote:

    python examples/mlflow_model.py cal.json

and load it anywhere metacal is installed:

    gate = mlflow.pyfunc.load_model("runs:/<run>/gate")
    gate.predict(logits)                # float32, one row per item, one column per class

returns a table: `label` (what is accepted, or the reject label), `confidence` (the calibrated
probability of the predicted class), `score` (the ranking score, higher = less sure) and `accept`.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import mlflow
import numpy as np
import pandas as pd
from mlflow.models import ModelSignature, set_model
from mlflow.pyfunc import PythonModel
from mlflow.types import ColSpec, DataType, Schema, TensorSpec

import metacal as mc


class Gate(PythonModel):
    """The gate of one artifact."""

    def load_context(self, context: Any) -> None:
        """Read the artifact: JSON, audited before anything is built from it."""
        self.cal = mc.load(context.artifacts["calibrator"])

    def predict(
        self, context: Any, model_input: np.ndarray, params: dict[str, Any] | None = None
    ) -> pd.DataFrame:
        """Decide a batch of logits."""
        accept, probabilities = self.cal.accepts(model_input), self.cal.predict_proba(model_input)
        winner = np.asarray(model_input).argmax(axis=1)
        return pd.DataFrame(
            {
                "label": self.cal.predict(model_input),
                "confidence": probabilities[np.arange(len(winner)), winner].astype(np.float64),
                "score": self.cal.ranking_scores(model_input),
                "accept": accept,
            }
        )


def signature_of(cal: mc.MetaCal) -> ModelSignature:
    """float32 logits of K columns in; label, confidence, score and accept out."""
    kind = DataType.string if cal.classes_.dtype.kind == "U" else DataType.long
    kinds = {
        "label": kind,
        "confidence": DataType.double,
        "score": DataType.double,
        "accept": DataType.boolean,
    }
    return ModelSignature(
        inputs=Schema([TensorSpec(np.dtype(np.float32), (-1, len(cal.classes_)))]),
        outputs=Schema([ColSpec(kind, name) for name, kind in kinds.items()]),
    )


def settings(artifact: str | Path) -> dict[str, Any]:
    """What `mlflow.pyfunc.save_model` and `log_model` need for this artifact: the promise travels
    as metadata.
    """
    cal = mc.load(artifact)
    return {
        "python_model": __file__,
        "artifacts": {"calibrator": str(artifact)},
        "signature": signature_of(cal),
        "input_example": np.eye(1, len(cal.classes_), dtype=np.float32),
        "pip_requirements": [f"metacal=={mc.__version__}", "pandas"],
        "metadata": {
            "promise": cal.certificate_.statement,
            "certificate": cal.certificate_.to_dict(words=True),
        },
    }


set_model(Gate())

if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Log a calibrated gate to MLflow.")
    parser.add_argument("artifact", type=Path, help="the JSON file that metacal wrote")
    with mlflow.start_run():
        logged = mlflow.pyfunc.log_model(name="gate", **settings(parser.parse_args().artifact))
    print(logged.model_uri)
