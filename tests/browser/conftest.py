"""What every test of the board may ask for: a browser, a page in it, and a supervisor to look at."""

import os
import shutil
from collections.abc import Generator

import pytest
from playwright.sync_api import Browser, sync_playwright

from tests.browser.boards import Looking
from tests.e2e.harness import Place, Stable, open_place

_NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")


def _find_browser() -> str | None:
    return os.environ.get("AVENOR_BROWSER") or next(filter(None, map(shutil.which, _NAMES)), None)


@pytest.fixture(scope="session")
def browser() -> Generator[Browser, None, None]:
    """A headless Chromium; without one the tests are skipped, or fail with AVENOR_REQUIRE_BROWSER=1."""
    path = _find_browser()
    if path is None:
        message = "there is no Chromium: install one, or say where it is with AVENOR_BROWSER=PATH"
        if os.environ.get("AVENOR_REQUIRE_BROWSER") == "1":
            pytest.fail(message)
        pytest.skip(message)
    # Root has no sandbox, and containers are run as root.
    arguments = ["--no-sandbox"] if os.geteuid() == 0 else []
    with sync_playwright() as playwright:
        launched = playwright.chromium.launch(executable_path=path, args=arguments)
        yield launched
        launched.close()


@pytest.fixture
def place() -> Generator[Place, None, None]:
    """A directory and all processes of one test."""
    with open_place() as opened:
        yield opened


@pytest.fixture(scope="module")
def place_of_module() -> Generator[Place, None, None]:
    """A directory and all processes of one module's tests."""
    with open_place() as opened:
        yield opened


@pytest.fixture
def stable(place: Place) -> Stable:
    """A supervisor of this test's own."""
    return Stable(place)


@pytest.fixture
def looking(browser: Browser, stable: Stable) -> Generator[Looking, None, None]:
    """A page in a browser, not yet at the board; at the end nothing may have gone wrong in it."""
    context = browser.new_context(viewport={"width": 1280, "height": 900}, locale="en-GB", reduced_motion="reduce")
    here = Looking(context, stable)
    yield here
    here.check()
    context.close()
