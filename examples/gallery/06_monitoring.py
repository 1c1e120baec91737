"""
Monitoring a promise
====================

A certificate speaks about rows from the same source as the calibration rows. When the source
drifts, the promise may break without a word. ``PromiseMonitor`` weighs labelled traffic against it
and may be looked at after every row: while the promise is kept, it *ever* raises an alarm with
probability at most ``delta``.
"""

# sphinx_gallery_thumbnail_path = "images/monitor-live.png"

# %% A gate in use. Its traffic is fine for 4,000 rows; then the logits become noisy, as after a
# change of camera.

import numpy as np

import metacal as mc

(logits, labels), (stream, truth) = mc.datasets.load("cifar10-resnet110").split(
    5000, random_state=0
)
gate = mc.MetaCal(mc.MinAccuracy(0.97)).fit(logits, labels)
rng = np.random.default_rng(0)
stream = stream[:6000].copy()
stream[4000:] += rng.normal(scale=8.0, size=stream[4000:].shape)
accepted = gate.accepts(stream)
correct = stream.argmax(axis=1) == truth[:6000]
for name, rows in (("before", slice(0, 4000)), ("after", slice(4000, None))):
    print(
        f"{name:7} {correct[rows][accepted[rows]].mean():.3f} of the accepted right; promised 0.97"
    )

# %%
# **The watch**: one monitor per promise, fed as labels come in, here fifty rows at a time.

(monitor,) = mc.PromiseMonitor.of(gate.certificate_, delta=0.05)
seen, evidence, alarm = [], [], None
for start in range(0, 6000, 50):
    rows = slice(start, start + 50)
    monitor.update(accepted[rows], correct[rows])
    seen.append(start + 50)
    evidence.append(monitor.log_evidence / np.log(10))
    alarm = alarm or (seen[-1] if monitor.alarm else None)
print(monitor)
print(f"alarm after {alarm:,} rows, {alarm - 4000} rows after the change")

# %%
# The evidence stays low while the promise is kept, and grows with every wrong answer too many.

import matplotlib.pyplot as plt

figure, ax = plt.subplots(figsize=(8, 3.6), layout="constrained")
ax.plot(seen, evidence)
ax.axhline(
    np.log10(1 / 0.05), color="C3", linestyle="--", label="alarm, at a false-alarm rate of 5%"
)
ax.axvline(4000, color="0.6", linestyle=":", label="the change")
ax.set(xlabel="labelled rows", ylabel="evidence against the promise, log10", ylim=(-3, 6))
ax.legend()
plt.show()

# %%
# **Once, not all the time**: ``mc.verify`` is the exact test for a batch of labelled rows.

print(mc.verify(gate, stream[4000:], truth[4000:6000]))
