"""Calibration maps, the mathematics: `fit_x(rows, y)` returns an `XMap`, a frozen function of
logits.
"""
