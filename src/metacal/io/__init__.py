"""Files in and files out: tables of predictions, never pickle."""

from __future__ import annotations

from metacal.io.predictions import Predictions, read_predictions
from metacal.io.writing import write_table

__all__ = ["Predictions", "read_predictions", "write_table"]
