"""
First gate in five minutes
==========================

From the logits of a trained classifier to a gate with a written promise: what is accepted is right
at least 97% of the time. Real logits that ship with metacal play your data; yours only have to be
rows that the classifier was not trained on.
"""

# sphinx_gallery_thumbnail_path = "images/report-headline.png"

# %%
# **The data**: one row of logits per item, one column per class, and the true labels. 5,000 rows to fit on, the
# others stay unseen.

import metacal as mc

(logits, labels), (new_logits, new_labels) = mc.datasets.load("cifar10-resnet110").split(
    5000, random_state=0
)
print(
    logits.shape,
    f"accuracy of the classifier {(new_logits.argmax(axis=1) == new_labels).mean():.3f}",
)

# %%
# **The promise**, fitted. The certificate says what is promised, how surely, from how many rows and under which
# assumptions.

gate = mc.MetaCal(mc.MinAccuracy(0.97)).fit(logits, labels)
gate.certificate_

# %%
# **Is it kept?** On rows that nobody has touched:

accept = gate.accepts(new_logits)
right = gate.predict(new_logits) == new_labels
print(f"{accept.mean():.1%} accepted, {right[accept].mean():.2%} of them right")

# %% ``predict`` says -1 where a person should look; ``predict_proba`` is calibrated for every row.

print(gate.predict(new_logits[:10]))
proba = gate.predict_proba(new_logits)
print(
    f"calibration error {mc.metrics.ece(proba, new_labels):.4f},"
    f" of accepted rows {mc.metrics.ece(proba[accept], new_labels[accept]):.4f}"
)

# %%
# **What these rows cannot carry** is an error that says what they can carry, and how many rows it would take.

try:
    mc.MetaCal(mc.MinAccuracy(0.995)).fit(logits[:500], labels[:500])
except mc.InfeasibleTargetError as error:
    print(error)

# %%
# **Saved**, it is a JSON file with numbers in it and no code; loaded, it decides the same, bit by bit.

import tempfile
from pathlib import Path

path = Path(tempfile.mkdtemp()) / "gate.json"
mc.save(gate, path)
assert (mc.load(path).accepts(new_logits) == accept).all()
print(f"{path.name}: {path.stat().st_size:,} bytes")
