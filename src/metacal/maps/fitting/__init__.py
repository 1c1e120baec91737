"""Solvers and cross-validation that the maps are fitted with."""
