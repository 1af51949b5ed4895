"""Fixtures of the tests of runtimes."""

import pytest
from trio.testing import MockClock


@pytest.fixture
def shifted_clock() -> MockClock:
    """A clock that goes as fast as the real one, for tests with real processes; `jump` lets a limit pass.

    The limit must have begun by then: what begins after the jump has all its time.
    """
    return MockClock(rate=1.0)
