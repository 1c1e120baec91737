"""Logits of two networks trained on CIFAR, shipped with the package.

Each set has the logits of 15,000 images that the network was not trained on. See
`docs/data-card.md`.
"""

from __future__ import annotations

from metacal.datasets.logits_set import LogitsSet, load, names

__all__ = ["LogitsSet", "load", "names"]
