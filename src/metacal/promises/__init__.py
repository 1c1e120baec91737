"""Promises: from the columns (score, correct) to a threshold with its certificate."""
