r"""Betting tests of a mean, with stakes that replicate a binary option.

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
a capital of 1/l. If there are more than 1,023 numbers, one stake serves several consecutive numbers.

**Proof.** Let each number, given the numbers before it, have a mean of at least m.

1. λ_t depends on the numbers before x_t only. Several numbers with one stake have the stake that was
   chosen before the first of them.
2. 0 <= λ_t <= 0.9/(1 - m) < 1/(1 - m), so 1 + λ_t (m - x_t) > 0 for every x_t in [0, 1].
3. So K is a nonnegative supermartingale that begins at 1, and P(K ever reaches 1/l) <= l (Ville 1939).
   The test looks at K after each stake, which can only make it pass less often. ∎

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
from metacal.statistics.betting import DEFAULT_VARIANCE_PRIOR, MAX_STAKE_FRACTION, VariancePrior

#: Prior guess of the variance if most losses are 0, as the first losses then show little.
_RARE_LOSS_PRIOR = VariancePrior(n_pseudo_values=30.0, variance_fraction=1.0)
#: Target of the capital, as a multiple of the capital with which the test passes.
_TARGET_FACTOR = 1.05
#: Price, per unit of its payoff, of the option whose price is the capital with which the test passes.
_MAX_PRICE = 1.0 / _TARGET_FACTOR
#: Normal quantile d at the largest price.
_MAX_QUANTILE = float(ndtri(_MAX_PRICE))
#: Smallest price of an option, because a price of 0 has the quantile -inf.
_MIN_PRICE = 1e-300
#: Smallest variance, to avoid a division by zero.
_MIN_VARIANCE = 1e-12
#: Ratio of the numbers of remaining stakes at two consecutive updates of the capital.
_RATIO_OF_STAKES_LEFT = 1.5
#: Smallest number of stakes on a long sequence, where several values share a stake.
_MIN_STAKES = 512
#: Largest number of stakes in one batch, so that the batch fits into the processor's cache.
_MAX_STAKES_PER_BATCH = 2**14
#: Largest number of values that are processed in one batch.
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
    for batch_indices, n_values_per_stake in _split_into_batches(lengths):
        # A stake of 1 on "the mean is below the limit" gains the limit minus the value.
        gains_by_sequence = [limit - sequences[index] for index in batch_indices]
        batch = _PaddedGains.align_at_end(gains_by_sequence, n_values_per_stake)
        passes_by_sequence[batch_indices] = bettor.reaches_required_capital(batch)
    return passes_by_sequence


def _split_into_batches(lengths: Sequence[int]) -> Iterable[tuple[list[int], int]]:
    """Split sequences into batches with the same number of values per stake.

    Parameters
    ----------
    lengths : sequence of int
        Number of values of each sequence.

    Yields
    ------
    indices : list of int
        Indices of the sequences of a batch.

    n_values_per_stake : int
        Number of consecutive values that have the same stake.
    """
    indices_by_values_per_stake: dict[int, list[int]] = {}
    for index, length in enumerate(lengths):
        if length > 0:
            n_values_per_stake = max(1, length // _MIN_STAKES)
            indices_by_values_per_stake.setdefault(n_values_per_stake, []).append(index)
    for n_values_per_stake, indices in indices_by_values_per_stake.items():
        max_length = max(lengths[index] for index in indices)
        max_stakes = max_length // n_values_per_stake
        max_sequences_by_stakes = _MAX_STAKES_PER_BATCH // max_stakes
        max_sequences_by_values = _MAX_VALUES_PER_BATCH // max_length
        n_batch_sequences = max(1, min(max_sequences_by_stakes, max_sequences_by_values))
        for start in range(0, len(indices), n_batch_sequences):
            yield indices[start : start + n_batch_sequences], n_values_per_stake


@dataclass(frozen=True, eq=False)
class _PaddedGains:
    """Sequences of gains in one array, aligned at their ends and padded with zeros.

    Attributes
    ----------
    gains : array of float of shape (n_sequences, n_stakes, n_values_per_stake)
        Gain m - x of a stake of 1 on each value x.

    n_gains : array of float of shape (n_sequences, 1)
        Number of gains of each sequence, without the padding.
    """

    gains: Float
    n_gains: Float

    @classmethod
    def align_at_end(
        cls, gains_by_sequence: Sequence[Float], n_values_per_stake: int
    ) -> _PaddedGains:
        """Copy sequences of gains into one array, aligned at their ends.

        Only the first stake of a sequence may be on fewer values.
        """
        lengths = [len(gains) for gains in gains_by_sequence]
        n_sequences = len(lengths)
        n_stakes = math.ceil(max(lengths) / n_values_per_stake)
        padded_length = n_stakes * n_values_per_stake
        padded_gains = np.zeros((n_sequences, padded_length))
        for sequence_index, gains in enumerate(gains_by_sequence):
            n_padding_zeros = padded_length - len(gains)
            padded_gains[sequence_index, n_padding_zeros:] = gains
        return cls(
            gains=padded_gains.reshape(n_sequences, n_stakes, n_values_per_stake),
            n_gains=np.array(lengths, dtype=np.float64)[:, None],
        )

    @property
    def n_stakes(self) -> int:
        """Number of stakes on each sequence."""
        return self.gains.shape[1]

    @property
    def n_values_per_stake(self) -> int:
        """Number of consecutive values that have the same stake."""
        return self.gains.shape[2]

    @property
    def n_gains_left_at_stake(self) -> Float:
        """Number of gains from each stake to the end of its sequence."""
        n_left_with_padding = self.n_values_per_stake * np.arange(self.n_stakes, 0, -1.0)
        return np.minimum(n_left_with_padding, self.n_gains)

    def sum_before_each_stake(self, gains: Float) -> Float:
        """Compute the sum of the gains before each stake.

        Parameters
        ----------
        gains : array of float of shape (n_sequences, n_stakes, n_values_per_stake)
            The gains or a function of them.

        Returns
        -------
        array of float of shape (n_sequences, n_stakes)
        """
        sums_by_stake = gains[:, :, 0]
        if self.n_values_per_stake > 1:
            sums_by_stake = gains.sum(axis=2)
        cumulative_sums = np.cumsum(sums_by_stake, axis=1)
        return cumulative_sums - sums_by_stake


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

    def reaches_required_capital(self, padded: _PaddedGains) -> Flags:
        """Bet on each sequence, and check whether it reaches the required capital."""
        sums_before = padded.sum_before_each_stake(padded.gains)
        sqrt_n_left = np.sqrt(padded.n_gains_left_at_stake)
        stds_of_gains = np.sqrt(self._estimate_variances(padded, sums_before))
        inverse_stds_of_sum_left = 1.0 / (sqrt_n_left * stds_of_gains)
        capital = np.ones(len(padded.gains))
        max_capital = capital
        for stakes_until_update in _split_stakes_by_updates_of_capital(padded.n_stakes):
            stakes = self._compute_stakes(
                capital,
                sums_before=sums_before[:, stakes_until_update],
                sqrt_n_left=sqrt_n_left[:, stakes_until_update],
                inverse_stds_of_sum_left=inverse_stds_of_sum_left[:, stakes_until_update],
            )
            capital_after_stakes = _compute_capital_after_stakes(
                capital, stakes, padded.gains[:, stakes_until_update]
            )
            max_capital = np.maximum(max_capital, capital_after_stakes.max(axis=1))
            capital = capital_after_stakes[:, -1]
        return max_capital >= 1.0 / self.significance_level

    def _compute_stakes(
        self,
        capital: Float,
        sums_before: Float,
        sqrt_n_left: Float,
        inverse_stds_of_sum_left: Float,
    ) -> Float:
        """Compute the stakes λ = φ(d) / (Φ(d) s) until the next update of the capital.

        At the first stake, Φ(d) is the price of the option, which the capital determines. The
        quantile d at later stakes follows from the sum of the gains since then.

        Parameters
        ----------
        capital : array of float of shape (n_sequences,)
            Capital before the first of the stakes.

        sums_before : array of float of shape (n_sequences, n_stakes)
            Sum of the gains before each stake.

        sqrt_n_left : array of float of shape (n_sequences, n_stakes)
            Square root of the number of values from each stake to the end.

        inverse_stds_of_sum_left : array of float of shape (n_sequences, n_stakes)
            1 / s, where s is the standard deviation of the sum of these values.

        Returns
        -------
        array of float of shape (n_sequences, n_stakes)
        """
        price = self.significance_level / _TARGET_FACTOR * capital
        first_d = ndtri(np.minimum(np.maximum(price, _MIN_PRICE), _MAX_PRICE))
        gains_since_first_stake = sums_before - sums_before[:, :1]
        d = gains_since_first_stake * inverse_stds_of_sum_left
        d += (first_d * sqrt_n_left[:, 0])[:, None] / sqrt_n_left
        stakes = (
            _compute_normal_pdf_over_cdf(np.minimum(d, _MAX_QUANTILE)) * inverse_stds_of_sum_left
        )
        max_stake = MAX_STAKE_FRACTION / (1.0 - self.limit)
        return np.minimum(stakes, max_stake)

    def _estimate_variances(self, padded: _PaddedGains, sums_before: Float) -> Float:
        """Estimate the variance of the gains at each stake from the preceding gains.

        Pseudo gains with mean 0 and the prior variance are added to these gains. Their mean is 0,
        because the prior mean of a value is the limit.
        """
        prior = _RARE_LOSS_PRIOR if self.losses_are_rare else DEFAULT_VARIANCE_PRIOR
        n_gains_before = padded.n_gains - padded.n_gains_left_at_stake
        n_gains_with_prior = n_gains_before + prior.n_pseudo_values
        sums_of_squares_before = padded.sum_before_each_stake(padded.gains * padded.gains)
        prior_sum_of_squares = prior.n_pseudo_values * prior.guess_variance(self.limit)
        mean_squares = (sums_of_squares_before + prior_sum_of_squares) / n_gains_with_prior
        means = sums_before / n_gains_with_prior
        return np.maximum(mean_squares - means * means, _MIN_VARIANCE)


def _compute_capital_after_stakes(capital: Float, stakes: Float, gains: Float) -> Float:
    """Compute the capital after each stake.

    Parameters
    ----------
    capital : array of float of shape (n_sequences,)
        Capital before the first stake.

    stakes : array of float of shape (n_sequences, n_stakes)
        Stakes, as fractions of the capital.

    gains : array of float of shape (n_sequences, n_stakes, n_values_per_stake)
        Gain of a stake of 1 on each value.

    Returns
    -------
    array of float of shape (n_sequences, n_stakes)
    """
    n_values_per_stake = gains.shape[2]
    if n_values_per_stake == 1:
        growth_factors = stakes * gains[:, :, 0]
        growth_factors += 1.0
    else:
        growth_factors = (1.0 + stakes[:, :, None] * gains).prod(axis=2)
    growth_factors[:, 0] *= capital
    return np.asarray(growth_factors.cumprod(axis=1), dtype=np.float64)


def _compute_normal_pdf_over_cdf(d: Float) -> Float:
    """Compute φ(d) / Φ(d), the inverse Mills ratio, without underflow for small d."""
    # φ(d) / Φ(d) = √(2/π) / erfcx(-d/√2), because Φ(d) = exp(-d²/2) erfcx(-d/√2) / 2.
    erfcx_arguments = d * -math.sqrt(0.5)
    return math.sqrt(2.0 / math.pi) / erfcx(erfcx_arguments)


def _split_stakes_by_updates_of_capital(n_stakes: int) -> list[slice]:
    """Split the stakes into intervals between updates of the capital.

    The starts depend on the number of stakes that are left, not on `n_stakes`.

    Examples
    --------
    >>> intervals = _split_stakes_by_updates_of_capital(10)
    >>> [(interval.start, interval.stop) for interval in intervals]
    [(0, 2), (2, 5), (5, 7), (7, 8), (8, 9), (9, 10)]
    """
    # Intervals are built from the end, because a start depends only on the stakes left after it.
    interval_starts = []
    n_stakes_left = 1
    while n_stakes_left < n_stakes:
        interval_starts.append(n_stakes - n_stakes_left)
        n_stakes_left = max(n_stakes_left + 1, math.ceil(n_stakes_left * _RATIO_OF_STAKES_LEFT))
    interval_starts.append(0)
    interval_starts.reverse()
    interval_stops = [*interval_starts[1:], n_stakes]
    return [slice(start, stop) for start, stop in zip(interval_starts, interval_stops)]
