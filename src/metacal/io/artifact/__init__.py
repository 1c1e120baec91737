"""JSON files of fitted gates and calibrators.

A file contains data and never code. It is validated before an object is built from it.
"""
