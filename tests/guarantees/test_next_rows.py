"""How many of the next rows go to review: intervals of 90% hold as often as they say, for each kind
of threshold.
"""

from dataclasses import replace

import numpy as np
import pytest

import metacal as mc
from metacal.certificates.subgroups import SubgroupCertificate, SubgroupCertificates
from metacal.promises import Sample

DRAWS, NEXT = 300, 1000
NAMES = ("north", "south", "east", "west")
#: Three standard errors below 90% in so many draws.
LEAST = 0.9 - 3 * np.sqrt(0.09 / DRAWS)


def drawn(rng, n):
    """Scores, right or wrong, and groups that err and score differently."""
    group = rng.choice(4, n, p=[0.4, 0.3, 0.2, 0.1])
    score = rng.random(n) ** (1.0 + group / 2)
    return score, rng.random(n) > score**2 * (0.2 + 0.1 * group), group


def covered(promise, n, *, part=None, by=False):
    rng, inside = np.random.default_rng(n), 0
    for _ in range(DRAWS):
        score, right, group = drawn(rng, n)
        sample = Sample.of(score, right, part=group, names=NAMES) if by else Sample.of(score, right)
        certificate = promise.certify(sample)
        new, _, of = drawn(rng, 8 * NEXT)
        threshold = certificate.threshold
        if by:
            threshold = np.array([own.threshold for own in certificate.subgroups.items])[of]
        beyond = (new > threshold)[: NEXT if part is None else None]
        if part is not None:
            beyond = beyond[of == NAMES.index(part)][:NEXT]
        found = certificate.next_rows(len(beyond), part=part)
        inside += found.fewest <= beyond.sum() <= found.most
    return inside / DRAWS


@pytest.mark.filterwarnings("ignore::metacal.errors.MetacalWarning")
@pytest.mark.parametrize(
    ("promise", "n"),
    [
        (mc.MaxReview(0.05), 45),
        (mc.MaxReview(0.2, delta=None), 200),
        (mc.MaxMiscoverage(0.05), 60),
        (mc.MaxMiscoverage(0.1), 300),
        (mc.MinAccuracy(0.95), 400),
    ],
    ids=repr,
)
def test_one_threshold(promise, n):
    assert LEAST <= covered(promise, n) <= 0.97


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::metacal.errors.MetacalWarning")
@pytest.mark.parametrize("promise", [mc.MaxMiscoverage(0.1), mc.MinAccuracy(0.93)], ids=repr)
@pytest.mark.parametrize("part", [None, "south"])
def test_a_threshold_for_each_group(promise, part):
    assert LEAST <= covered(mc.PerGroup(promise, shares="each"), 800, part=part, by=True) <= 0.97


def test_the_surest_of_few_rows_still_sends_some_to_review():
    found = mc.MaxReview(0.05).certify(np.random.default_rng(0).random(45), np.ones(45, dtype=bool))
    assert found.n_accepted == 45
    assert not found.accepts_everything
    assert "none" not in str(found.next_rows(1000))
    assert found.next_rows(1000).most > 30
    with pytest.raises(mc.InputError, match="north"):
        found.next_rows(1000, part="north")


def test_parts_that_accept_all_or_nothing_are_counted_as_such():
    everything = SubgroupCertificate(("a",), 500, 500, 500, 500, np.inf, 0.9, None)
    nothing = SubgroupCertificate(("b",), 500, 250, 0, 0, -np.inf, None, 0.1)
    scores, codes = np.linspace(0, 1, 1000), np.arange(1000) % 2
    sample = Sample.of(scores, np.ones(1000, dtype=bool), part=codes, names=("a", "b"))
    certificate = mc.PerGroup(mc.MinAccuracy(0.9)).certify(sample)

    mixed = replace(
        certificate, subgroups=SubgroupCertificates("group", "together", (everything, nothing))
    )
    assert mixed.next_rows(100, part="a").most == 0
    assert mixed.next_rows(100, part="b").fewest == 100
    both = mixed.next_rows(1000)
    assert both.fewest < 500 < both.most
    with pytest.raises(mc.InputError, match=r"group 'c'.* a, b"):
        mixed.next_rows(100, part="c")
