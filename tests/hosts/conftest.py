"""Worlds of several hosts, where this machine allows them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack

import pytest

from benchmarks.hosts import World, why_not
from benchmarks.hosts.flows import undisturbed as at_high_priority


@pytest.fixture
def build() -> Iterator[Callable[..., World]]:
    """Builds worlds (see `World.build`) that end with the test."""
    if (reason := why_not()) is not None:
        pytest.skip(reason)
    with ExitStack() as stack:
        yield lambda *arguments, **options: stack.enter_context(World.build(*arguments, **options))


@pytest.fixture
def undisturbed() -> Iterator[None]:
    """What else this machine does should not be measured."""
    with at_high_priority():
        yield
