"""Where random numbers come from: a seed that the caller gives, and one of our own beside it.

With the bare seed, a caller's own `default_rng(0).random(n)` and the numbers drawn here would be the same: scores made
that way would decide which of their rows are kept, and nothing that rests on an independent draw would hold.
"""

from __future__ import annotations

from typing import Any

import numpy as np

#: Sets these numbers apart from all others that a seed gives.
OUR_OWN = 0x6D657461


def generator(random_state: Any = 0) -> np.random.Generator:
    """The numbers of a seed, which nobody else has drawn from it; a Generator goes on with its own.

    >>> bool(generator(0).random() == np.random.default_rng(0).random())
    False
    >>> bool(generator(0).random() == generator(0).random())
    True
    """
    whole = isinstance(random_state, int | np.integer)
    return np.random.default_rng([int(random_state), OUR_OWN] if whole else random_state)
