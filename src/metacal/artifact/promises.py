"""The promises that can be saved: a new one is one entry here, and brings its own `contradiction(certificate)`."""

from __future__ import annotations

from metacal.promises.kinds import promise_classes

#: type -> the constraint.
CONSTRAINTS: dict[str, type] = dict(promise_classes())
