"""The report: `summary` has the numbers, `html` makes one self-contained page of them."""
