"""Rules that abstain, side by side."""
