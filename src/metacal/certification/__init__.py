"""Certification: tests that turn calibration rows into a certificate.

A promise (`metacal.promises`) is data. Certification has four layers, and each of them calls only
the layers above it in this list:

- `rules`: how one threshold is certified from one ranking. One file per test, with its proof.
- `procedures` and `two_sides`: which rankings and thresholds the rows of one subgroup have.
- `scopes`: how a promise for each class or group divides its error probability among them.
- `certify`, `passes` and `arriving`: certificates from rows, from counts of rows, and from labels
  that arrive one after the other.
"""
