"""Parameters of which a few run by default and the others with the slow tests."""

from collections.abc import Collection, Iterable
from typing import Any

import pytest


def mostly_slow(values: Iterable[Any], *, fast: Collection[Any]) -> list[Any]:
    """The values in their order, all but ``fast`` marked slow."""
    values = list(values)
    assert all(value in values for value in fast)
    return [
        value if value in fast else pytest.param(value, marks=pytest.mark.slow) for value in values
    ]
