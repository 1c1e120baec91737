"""Rules: how one threshold is certified from one ranking, one file per test."""
