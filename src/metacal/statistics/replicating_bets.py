r"""Betting tests of a mean, with stakes that replicate an option.

A bettor claims that the mean of n numbers is below a limit m, and stakes a fraction of their capital
on each number in turn: K_t = K_{t-1} (1 + λ_t (m - x_t)). The test passes at level l if the capital
ever reaches 1/l.

**The stakes.** To own 1/l at the end from a capital of 1, the bettor must replicate a digital option,
which pays 1/l if the sum of the numbers is low enough, and nothing otherwise. If the sum is about
normal, the price of the option is Φ(d)/l, and the stake that follows it is λ = φ(d) / (Φ(d) s), where
s = √(v (n - t)) is the standard deviation of the sum of the n - t numbers left. Here v is the variance
of the numbers before, with a prior guess. The capital before a number determines d, because
Φ(d) = l K / 1.05. (Bets are made in steps, so the bettor aims 5% higher than 1/l.) Stakes are at most
0.9/(1 - m). Stakes that are constant need a mean that lies √(2 log(1/l)) = 2.15 standard errors below
the limit at l = 0.1. These stakes need about 1.3, as an exact test does.

The computation is by arrays, so d is read from the capital only when a third of the numbers that were
left is used up. In between, d follows the sum of m - x since then, divided by s, but not beyond the d of
a capital of 1/l. If there are more than 1,023 numbers, one stake serves a group of several numbers.

**Proof.** Let each number, given the numbers before it, have a mean of at least m.

1. λ_t depends on the numbers before x_t only. A group of numbers has the stake that was chosen before
   its first number.
2. 0 <= λ_t <= 0.9/(1 - m) < 1/(1 - m), so 1 + λ_t (m - x_t) > 0 for every x_t in [0, 1].
3. So K is a nonnegative supermartingale that begins at 1, and P(K ever reaches 1/l) <= l (Ville 1939).
   The test looks at K after each group, which can only make it pass less often. ∎

Nothing rests on the normal law, the variance, the target of 1.05/l or the steps. They are guesses
about good stakes.

**Harmful**: lowering the stake to the amount with which one more number of 0 would reach the target.
This looks like a saving, but where no loss is 0 the test passes in 0.19 instead of 0.63 of the draws.
**Not valid**: the variance of all n numbers, or an order of the numbers that depends on their values.
Step 1 fails then.

**Not monotone**: the stakes depend on the limit, so a test may fail at a limit and pass at a lower
one. Do not search for a confidence limit by bisection with this test. `statistics.betting` has stakes
that do not depend on the limit.

References
----------
Waudby-Smith & Ramdas, "Estimating means of bounded random variables by betting", JRSS-B 2024.
Ville, "Étude critique de la notion de collectif", 1939.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from scipy.special import erfcx, ndtri

from metacal.formulas import Flags, Float
from metacal.statistics.betting import MAX_STAKE_FRACTION, USUAL_PRIOR, VariancePrior

#: Guess of the variance if losses are rarely different from 0, so the first ones show little.
_RARE_LOSS_PRIOR = VariancePrior(n_pseudo_values=30.0, variance_fraction=1.0)
#: Final capital that the bettor aims at, as a multiple of the capital that passes.
_TARGET_FACTOR = 1.05
#: Price of an option that pays 1 when the capital reaches the required one.
_MAX_PRICE = 1.0 / _TARGET_FACTOR
#: Quantile of the standard normal law at the largest price.
_MAX_QUANTILE = float(ndtri(_MAX_PRICE))
#: Smallest price of an option, to avoid the logarithm of 0.
_MIN_PRICE = 1e-300
#: Smallest variance, to avoid a division by zero.
_MIN_VARIANCE = 1e-12
#: Largest ratio of the numbers of groups left at two consecutive readings of the capital.
_LEFT_RATIO = 1.5
#: Smallest number of groups from which several numbers have one stake.
_MIN_GROUPS = 512
#: Largest number of groups that are processed together, so that they stay in the processor's cache.
_MAX_GROUPS_PER_BATCH = 2**14
#: Largest number of values that are processed together.
_MAX_VALUES_PER_BATCH = 2**16


def certifies_mean_below(
    values: Float, limit: float, significance_level: float, *, losses_are_rare: bool = False
) -> bool:
    """Test whether values certify that their mean is below a limit.

    Parameters
    ----------
    values : array of float of shape (n_values,)
        Numbers in [0, 1], in an order that does not depend on them, such as a random one.

    limit : float
        Limit of the mean, between 0 and 1.

    significance_level : float
        Largest probability that the test passes although each value, given those before it, has a
        mean of at least `limit`.

    losses_are_rare : bool, default=False
        Whether most values are 0. The prior variance of the values is then larger, and counts as
        more values.

    Returns
    -------
    bool

    Examples
    --------
    >>> certifies_mean_below(np.full(200, 0.02), 0.05, 0.1)
    True
    >>> certifies_mean_below(np.full(200, 0.049), 0.05, 0.1)
    False
    """
    passes_by_sequence = find_means_below(
        [values], limit, significance_level, losses_are_rare=losses_are_rare
    )
    return bool(passes_by_sequence[0])


def find_means_below(
    sequences: Sequence[Float],
    limit: float,
    significance_level: float,
    *,
    losses_are_rare: bool = False,
) -> Flags:
    """Test for each of several sequences whether its mean is below a limit.

    The result for a sequence does not depend on the other sequences. If their lengths are similar,
    many sequences are tested much faster than one by one.

    Parameters
    ----------
    sequences : sequence of array of float
        Numbers in [0, 1], each sequence in the order of its bets.

    limit : float
        Limit of each mean, between 0 and 1.

    significance_level : float
        Significance level of each test.

    losses_are_rare : bool, default=False
        Whether most values are 0.

    Returns
    -------
    array of bool of shape (n_sequences,)

    Examples
    --------
    >>> find_means_below([np.full(200, 0.02), np.full(100, 0.049)], 0.05, 0.1)
    array([ True, False])
    """
    bettor = _Bettor(limit, significance_level, losses_are_rare)
    passes_by_sequence = np.zeros(len(sequences), dtype=bool)
    lengths = [len(values) for values in sequences]
    for batch_indices, group_size in _split_into_batches(lengths):
        # A stake of 1 on "the mean is below the limit" gains the limit minus the value.
        gains_by_sequence = [limit - sequences[index] for index in batch_indices]
        batch = _Batch.align_at_end(gains_by_sequence, group_size)
        passes_by_sequence[batch_indices] = bettor.reaches_required_capital(batch)
    return passes_by_sequence


def _split_into_batches(lengths: Sequence[int]) -> Iterable[tuple[list[int], int]]:
    """Split sequences into batches that have the same number of values per stake.

    Parameters
    ----------
    lengths : sequence of int
        Number of values of each sequence.

    Yields
    ------
    indices : list of int
        Indices of the sequences of a batch.

    group_size : int
        Number of consecutive values that have the same stake.
    """
    indices_by_group_size: dict[int, list[int]] = {}
    for index, length in enumerate(lengths):
        if length > 0:
            group_size = max(1, length // _MIN_GROUPS)
            indices_by_group_size.setdefault(group_size, []).append(index)
    for group_size, indices in indices_by_group_size.items():
        max_length = max(lengths[index] for index in indices)
        n_groups = max_length // group_size
        max_sequences_by_groups = _MAX_GROUPS_PER_BATCH // n_groups
        max_sequences_by_values = _MAX_VALUES_PER_BATCH // max_length
        n_batch_sequences = max(1, min(max_sequences_by_groups, max_sequences_by_values))
        for start in range(0, len(indices), n_batch_sequences):
            yield indices[start : start + n_batch_sequences], group_size


@dataclass(frozen=True, eq=False)
class _Batch:
    """Sequences of gains in one array, aligned at their ends and padded with zeros.

    Attributes
    ----------
    gains : array of float of shape (n_sequences, n_groups, group_size)
        Gains m - x of a stake of 1.

    n_gains : array of float of shape (n_sequences, 1)
        Number of gains of each sequence, without the padding.
    """

    gains: Float
    n_gains: Float

    @classmethod
    def align_at_end(cls, gains_by_sequence: Sequence[Float], group_size: int) -> _Batch:
        """Copy sequences of gains into one array, aligned at their ends.

        Only the first group of a sequence may be incomplete.
        """
        lengths = [len(gains) for gains in gains_by_sequence]
        n_sequences = len(lengths)
        n_groups = math.ceil(max(lengths) / group_size)
        padded_length = n_groups * group_size
        padded_gains = np.zeros((n_sequences, padded_length))
        for sequence_index, gains in enumerate(gains_by_sequence):
            n_padding_zeros = padded_length - len(gains)
            padded_gains[sequence_index, n_padding_zeros:] = gains
        return cls(
            gains=padded_gains.reshape(n_sequences, n_groups, group_size),
            n_gains=np.array(lengths, dtype=np.float64)[:, None],
        )

    @property
    def group_size(self) -> int:
        """Number of consecutive gains that have the same stake."""
        return self.gains.shape[2]

    @property
    def n_gains_left(self) -> Float:
        """Number of gains from the beginning of each group to the end.

        The shape is (n_sequences, n_groups).
        """
        n_groups = self.gains.shape[1]
        n_left_if_complete = self.group_size * np.arange(n_groups, 0, -1.0)
        return np.minimum(n_left_if_complete, self.n_gains)

    def sum_gains_before(self, gains: Float) -> Float:
        """Return for each group the sum of the gains of the groups before it."""
        sums_of_groups = gains[:, :, 0]
        if self.group_size > 1:
            sums_of_groups = gains.sum(axis=2)
        sums_up_to_groups = np.cumsum(sums_of_groups, axis=1)
        return sums_up_to_groups - sums_of_groups


@dataclass(frozen=True)
class _Bettor:
    """Bettor who claims that a mean is below a limit.

    Attributes
    ----------
    limit : float
        Limit of the mean.

    significance_level : float
        The bettor needs a capital of 1 / significance_level.

    losses_are_rare : bool
        Whether most values are 0.
    """

    limit: float
    significance_level: float
    losses_are_rare: bool

    def reaches_required_capital(self, batch: _Batch) -> Flags:
        """Bet on each sequence, and check whether it reaches the required capital."""
        sums_before = batch.sum_gains_before(batch.gains)
        root_n_left = np.sqrt(batch.n_gains_left)
        stds = np.sqrt(self._estimate_variances(batch, sums_before))
        inverse_std_of_sum_left = 1.0 / (root_n_left * stds)
        capital = np.ones(len(batch.gains))
        max_capital = capital
        n_groups = batch.gains.shape[1]
        for start, stop in _choose_reading_intervals(n_groups):
            interval_groups = slice(start, stop)
            # The quantile d is read from the capital at the start, and then follows the gains.
            quantile_at_start = ndtri(self._compute_option_price(capital))
            scaled_quantile_at_start = quantile_at_start * root_n_left[:, start]
            gains_since_start = sums_before[:, interval_groups] - sums_before[:, start, None]
            quantiles = gains_since_start * inverse_std_of_sum_left[:, interval_groups]
            quantiles += scaled_quantile_at_start[:, None] / root_n_left[:, interval_groups]
            stakes = _compute_hedge_ratios(quantiles) * inverse_std_of_sum_left[:, interval_groups]
            capital_after_groups = self._bet(capital, stakes, batch.gains[:, interval_groups])
            max_capital = np.maximum(max_capital, capital_after_groups.max(axis=1))
            capital = capital_after_groups[:, -1]
        return max_capital >= 1.0 / self.significance_level

    def _compute_option_price(self, capital: Float) -> Float:
        """Compute the price of the option that a capital replicates, if the option pays 1."""
        option_price = self.significance_level / _TARGET_FACTOR * capital
        return np.minimum(np.maximum(option_price, _MIN_PRICE), _MAX_PRICE)

    def _bet(self, capital: Float, stakes: Float, gains: Float) -> Float:
        """Return the capital after each group of gains.

        Parameters
        ----------
        capital : array of float of shape (n_sequences,)
            Capital before the first group.

        stakes : array of float of shape (n_sequences, n_groups)
            Stakes before the cap.

        gains : array of float of shape (n_sequences, n_groups, group_size)
            Gains of a stake of 1.
        """
        max_stake = MAX_STAKE_FRACTION / (1.0 - self.limit)
        capped_stakes = np.minimum(stakes, max_stake)
        group_size = gains.shape[2]
        if group_size == 1:
            growth_factors = capped_stakes * gains[:, :, 0]
            growth_factors += 1.0
        else:
            growth_factors = (1.0 + capped_stakes[:, :, None] * gains).prod(axis=2)
        growth_factors[:, 0] *= capital
        return np.asarray(growth_factors.cumprod(axis=1), dtype=np.float64)

    def _estimate_variances(self, batch: _Batch, sums_before: Float) -> Float:
        """Estimate the variance of the gains from those before each group and the prior."""
        variance_prior = _RARE_LOSS_PRIOR if self.losses_are_rare else USUAL_PRIOR
        prior_variance = variance_prior.variance_fraction * self.limit * (1.0 - self.limit)
        n_values_before = batch.n_gains - batch.n_gains_left + variance_prior.n_pseudo_values
        sums_of_squares = batch.sum_gains_before(batch.gains * batch.gains)
        # The prior mean of a gain is 0, because the prior mean of a value is the limit.
        mean_squares = (
            sums_of_squares + variance_prior.n_pseudo_values * prior_variance
        ) / n_values_before
        mean_gains = sums_before / n_values_before
        return np.maximum(mean_squares - mean_gains * mean_gains, _MIN_VARIANCE)


def _compute_hedge_ratios(quantiles: Float) -> Float:
    """Compute the ratio φ(d) / Φ(d) for each quantile d, up to a largest quantile."""
    capped_quantiles = np.minimum(quantiles, _MAX_QUANTILE)
    # Φ(d) = exp(-d²/2) erfcx(-d/√2) / 2 does not underflow.
    erfcx_arguments = capped_quantiles * -math.sqrt(0.5)
    return math.sqrt(2.0 / math.pi) / erfcx(erfcx_arguments)


def _choose_reading_intervals(n_groups: int) -> Iterable[tuple[int, int]]:
    """Choose the intervals of groups between two readings of the capital.

    An interval is given by its first group and by the first group after it.

    The intervals depend on the number of groups that are left, not on `n_groups`.

    Examples
    --------
    >>> list(_choose_reading_intervals(10))
    [(0, 2), (2, 5), (5, 7), (7, 8), (8, 9), (9, 10)]
    """
    # The readings are found from the last one backward, by the number of groups that are left.
    interval_starts = []
    n_groups_left = 1
    while n_groups_left < n_groups:
        interval_starts.append(n_groups - n_groups_left)
        n_groups_left = max(n_groups_left + 1, math.ceil(n_groups_left * _LEFT_RATIO))
    interval_starts.append(0)
    interval_starts.reverse()
    interval_stops = [*interval_starts[1:], n_groups]
    return zip(interval_starts, interval_stops)
