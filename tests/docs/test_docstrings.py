"""Examples in docstrings give what they say."""

from __future__ import annotations

import doctest
import importlib
import pkgutil

import pytest

import millrace
from millrace.catalog import ALGORITHMS

MODULES = [module.name for module in pkgutil.walk_packages(millrace.__path__, "millrace.")]


@pytest.mark.parametrize("name", MODULES)
def test_the_examples_of_a_module_hold(name: str) -> None:
    assert doctest.testmod(importlib.import_module(name)).failed == 0


def test_there_are_examples() -> None:
    """Of every join, at least."""
    finder = doctest.DocTestFinder(exclude_empty=True)
    joins = [row.name for row in ALGORITHMS]
    for name in joins:
        found = finder.find(importlib.import_module(f"millrace.joins.{name}"))
        assert any(example.examples for example in found), f"joins/{name}.py has no example"
