"""Calibration maps and their fits.

`fit_x(rows, labels, weights)` fits the method x and returns its map, a frozen function from
logits to probabilities.
"""
