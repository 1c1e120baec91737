"""
Fields of documents
===================

A model reads three fields of each document. A document with one wrong field costs as much as a document with three. So
the promise is about documents: at most 10% of the automated ones contain an error.
"""

# %% A table of confidences: each row is a document and each column a field. The fields differ in difficulty.

import matplotlib.pyplot as plt
import numpy as np

import metacal as mc

rng = np.random.default_rng(0)
FIELDS = ["company", "date", "total"]


def extract(n_documents):
    """Draw the confidence of each field of each document, and whether its value is correct."""
    log_odds = rng.normal([1.0, 4.0, 2.0], 2.0, size=(n_documents, len(FIELDS)))
    correct = rng.random(log_odds.shape) < 1 / (1 + np.exp(-log_odds))
    too_sure = np.array([2.0, 0.0, 0.5])  # the confidence of a company is too high
    return 1 / (1 + np.exp(-log_odds - too_sure)), correct


score, correct = extract(400)
new_score, new_correct = extract(5000)

# %%
# **The gate** has a threshold for each field.

promise = mc.MaxCaseErrors(0.1, among="automated")
gate = mc.ScoreGate(promise, score_name="confidence").fit(score, correct, groups=FIELDS)
print(gate.certificate_)

# %%
# **New documents**, and two constant thresholds for comparison:


def count_errors(accept):
    """Return the share of accepted fields, and of the automated documents with an error."""
    is_automated = accept.any(axis=1)
    has_error = (accept & ~new_correct).any(axis=1)
    return accept.mean(), has_error[is_automated].mean()


rules = {
    "metacal": gate.accepts(new_score, groups=FIELDS),
    "constant 0.7": new_score >= 0.7,
    "constant 0.85": new_score >= 0.85,
}
for name, accept in rules.items():
    accepted, errors = count_errors(accept)
    print(f"{name:13}  {accepted:.1%} of fields accepted, {errors:.1%} of documents with an error")

# %%
# All constant thresholds at once:

curve = np.array([count_errors(new_score >= threshold) for threshold in np.linspace(0.3, 0.95, 60)])
figure, ax = plt.subplots(figsize=(7, 3.2), layout="constrained")
ax.plot(*curve.T, color="gray", label="constant thresholds")
ax.plot(*count_errors(rules["metacal"]), "s", color="tab:blue", label="metacal")
ax.axhline(0.1, color="black", linestyle="--", label="promise")
ax.set(xlabel="share of fields accepted", ylabel="documents with an error")
ax.legend()
plt.show()

# %%
# `Fields of documents <../extraction.html>`_ has files, fields without a label, and measurements on real receipts.
