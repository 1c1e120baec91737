"""Statistics of one block of rows: the only code that touches every logit."""
