"""Takes the pictures of the board for the documentation, with AVENOR_SCREENSHOTS=DIRECTORY."""

import json
import os
import re
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import expect

from tests.browser.boards import Looking
from tests.e2e.harness import WAIT_SECONDS, say, steps

DIRECTORY = os.environ.get("AVENOR_SCREENSHOTS")
pytestmark = [
    pytest.mark.browser,
    pytest.mark.skipif(not DIRECTORY, reason="takes pictures only with AVENOR_SCREENSHOTS=DIRECTORY"),
]
expect.set_options(timeout=WAIT_SECONDS * 1000)

TEAM = {
    "pre": [{"name": "triage", "prompt": "Which of the parts below have changed since the last release?"}],
    "team": [
        {"name": "auth-review", "prompt": "Review the auth package.", "conditional": True},
        {"name": "api-review", "prompt": "Review the API layer."},
        {"name": "docs-review", "prompt": "Review the documentation.", "conditional": True},
    ],
}
AUTH: list[dict[str, Any]] = [
    say("I begin with the login path.\n"),
    {
        "do": "tool",
        "title": "Read auth/session.py",
        "kind": "read",
        "output": "…",
        "steps": [{"do": "wait", "seconds": 2}],
    },
    {
        "do": "think",
        "text": "The token is compared with ==, which tells by timing how much of it is right.",
        "every": 1,
    },
    {"do": "plan", "entries": [{"content": "Login path", "status": "completed"}, "Session store", "Password reset"]},
    say("`check_token` compares with `==`; it should be `hmac.compare_digest`. Let me see whether a test covers it.\n"),
    {
        "do": "tool",
        "title": "rm -r build && make test",
        "kind": "execute",
        "input": {"command": "rm -r build && make test"},
        "ask": True,
    },
]
API: list[dict[str, Any]] = [
    {"do": "think", "text": "Forty handlers, most of one shape.", "chunks": 4, "every": 0.4},
    say("Most handlers share one shape, so I read those that do not first.\n", chunks=6, every=0.3),
    {"do": "tool", "title": "Run the API tests", "kind": "execute", "output": "42 passed", "steps": [{"do": "hang"}]},
]
RULES = [
    steps(
        {"do": "think", "text": "Comparing the tags …", "chunks": 5, "every": 0.3},
        {"do": "run", "command": "echo auth api"},
        say("The documentation has not changed.\n<|team: skip | docs-review|>\n", chunks=4, every=0.2),
        match="Which of the parts",
    ),
    steps(*AUTH, match="auth package"),
    steps(*API, match="API layer"),
    steps({"do": "usage", "input_tokens": 18_200, "output_tokens": 940, "cost": 0.07}, say("Hello."), match="hello"),
    steps(say("There is no such target."), {"do": "fail", "message": "build failed"}, match="build"),
    steps({"do": "think", "text": "Reading."}, say("Reading the log of changes."), {"do": "hang"}),
]


def test_pictures_of_a_team_at_work(looking: Looking) -> None:
    """In light, in dark, and on a telephone."""
    directory = Path(str(DIRECTORY))
    directory.mkdir(parents=True, exist_ok=True)
    config = looking.stable.place.path / "team.json"
    config.write_text(json.dumps(TEAM))
    looking.spawn(*RULES, prompt="say hello", label="greeting")
    looking.spawn(*RULES, prompt="build it", label="broken-build")
    parent = looking.spawn(*RULES, prompt=None, team_file=str(config), label="nightly-review")
    looking.spawn(*RULES, prompt="read the changes", label="changes", parent_id=parent)
    looking.spawn(*RULES, prompt="read the issues", label="issues", parent_id=parent)
    page = looking.open()
    looking.node("nightly-review").click()
    expect(looking.lane("auth-review").locator(".at")).to_have_text(re.compile("^asking [3-9]"))
    page.get_by_role("log").focus()
    page.set_viewport_size({"width": 1280, "height": 900})
    page.emulate_media(color_scheme="light")
    page.screenshot(path=directory / "board-light.png")
    page.emulate_media(color_scheme="dark")
    page.screenshot(path=directory / "board-dark.png")
    page.emulate_media(color_scheme="light")
    page.set_viewport_size({"width": 360, "height": 1560})
    page.evaluate("scrollTo(0, 0)")
    expect(page.locator(".ask")).to_be_in_viewport()
    page.screenshot(path=directory / "board-360.png")
