"""Files in and files out: tables of predictions, never pickle."""

from __future__ import annotations

from metacal.files.predictions import Predictions, read_predictions
from metacal.files.writing import open_table, write_table

__all__ = ["Predictions", "open_table", "read_predictions", "write_table"]
