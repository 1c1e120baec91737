"""
Choosing between calibrators
============================

Temperature scaling is hard to beat by much. Whether another method is better on *your* rows is a
question for cross-validation, and ``mc.compare`` asks it: each calibrator is fitted on some folds
and measured on the others.
"""

# sphinx_gallery_thumbnail_path = "images/plots.png"

# %% The log loss decides: it is a proper score, lowest for the true probabilities. A low
# calibration error alone is not enough, since a method can have one and know nothing.

import metacal as mc

(logits, labels), (new_logits, new_labels) = mc.datasets.load("cifar10-resnet110").split(
    3000, random_state=0
)
found = mc.compare(
    logits, labels, ["temperature", "vector", "isotonic", "histogram", "spline"], n_repeats=1
)
print(found)

# %%
# **Rows that were not compared on** say the same: two of them are as good as each other, one is not.
# ``AutoCalibrator`` weighs several methods by cross-validation instead of picking one.

for calibrator in (mc.TemperatureScaling(), mc.VectorScaling(), mc.HistogramBinning()):
    proba = calibrator.fit(logits, labels).predict_proba(new_logits)
    loss, error = mc.metrics.nll(proba, new_labels), mc.metrics.ece(proba, new_labels)
    print(f"{type(calibrator).__name__:20} log loss {loss:.4f}, calibration error {error:.4f}")

# %%
# **Before and after**: the bars would touch the diagonal if every stated confidence were honest.

import matplotlib.pyplot as plt
from scipy.special import softmax

figure, axes = plt.subplots(1, 2, figsize=(10, 4.5), layout="constrained", sharey=True)
scaled = mc.TemperatureScaling().fit(logits, labels).predict_proba(new_logits)
for ax, title, proba in zip(
    axes, ("as it came", "temperature scaling"), (softmax(new_logits, axis=1), scaled)
):
    mc.plots.ReliabilityDisplay.from_predictions(new_labels, proba, ax=ax)
    ax.set_title(title)
plt.show()

# %%
# **In a gate** the calibrator only says how sure the accepted answers are. What is accepted is decided by the ranking
# score, so the choice of a calibrator cannot break the promise.

for calibrator in (mc.TemperatureScaling(), mc.SplineCalibration()):
    gate = mc.MetaCal(mc.MinAccuracy(0.97), calibrator=calibrator).fit(logits, labels)
    accepted = gate.accepts(new_logits).mean()
    print(
        f"{type(calibrator).__name__:20} threshold {gate.threshold_:.6f}, {accepted:.1%} accepted"
    )
