"""Rules: how a promise is certified, one file for each test, and the promises that each carries."""
