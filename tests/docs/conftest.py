"""What the tests of the documentation ask for."""

from collections.abc import Generator

import pytest

from tests.e2e.harness import Place, open_place


@pytest.fixture
def place() -> Generator[Place, None, None]:
    """A directory and all processes of one test."""
    with open_place() as opened:
        yield opened
