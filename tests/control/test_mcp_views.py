"""Snapshots in the words of the MCP tools."""

from typing import get_args

import msgspec
import pytest

from avenor.control.mcp.views import Pending, Status, run_of, status_of
from avenor.protocol.events import PermissionOption, Usage
from avenor.protocol.outcomes import Status as Outcome
from avenor.protocol.snapshot import PendingPermission, PhaseState, Snapshot

ASKED = PendingPermission(
    request_id="p1",
    tool="edit",
    question="May I?",
    options=[PermissionOption(option_id="once", kind="allow_once", name="Once")],
    resolver="control",
)


@pytest.mark.parametrize(
    ("snapshot", "status"),
    [
        (Snapshot(status="queued"), "waiting"),
        (Snapshot(status="starting"), "running"),
        (Snapshot(status="running"), "running"),
        (Snapshot(status="running", pending_permission=True), "waiting"),
        (Snapshot(status="idle", outcome="DONE"), "done"),
        (Snapshot(status="ended", outcome=None), "failed"),
        *[(Snapshot(status="ended", outcome=outcome), outcome.lower()) for outcome in get_args(Outcome)],
    ],
)
def test_every_state_has_one_word(snapshot: Snapshot, status: Status) -> None:
    """And every outcome of the sentinel."""
    assert status_of(snapshot) == status
    assert status in get_args(Status)


def test_the_lifecycle_view_says_only_what_is_known_and_needed() -> None:
    """Twenty runs in a list must not fill a model's context."""
    run = run_of(Snapshot(run_id="r", status="running", backend="scripted", owner="c1"), "lifecycle")
    assert msgspec.to_builtins(run) == {"run_id": "r", "kind": "single", "status": "running", "state": "running"}


def test_a_pending_permission_is_shown_with_the_ids_that_answer_it() -> None:
    """The same names as the params of avenor_answer_permission."""
    run = run_of(Snapshot(run_id="r", status="running", pending_permission=True, permission=ASKED), "lifecycle")
    assert isinstance(run.pending_permission, Pending)
    assert msgspec.to_builtins(run.pending_permission) == {
        "request_id": "p1",
        "tool": "edit",
        "question": "May I?",
        "options": [{"option_id": "once", "kind": "allow_once", "name": "Once"}],
    }


def test_the_full_view_has_phases_usage_and_paths() -> None:
    """All that a snapshot knows, and nothing that it does not."""
    phase = PhaseState(path=None, name="plan", kind="pre", iteration=0, state="done", session_id="s")
    snapshot = Snapshot(run_id="r", status="running", dir="/d", phases=[phase], usage=Usage(input_tokens=3), pid=7)
    shown = msgspec.to_builtins(run_of(snapshot, "full"))
    assert shown["repo_dir"] == "/d"
    assert shown["phases"][0]["name"] == "plan"
    assert shown["usage"]["input_tokens"] == 3
    assert {"children", "owner", "output_excerpt", "permissions"}.isdisjoint(shown)
