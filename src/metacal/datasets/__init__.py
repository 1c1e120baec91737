"""Real logits that ship with the package.

Two networks trained on CIFAR, with the logits of 15,000 images that neither saw in training; see
`docs/data-card.md`.
"""

from __future__ import annotations

from metacal.datasets.logits_set import LogitsSet, load, names

__all__ = ["LogitsSet", "load", "names"]
