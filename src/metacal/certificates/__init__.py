"""Certificates: what is promised, on which rows, and the sentences that state it."""
