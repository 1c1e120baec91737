"""What comes in: tables of logits as rows read strip by strip, wherever they lie, checked once."""

from metacal.rows.progress import advance, told
from metacal.rows.rows import Rows
from metacal.rows.workers import workers

__all__ = ["Rows", "advance", "told", "workers"]
