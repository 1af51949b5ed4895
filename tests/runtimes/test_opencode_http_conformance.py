"""The conformance suite on the stand-in for `opencode serve`, which so is one, and shows the adapter's rules."""

from pathlib import Path

import pytest

from tests.runtimes.conformance import CHECKS, Check
from tests.runtimes.opencode_kit import FakeKit


@pytest.mark.parametrize("check", CHECKS, ids=[check.__name__ for check in CHECKS])
async def test_the_stand_in_for_opencode_conforms(check: Check, tmp_path: Path) -> None:
    """Every check of the suite holds for it."""
    await check(FakeKit(), tmp_path)
