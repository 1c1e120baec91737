"""One file per format, reading and writing side by side."""
