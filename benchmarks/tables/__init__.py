"""The tables of the pages, from committed results."""
