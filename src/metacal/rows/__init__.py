"""What comes in: tables of logits as rows read strip by strip, wherever they lie, checked once."""

from metacal.rows.rows import Rows, advance, told, workers

__all__ = ["Rows", "advance", "told", "workers"]
