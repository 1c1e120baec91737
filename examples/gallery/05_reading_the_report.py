"""
Reading the report
==================

``metacal report`` and ``mc.report`` write one page that opens without a network: the promise,
whether it is kept, and the numbers behind it. This is how to read it, and how to have its numbers
in Python.
"""

# sphinx_gallery_thumbnail_path = "images/report-reliability.png"

# %%
# The page of a gate on 10,000 rows that it has not seen.

import tempfile
from pathlib import Path

import metacal as mc

(logits, labels), (new_logits, new_labels) = mc.datasets.load("cifar10-resnet110").split(
    5000, random_state=0
)
gate = mc.MetaCal(mc.MinAccuracy(0.97)).fit(logits, labels)
page = Path(tempfile.mkdtemp()) / "report.html"
mc.report(gate, new_logits, new_labels, page, title="Gate for release 7", n_resamples=50)

# sphinx_gallery_start_ignore
import os
import shutil

if "METACAL_EXAMPLE_PAGES" in os.environ:  # the site keeps it, to be opened from this example
    shutil.copy(page, os.environ["METACAL_EXAMPLE_PAGES"])
# sphinx_gallery_end_ignore
print(f"{page.name}: {page.stat().st_size / 1000:.0f} kB")

# %%
# .. raw:: html
#
#    <p><a href="../report.html">Open the very page that this example wrote</a>: drag the point on its curves.</p>
#
# **The headline** is the verdict. *Kept*: what was measured keeps the promise. *Undecided*: it misses it, but the
# interval includes the target. *Refuted*: the whole interval lies on the wrong side. The same in Python:

from metacal.reports.summary import summarise

summary = summarise(new_logits, new_labels, gate, n_resamples=0)
print(summary.promise.verdicts[0]["text"])

# %%
# **Where to put the threshold.** Every threshold is a trade: accept more, and more of it is wrong. The band holds at
# all thresholds at once, so a point may be picked after looking, if it is then certified with ``--after-looking``.

import matplotlib.pyplot as plt

figure, axes = plt.subplots(1, 2, figsize=(11, 4.5), layout="constrained")
mc.plots.RiskCoverageDisplay(summary).plot(axes[0])
mc.plots.ThresholdDisplay(summary).plot(axes[1])
plt.show()

# %%
# **Is the stated confidence honest?** Among answers given with confidence 0.8 about 80% should be right; bars off the
# diagonal are not. With a gate this is about the accepted rows.

mc.plots.ReliabilityDisplay(summary).plot()
plt.show()

# %%
# **Class by class.** The promise is about all rows together. Who pays for it? The share of right answers that are
# rejected, by class:

import numpy as np

accept, right = gate.accepts(new_logits), new_logits.argmax(axis=1) == new_labels
lost = [(~accept & right)[new_labels == k].sum() / right[new_labels == k].sum() for k in range(10)]
worst, best = int(np.argmax(lost)), int(np.argmin(lost))
print(f"most: {lost[worst]:.1%} in class {worst}; least: {lost[best]:.1%} in class {best}")

# %%
# If that is too uneven, ask for the promise class by class:

each = mc.MetaCal(mc.PerClass(mc.MinAccuracy(0.95))).fit(logits, labels)
print(each.certificate_.statement)
