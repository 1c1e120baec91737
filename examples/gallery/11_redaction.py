"""
Redaction
=========

A tagger scores the words of texts. Mask words so that in at least 90% of the texts with a name, every name is masked.
"""

# %% Words with a score. The tagger proposes no candidate for one name in a hundred: its score is NaN.

import matplotlib.pyplot as plt
import numpy as np

import metacal as mc

rng = np.random.default_rng(0)


def tag(n_texts, missed=0.01):
    """Draw words: the text of each, its score, and whether it is a name."""
    text = np.repeat(np.arange(n_texts), 12)
    is_name = rng.random(text.size) < 0.1
    score = rng.normal(size=text.size) + 3.5 * is_name
    score[is_name & (rng.random(text.size) < missed)] = np.nan
    return text, score, is_name


text, score, is_name = tag(600)
new_text, new_score, new_is_name = tag(5000)

# %%
# **The gate** accepts the words that are masked. A name without a candidate counts as missed.

gate = mc.ScoreGate(mc.MinCaseRecall(0.9)).fit(score, is_name, cases=text)
print(gate.certificate_)

# %%
# **New texts.** To find most of the *names* is not enough, because a text with several of them leaks if one is missed.


def measure(masked):
    """Return the share of names masked, of texts that leak one, and of harmless words masked."""
    leaking = np.unique(new_text[new_is_name & ~masked]).size
    share_of_leaking = leaking / np.unique(new_text[new_is_name]).size
    return masked[new_is_name].mean(), share_of_leaking, masked[~new_is_name].mean()


for name, masked in (("metacal", gate.accepts(new_score)), ("score >= 2", new_score >= 2)):
    found, leaking, harmless = measure(masked)
    print(f"{name:10}  {found:.1%} of names and {harmless:.1%} of harmless words masked", end=", ")
    print(f"{leaking:.1%} of texts leak")

# %%
# **The price of a promise**: how many harmless words are masked at each share of leaking texts.

curve = np.array([measure(new_score >= threshold)[1:] for threshold in np.linspace(-1, 3.5, 60)])
figure, ax = plt.subplots(figsize=(7, 3.2), layout="constrained")
ax.plot(curve[:, 0], curve[:, 1], color="gray", label="all thresholds")
ax.plot(*measure(gate.accepts(new_score))[1:], "s", color="tab:blue", label="metacal")
ax.axvline(0.1, color="black", linestyle="--", label="promise")
ax.set(xlabel="texts that leak a name", ylabel="harmless words masked", xlim=(0, 0.4))
ax.legend()
plt.show()

# %%
# **If too many names have no candidate**, no threshold keeps the promise, and the error says what is left.

text, score, is_name = tag(600, missed=0.1)
try:
    mc.ScoreGate(mc.MinCaseRecall(0.9)).fit(score, is_name, cases=text)
except mc.InfeasibleTargetError as error:
    print(error)

# %%
# `Redaction <../redaction.html>`_ has the command line, and measurements on real texts.
