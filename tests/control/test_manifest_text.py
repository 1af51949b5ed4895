"""The events of a manifest in words."""

import json
from pathlib import Path
from typing import Any

import pytest

from avenor.control.eventclass import ACTIVITY, MILESTONE, Classifier
from avenor.control.manifesttext import is_telling, manifest_words

GOLDEN = Path(__file__).parent.parent / "data" / "events.ndjson"
EVENTS: dict[str, dict[str, Any]] = {each["event"]: each for each in map(json.loads, GOLDEN.read_bytes().splitlines())}


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("avenor.manifest.start", ("manifest", "plain", "retry-fix at git:r1, epoch 7")),
        ("avenor.manifest.end", ("manifest ended", "good", "accepted: all proof is there: 4b825dc")),
        ("avenor.task", ("task", "plain", "writer.1 started: ready: refs/heads/avenor/run_1/lost/writer.1")),
        ("avenor.lease", ("lease", "plain", "writer.1")),
        ("avenor.budget", ("budget", "plain", "writer debit 1 model calls, 1000 tokens, 0.003 USD")),
        (
            "avenor.authority",
            ("deny", "bad", "writer.1 rm -rf / by members[3].tools: no tool of this member runs it"),
        ),
        ("avenor.result", ("result", "warn", "writer.1 stale: plan epoch 6, expected 7")),
        ("avenor.join", ("join", "warn", "reader_join conflict: counts: missing c: about retry limit")),
        ("avenor.candidate", ("candidate", "plain", "4b825dc of writer.1: src/retry.py")),
        ("avenor.receipt", ("receipt", "good", "focused_tests passed on 4b825dc")),
        (
            "avenor.verdict",
            ("verdict", "bad", "accept, counted as repair: focused_tests: the receipt focused_tests has failed"),
        ),
        ("avenor.plan", ("new plan", "warn", "epoch 8: the schema has changed")),
        ("avenor.handoff", ("hand-off", "plain", "intake to recovery offered: a real phase change")),
    ],
)
def test_each_event_says_what_matters(name: str, told: tuple[str, str, str]) -> None:
    """In a word, a tone and a line."""
    assert manifest_words(EVENTS[name]) == told


def test_other_events_are_left_to_others() -> None:
    """They have words of their own."""
    assert manifest_words({"event": "turn.end"}) is None


@pytest.mark.parametrize("name", sorted(name for name in EVENTS if manifest_words(EVENTS[name]) is not None))
def test_an_event_that_lacks_everything_still_has_a_line(name: str) -> None:
    """A log may be of another version."""
    told = manifest_words({"event": name})

    assert told is not None
    assert told[0]


@pytest.mark.parametrize(
    ("event", "telling"),
    [
        ({"event": "avenor.budget", "op": "debit"}, False),
        ({"event": "avenor.budget", "op": "warn", "account": "a", "reason": "near"}, True),
        ({"event": "avenor.authority", "decision": "allow"}, False),
        ({"event": "avenor.authority", "decision": "violation"}, True),
        ({"event": "avenor.result", "status": "accepted"}, False),
        ({"event": "avenor.result", "status": "late"}, True),
        ({"event": "avenor.task", "state": "done"}, False),
        ({"event": "avenor.task", "state": "lost"}, True),
        ({"event": "avenor.lease"}, False),
        ({"event": "avenor.verdict"}, True),
        ({"event": "turn.start"}, False),
    ],
)
def test_only_what_somebody_must_know_is_a_milestone(event: dict[str, Any], telling: bool) -> None:
    """Debits and leases come by the hundred."""
    assert is_telling(event) is telling
    assert Classifier().classify(event) == (MILESTONE if telling else ACTIVITY)


@pytest.mark.parametrize(
    ("name", "members", "told"),
    [
        (
            "manifest.start",
            {"sandbox": "none", "team_id": "t", "source_revision": "r", "plan_epoch": 1},
            ("manifest", "warn", "t at r, epoch 1, NO SANDBOX"),
        ),
        ("budget", {"op": "block", "account": "w", "reason": "spent"}, ("budget block", "bad", "w: spent")),
        (
            "budget",
            {"op": "reserve", "account": "w", "limits": {"model_calls": 4}},
            ("budget", "plain", "w reserve 4 model calls"),
        ),
        ("receipt", {"name": "t", "revision": "r2"}, ("receipt", "bad", "t failed on r2")),
        (
            "receipt",
            {"name": "t", "revision": "r2", "output": "x\nit took too long\n"},
            ("receipt", "bad", "t failed on r2: it took too long"),
        ),
        (
            "receipt",
            {"name": "t", "revision": "r2", "exit_code": 7},
            ("receipt", "bad", "t failed with exit code 7 on r2"),
        ),
        ("join", {"join_id": "j", "state": "joined"}, ("join", "good", "j joined")),
        ("task", {"attempt_id": "w.1", "state": "effect_unknown"}, ("task", "bad", "w.1 effect unknown")),
    ],
)
def test_what_is_bad_or_odd_is_told_as_such(name: str, members: dict[str, Any], told: tuple[str, str, str]) -> None:
    """Nobody overlooks it."""
    assert manifest_words({"event": f"avenor.{name}", **members}) == told
