"""What lasts: journals, and the disk below them."""
