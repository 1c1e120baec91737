"""Monitors of a gate in production, and tests of labels that arrive in sequence."""
