"""
A scikit-learn pipeline
=======================

``CalibratedClassifier`` puts calibration and a gate around any classifier. You never touch logits:
features go in, answers come out, and some of them are "ask a person".
"""

# sphinx_gallery_thumbnail_path = "images/report-classes.png"

# %% An ordinary pipeline. Part of the rows fit it, the rest certify: ``holdout=0.3`` of what
# ``fit`` gets.

from sklearn.datasets import load_digits
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import train_test_split
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

import metacal as mc

X, X_new, y, y_new = train_test_split(*load_digits(return_X_y=True), test_size=500, random_state=0)
model = make_pipeline(StandardScaler(), LogisticRegression(C=0.01))
gate = mc.CalibratedClassifier(model, mc.MinAccuracy(0.97)).fit(X, y)
print(gate.certificate_)

# %%
# Accepted answers and the rest:

accept = gate.accepts(X_new)
answers = gate.predict(X_new)
print(f"all      {(gate.estimator_.predict(X_new) == y_new).mean():.3f} right")
print(f"accepted {(answers == y_new)[accept].mean():.3f} right, {accept.mean():.1%} of the rows")
print(f"answers  {answers[:15]}")

# %%
# **What a person has to look at**: the rejected digits, the least sure first.

import matplotlib.pyplot as plt
import numpy as np

doubtful = np.flatnonzero(~accept)[:8]
figure, axes = plt.subplots(1, 8, figsize=(10, 1.6))
for ax, row in zip(axes, doubtful):
    ax.imshow(X_new[row].reshape(8, 8), cmap="gray_r")
    ax.set_title(f"is a {y_new[row]}", fontsize=9)
    ax.axis("off")
plt.show()

# %%
# **It is an estimator** like any other: ``clone``, ``get_params``, searches. Here a search over the penalty asks
# which classifier accepts most *under one promise*, by cross-validation.

from sklearn.model_selection import GridSearchCV

from metacal.estimators.classifier import coverage

search = GridSearchCV(
    mc.CalibratedClassifier(model, mc.MaxMiscoverage(0.1)),
    {"estimator__logisticregression__C": [0.001, 0.01, 0.1]},
    scoring=coverage,
    cv=3,
).fit(X, y)
for setting, share in zip(search.cv_results_["params"], search.cv_results_["mean_test_score"]):
    print(f"C = {setting['estimator__logisticregression__C']:<6} accepts {share:.3f}")
