"""
Two classes with names
======================

"Of the findings that nobody looks at, because the model calls them benign, at least 95% are benign."
That is a precision. ``MinPrecision`` certifies it, in the words of your own labels.
"""

# %% A data frame, and labels that are names. A part of the rows is kept for the end.

from sklearn.datasets import load_breast_cancer
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import train_test_split
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

import metacal as mc

data = load_breast_cancer()
names = data.target_names[data.target]
X, X_new, y, y_new = train_test_split(data.data, names, test_size=150, random_state=0)
model = make_pipeline(StandardScaler(), LogisticRegression())

# %%
# **The promise names its class.** Rows that are not predicted benign go to review.

promise = mc.MinPrecision(0.95, positive="benign")
clf = mc.CalibratedClassifier(model, promise, holdout=0.5).fit(X, y)
print(clf.certificate_)

# %%
# On rows that the gate has not seen:

answers = clf.predict(X_new)
is_benign = y_new[answers == "benign"] == "benign"
print(f"{len(is_benign)} of {len(answers)} rows need no review; {is_benign.mean():.1%} are benign")

# %%
# **A promise that the rows do not support** is refused. The error has the best value that they do
# support, and about how many rows it would take.

try:
    mc.CalibratedClassifier(model, mc.MinPrecision(0.999, positive="benign")).fit(X, y)
except mc.InfeasibleTargetError as error:
    print(error)
    print(error.best, error.rows_needed)

# %%
# **Both sides at once**: what is called benign, what is called malignant, and review in between.

both = mc.TwoSided(promise, mc.MinPrecision(0.9, positive="malignant"))
triage = mc.CalibratedClassifier(model, both, holdout=0.5).fit(X, y)
print(triage.certificate_.statement)
print(triage.certificate_.condition)

# %%
# The log-odds of the classifier, and where each side begins:

import matplotlib.pyplot as plt
import numpy as np

logits = triage.logits(X_new)
log_odds = logits[:, 1] - logits[:, 0]
decision = triage.decide(X_new)
figure, ax = plt.subplots(figsize=(7, 3))
bins = np.linspace(log_odds.min(), log_odds.max(), 40)
for name in triage.classes_:
    ax.hist(log_odds[y_new == name], bins=bins, alpha=0.6, label=f"is {name}")
rejected = log_odds[~decision.accept]
if rejected.size:
    ax.axvspan(rejected.min(), rejected.max(), color="gray", alpha=0.3, label="review")
ax.set_xlabel(f"log-odds of {triage.classes_[1]}")
ax.legend()
plt.show()

# %%
# **Saved and exported**, the gate keeps the names: ``clf.save("gate.json")``, ``clf.export("gate.onnx")``.
# `Two classes <../two-classes.html>`_ has recall, false-positive rate, groups, and what was measured.
