"""Exact tests, confidence bounds and confidence bands."""
