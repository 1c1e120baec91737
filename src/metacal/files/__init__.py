"""Files in and files out: tables of predictions, never pickle."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from metacal.files.predictions import Predictions as Predictions
    from metacal.files.predictions import read_predictions as read_predictions
    from metacal.files.scores import Scores as Scores
    from metacal.files.scores import read_scores as read_scores
    from metacal.files.writing import open_table as open_table
    from metacal.files.writing import write_table as write_table

#: Public name -> its module, loaded on first use: the command line asks about terminals before it needs NumPy.
_HOME = {
    "Predictions": "predictions",
    "Scores": "scores",
    "open_table": "writing",
    "read_predictions": "predictions",
    "read_scores": "scores",
    "write_table": "writing",
}
__all__ = ["Predictions", "Scores", "open_table", "read_predictions", "read_scores", "write_table"]

if not TYPE_CHECKING:

    def __getattr__(name):
        if name not in _HOME:
            raise AttributeError(f"module 'metacal.files' has no attribute {name!r}")
        return getattr(import_module(f"metacal.files.{_HOME[name]}"), name)
