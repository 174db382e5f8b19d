"""The permutation behind `scatter`."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from millrace.core.errors import ParameterError
from millrace.streams.permutation import Permutation


@settings(max_examples=100, deadline=None)
@given(domain=st.integers(1, 5000), seed=st.integers(0, 1 << 40))
def test_it_is_a_bijection_of_any_domain_and_can_be_undone(domain: int, seed: int) -> None:
    permutation = Permutation(domain, seed)
    numbers = np.arange(domain)
    places = permutation.apply(numbers)
    assert np.array_equal(np.sort(places), numbers)
    assert np.array_equal(permutation.invert(places), numbers)


@pytest.mark.parametrize("domain", [10**8, 10**8 + 7, 1 << 48])
def test_it_works_on_domains_far_too_large_for_a_table(domain: int) -> None:
    permutation = Permutation(domain, seed=4)
    numbers = np.concatenate([np.arange(50_000), np.arange(domain - 50_000, domain)])
    places = permutation.apply(numbers)
    assert places.min() >= 0
    assert places.max() < domain
    assert len(np.unique(places)) == len(numbers)
    assert np.array_equal(permutation.invert(places), numbers)


def test_places_are_spread_evenly_over_the_domain() -> None:
    places = Permutation(1_000_000, seed=8).apply(np.arange(20_000))
    per_part = np.histogram(places, bins=100, range=(0, 1_000_000))[0]
    chi_square = float(((per_part - 200.0) ** 2 / 200.0).sum())
    assert 99 - 5 * np.sqrt(2 * 99) < chi_square < 99 + 5 * np.sqrt(2 * 99)


def test_another_seed_gives_another_permutation() -> None:
    numbers = np.arange(1000)
    first, second = Permutation(1000, seed=1).apply(numbers), Permutation(1000, seed=2).apply(numbers)
    assert np.count_nonzero(first == second) < 10


@pytest.mark.parametrize(("domain", "seed"), [(0, 1), (1 << 49, 1), (10, -1)])
def test_a_domain_or_seed_out_of_range_is_refused(domain: int, seed: int) -> None:
    with pytest.raises(ParameterError):
        Permutation(domain, seed)
