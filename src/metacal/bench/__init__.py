"""`metacal bench`: how fast the package is, in units that travel from one machine to another."""
