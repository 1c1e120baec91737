"""Input and output: tables of predictions, saved gates and durable journals.

Pickles are neither read nor written.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from metacal.lazy import make_lazy_attributes

if TYPE_CHECKING:
    from metacal.io.predictions import Predictions as Predictions
    from metacal.io.predictions import read_predictions as read_predictions
    from metacal.io.scores import Scores as Scores
    from metacal.io.scores import read_scores as read_scores
    from metacal.io.writing import open_table as open_table
    from metacal.io.writing import write_table as write_table
else:
    # Names are imported lazily, because the command line starts without NumPy.
    __getattr__, __dir__ = make_lazy_attributes(__name__)
