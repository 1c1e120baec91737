"""Files in and files out: tables of predictions, gates as JSON, journals that last; never pickle."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from metacal.io.predictions import Predictions as Predictions
    from metacal.io.predictions import read_predictions as read_predictions
    from metacal.io.scores import Scores as Scores
    from metacal.io.scores import read_scores as read_scores
    from metacal.io.writing import open_table as open_table
    from metacal.io.writing import write_table as write_table

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
            raise AttributeError(f"module 'metacal.io' has no attribute {name!r}")
        return getattr(import_module(f"metacal.io.{_HOME[name]}"), name)
