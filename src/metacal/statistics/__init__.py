"""Exact tests, confidence bounds and bands. Nothing here depends on gates or promises."""
