"""A fitted gate or calibrator as a JSON file: data, never code, audited before anything is built
from it.
"""
