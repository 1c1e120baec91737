"""Does the exported gate decide as Python does? Every calibrator × score × precision on every row
of the real sets.

    python -m benchmarks.export.parity                    # all of it: about half an hour
    python -m benchmarks.export.parity --sets cifar10-resnet110 --json parity.json

For each real set (embedded, and those in benchmarks/data) each calibrator is fitted on 5,000 rows
and put behind a gate of each score; the exported graph runs in onnxruntime on all rows, in float32,
float16 and float64. Prints one line per calibrator and set: the largest difference of a
probability, and the number of rows that are decided differently.
"""

from __future__ import annotations

import argparse
import json
import warnings
from pathlib import Path

import numpy as np
import onnxruntime

import metacal as mc
from metacal.certificates.certificate import accept_up_to_threshold
from metacal.estimators import CALIBRATORS
from metacal.export.onnx import to_onnx
from metacal.scores import NAMED

DATA = Path(__file__).resolve().parents[1] / "data"
DTYPES = ("float32", "float16", "float64")
FIT_ROWS = 5_000
#: Given, not cross-validated, for the two that would take minutes on 100 classes.
GIVEN = {"matrix": {"regularisation": 1.0}, "dirichlet": {"regularisation": 1.0}}


def session(model):
    """The model in onnxruntime, on one thread."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    options.log_severity_level = 4
    return onnxruntime.InferenceSession(
        model.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )


def load(name):
    """The logits and labels of a real set."""
    return mc.datasets.load(name, folder=None if name in mc.datasets.names() else DATA)


def parity(name):
    """Yield one result per calibrator."""
    found = load(name)
    (fit_x, fit_y), _ = found.split(FIT_ROWS, random_state=0)
    tables = {dtype: found.logits.astype(dtype) for dtype in DTYPES}
    # The threshold of a miscoverage promise is itself a calibration score: the hardest case.
    gates = {
        score: mc.MetaCal(mc.MaxMiscoverage(0.05), score=score).fit(fit_x, fit_y) for score in NAMED
    }
    for kind, cls in CALIBRATORS.items():
        base = cls(**GIVEN.get(kind, {})).fit(fit_x, fit_y)
        worst, flips = 0.0, 0
        for dtype, table in tables.items():
            plain = base.predict_proba(table)
            for gate in gates.values():
                gate.calibrator_, gate.gate_ = base, gate.gate_.with_source(map=base.map_)
                probs, _, accept = session(to_onnx(gate, dtype=dtype)).run(None, {"logits": table})
                expected = accept_up_to_threshold(gate.ranking_scores(table), gate.threshold_)
                flips += int((accept != expected).sum())
                worst = max(worst, float(np.abs(probs - plain).max()))
        yield {
            "set": name,
            "calibrator": kind,
            "rows": len(found.labels),
            "largest_difference": worst,
            "flips": flips,
        }


def main():
    """Run the sets that are asked for."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    names = [*mc.datasets.names(), *mc.datasets.names(folder=DATA)]
    parser.add_argument("--sets", nargs="*", default=names, choices=names)
    parser.add_argument("--json", help="where the results go as JSON")
    arguments = parser.parse_args()
    warnings.simplefilter("ignore", mc.MetacalWarning)
    results = []
    for name in arguments.sets:
        for result in parity(name):
            results.append(result)
            print(
                f"{name:24} {result['calibrator']:22} {result['rows']:>6} rows: probabilities"
                f" within {result['largest_difference']:.1e}, {result['flips']} decided"
                " differently",
                flush=True,
            )
    if arguments.json:
        Path(arguments.json).write_text(
            json.dumps({"scores": len(NAMED), "rows": results}, indent=1) + "\n", encoding="utf-8"
        )


if __name__ == "__main__":
    main()
