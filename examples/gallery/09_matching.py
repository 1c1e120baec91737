"""
Record linkage
==============

A matcher scores pairs of records, and one pair in ten is a match. Merge the pairs with high scores, and promise that at least
90% of the merged pairs are matches.
"""

# %% Pairs with a score, of which 4,000 are labelled.

import matplotlib.pyplot as plt
import numpy as np

import metacal as mc

rng = np.random.default_rng(1)


def score_pairs(n_pairs):
    """Draw the score of each pair, and whether it is a match."""
    is_match = rng.random(n_pairs) < 0.1
    log_odds = rng.normal(size=n_pairs) + 3 * is_match - 2
    return 1 / (1 + np.exp(-log_odds)), is_match


score, is_match = score_pairs(4000)
new_score, new_is_match = score_pairs(20_000)

# %%
# **The gate.** Few pairs are matches, so it first reads the labels of the least certain pairs and rejects these pairs. It tests the
# others.

gate = mc.ScoreGate(mc.MinAccuracy(0.9)).fit(score, is_match)
print(gate.certificate_)

# %%
# **New pairs**, and two constant thresholds for comparison. A constant is too lax for one matcher and too strict for another.

accept = gate.accepts(new_score)
for name, merged in (
    ("certified", accept),
    ("constant 0.5", new_score >= 0.5),
    ("constant 0.85", new_score >= 0.85),
):
    accuracy, found = new_is_match[merged].mean(), merged[new_is_match].mean()
    print(
        f"{name:13}  {accuracy:.1%} of merged pairs are matches, {found:.1%} of matches are merged"
    )

# %%
# The accuracy of the merged pairs at every threshold:

order = np.argsort(-new_score)
accuracy = np.cumsum(new_is_match[order]) / np.arange(1, new_score.size + 1)
figure, ax = plt.subplots(figsize=(7, 3.2), layout="constrained")
ax.plot(new_score[order][50:], accuracy[50:], color="gray")
ax.axhline(0.9, color="black", linestyle="--", label="promised accuracy")
ax.axvline(new_score[accept].min(), color="tab:blue", label="certified threshold")
ax.set(xlabel="threshold of the score", ylabel="accuracy of merged pairs")
ax.legend()
plt.show()

# %%
# `Record linkage <../matching.html>`_ has the command line, and measurements on real pairs.
