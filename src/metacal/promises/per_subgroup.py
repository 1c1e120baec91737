"""PerClass and PerGroup: a promise for each predicted class or group of rows.

`metacal.certification.scopes` divides delta among the classes or groups and has the proofs.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, ClassVar, Self, get_args

from metacal.certificates.certificate import Certificate
from metacal.certificates.quantity import Limits
from metacal.certificates.subgroups import DeltaSharing, Name, SubgroupKind
from metacal.certification.procedures import Procedure
from metacal.certification.scopes import EachSubgroup
from metacal.errors import InputError, UnsupportedPromiseError
from metacal.promises.promise import Promise, SubgroupPromise

# Parameters of the inner promise have this prefix, like nested parameters in scikit-learn.
_INNER_PREFIX = "promise__"


@dataclass(frozen=True)
class Per(Promise):
    """Base class of the promises for each class or group."""

    promise: Any
    shares: DeltaSharing = "together"
    fallback: str | None = None

    # Kind of the subgroups: "class" for predicted classes, or "group".
    by: ClassVar[SubgroupKind]

    def __post_init__(self) -> None:
        if not self._can_be_made_per_subgroup(self.promise):
            raise UnsupportedPromiseError(
                f"{type(self).__name__} supports MinAccuracy(...) and MaxMiscoverage(...), but"
                f" got {self.promise!r}. For two classes, PerGroup also supports"
                " MinPrecision(...), MinRecall(...), MaxFalsePositiveRate(...) and"
                " TwoSided(...)."
            )
        if self.promise.delta is None:
            raise UnsupportedPromiseError(
                f"{type(self).__name__} requires a promise with a delta, which the subgroups"
                " share. Pass, for example, delta=0.1."
            )
        if self.shares not in get_args(DeltaSharing):
            raise InputError(
                f"shares must be 'together', 'each' or 'fcr', but got {self.shares!r}."
            )
        if self.fallback not in (None, "pooled"):
            raise InputError(f"fallback must be None or 'pooled', but got {self.fallback!r}.")

    def _can_be_made_per_subgroup(self, promise: Any) -> bool:
        """Check whether a promise can be made for each class or group."""
        if not isinstance(promise, SubgroupPromise):
            return False
        return self.by == "group" or not promise.is_two_sided

    @property
    def delta(self) -> float:  # type: ignore[override]
        """Failure probability of the inner promise, which the subgroups share."""
        return float(self.promise.delta)

    @property
    def limits(self) -> Limits:
        """Limits of the inner promise."""
        return self.promise.limits

    @property
    def rule(self) -> str:
        """Rule of the inner promise."""
        return self.promise.rule

    @property
    def scope(self) -> EachSubgroup:
        """Scope that divides delta among the classes or groups."""
        return EachSubgroup(
            by=self.by, error_rate=self.shares, pool_small=self.fallback == "pooled"
        )

    def procedure(self) -> Procedure:
        """Return the procedure that certifies the rows of each subgroup."""
        return self.promise.procedure()

    @property
    def positive_classes(self) -> tuple[Name | None, ...]:
        """Positive classes of the inner promise. Empty if it is not about one class."""
        positive_classes: tuple[Name | None, ...] = self.promise.positive_classes
        return positive_classes

    def with_positive_class(self, positive: Name) -> Self:
        """Return a copy whose inner promise is about this positive class."""
        return replace(self, promise=self.promise.with_positive_class(positive))

    def with_delta_fraction(self, fraction: float) -> Self:
        """Return the promise with a fraction of its delta."""
        return replace(self, promise=self.promise.with_delta_fraction(fraction))

    def _expected_limits(self, certificate: Certificate) -> Limits:
        """Return the limits that a certificate of the inner promise states."""
        return self.promise._expected_limits(certificate)

    def get_params(self, deep: bool = True) -> dict[str, Any]:
        """Return the parameters, with those of the inner promise if `deep` is true."""
        params = super().get_params()
        if deep and hasattr(self.promise, "get_params"):
            for name, value in self.promise.get_params().items():
                params[_INNER_PREFIX + name] = value
        return params

    def set_params(self, **params: Any) -> Self:
        """Return a copy with other parameters, including those of the inner promise."""
        inner_params = {}
        outer_params = {}
        for name, value in params.items():
            if name.startswith(_INNER_PREFIX):
                inner_params[name.removeprefix(_INNER_PREFIX)] = value
            else:
                outer_params[name] = value
        if inner_params:
            inner_promise = outer_params.get("promise", self.promise)
            outer_params["promise"] = inner_promise.set_params(**inner_params)
        return super().set_params(**outer_params)


@dataclass(frozen=True)
class PerClass(Per):
    """Promise for each predicted class, with one threshold per class.

    One threshold for all classes keeps a selective accuracy on average over the classes, and some
    class nearly always lies below it. Here the rows of each predicted class are certified on their
    own. For a correct row the predicted class is the true class, so a limit on the miscoverage holds
    for each true class.

    A class whose rows do not support an accuracy is always rejected. The certificate names the class,
    the reason, and how many rows would be needed. A class with too few correct rows to reject any
    row under a limit on the miscoverage accepts every row.

    Parameters
    ----------
    promise : MinAccuracy or MaxMiscoverage
        Promise for each class.

    shares : {"together", "each", "fcr"}, default="together"
        What delta limits:

        - "together": the probability that any class violates the promise;
        - "each": the probability that a given class violates the promise, so that the expected
          share of violating classes is at most delta. It needs far fewer rows;
        - "fcr", the false-coverage rate: the expected share of violating classes among those that
          accept any row. It needs nearly as few rows, and classes that accept nothing do not make
          it look smaller.

    fallback : {None, "pooled"}, default=None
        "pooled": classes with too few rows share one threshold, which is certified for all of them
        together and for none on its own.

    Examples
    --------
    >>> import numpy as np
    >>> from metacal.promises.accuracy import MinAccuracy
    >>> from metacal.promises import Sample
    >>> rng = np.random.default_rng(0)
    >>> scores, codes = rng.random(3000), rng.integers(3, size=3000)
    >>> correct = rng.random(3000) > scores * np.array([0.05, 0.3, 2.0])[codes]
    >>> sample = Sample.of(scores, correct, part=codes, names=["cat", "dog", "cow"])
    >>> found = PerClass(MinAccuracy(0.95)).certify(sample)
    >>> print(found.statement)
    For every predicted class, accepted predictions are correct at least 95% of the time,
    with 90% confidence for all classes together.
    >>> [(part.name, part.status) for part in found.subgroups.items]
    [('cat', 'accepts everything'), ('dog', 'certified'), ('cow', 'always rejected')]
    """

    by: ClassVar[SubgroupKind] = "class"


@dataclass(frozen=True)
class PerGroup(Per):
    """Promise for each group of rows, such as a hospital, with its own thresholds.

    The groups come with the rows: one name, a string or an integer, for each row, in
    `cal.fit(X, y, groups=...)` and in `cal.accepts(X, groups=...)`. A row of a group that was not in
    the calibration rows is always rejected. For a promise about two classes both sides of each group
    are certified, and its rows are decided at log-odds of their own.

    Parameters
    ----------
    promise : MinAccuracy, MaxMiscoverage, MinPrecision, MinRecall, MaxFalsePositiveRate or TwoSided
        Promise for each group.

    shares, fallback
        As for `PerClass`. Groups are pooled if either side has too few rows.

    Examples
    --------
    >>> import numpy as np
    >>> from metacal.gate.thresholds import factorize_groups
    >>> from metacal.promises.miscoverage import MaxMiscoverage
    >>> from metacal.promises import Sample
    >>> rng = np.random.default_rng(0)
    >>> scores, groups = rng.random(1000), rng.choice(["north", "south"], size=1000)
    >>> promise = PerGroup(MaxMiscoverage(0.1))
    >>> codes, names = factorize_groups(groups, 1000)
    >>> promise.certify(Sample.of(scores, scores < 0.9, part=codes, names=names)).statement
    'For every group, at most 10% of the correct predictions are rejected, with 90% confidence for all groups together.'
    """

    by: ClassVar[SubgroupKind] = "group"
