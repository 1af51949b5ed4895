"""The other two control patterns on the scripted agent: a manager with specialists, and a hand-off."""

import json
from typing import Any

from tests.e2e.harness import Place
from tests.e2e.manifest_kit import Acts, Step, Team, history, result, seed, started, told, verdict

BUDGET = {"model_calls": 4, "tool_calls": 8, "tokens": 20000, "seconds": 60}


def member(id: str, *needs: str, **members: Any) -> dict[str, Any]:
    """A reader."""
    return {
        "id": id,
        "role": f"be the {id}",
        "model_profile": "analysis-small",
        "tools": ["read_file"],
        "context_sources": ["task_contract"],
        "allowed_writes": [],
        "budget": BUDGET,
        "depends_on": list(needs),
        **members,
    }


def declared(*members: dict[str, Any], **changes: Any) -> dict[str, Any]:
    """A manifest of these members and an evaluator."""
    manifest = seed()
    judge = member("evaluator", members[0]["id"] if "handoffs" not in changes else members[1]["id"])
    return {**manifest, "members": [*members, judge], "joins": [], **changes}


def call(tool: str, **arguments: Any) -> Step:
    """A call of one of avenor's tools."""
    return {"do": "mcp", "tool": tool, "arguments": arguments}


def test_a_manager_calls_specialists_as_bounded_tools(place: Place) -> None:
    """Each gets its own contract and nothing else, and its result comes back as the answer of the tool."""
    small = {"model_calls": 1, "tool_calls": 1, "tokens": 1000}
    acts: Acts = {
        "manager": [
            call("start_worker", member="inspect_logs", contract="logs of 10:00", budget=small),
            {"do": "say", "text": "logs: {reply}\n"},
            call("start_worker", member="inspect_schema", contract="the orders table", budget=small),
            {"do": "say", "text": "schema: {reply}\n"},
            result("cause", "the column is missing"),
        ],
        "inspect_logs": [result("logs", "column not found")],
        "inspect_schema": [result("schema", "there is no column")],
        "evaluator": [verdict("accept")],
    }
    manifest = declared(
        member("manager", tools=["start_worker", "read_file"]),
        member("inspect_logs", callable_by=["manager"], context_sources=["assigned_paths"]),
        member("inspect_schema", callable_by=["manager"], context_sources=["assigned_paths"]),
    )
    run = Team(place, acts, manifest=manifest).run()
    assert run.finish() == 0, (run.complaints, told(run, "avenor.manifest.end"))
    assert started(run) == ["manager.1", "inspect_logs-2.1", "inspect_schema-2.1", "evaluator.1"]
    (prompt,) = [event["text"] for event in told(run, "turn.start", phase="inspect_logs-2")]
    assert "logs of 10:00" in prompt
    assert "retry regression" not in prompt
    said = "".join(event["content"]["text"] for event in told(run, "agent.message_chunk", phase="manager"))
    assert '"column not found"' in said
    assert '"there is no column"' in said
    reserved = told(run, "avenor.budget", op="reserve", account="inspect_logs-2")
    assert [(event["parent"], event["limits"]["model_calls"]) for event in reserved] == [("manager", 1)]


def test_a_handoff_moves_the_task_to_its_new_owner(place: Place) -> None:
    """The receiver accepts the record before the sender is released; then only it has a result."""
    acts: Acts = {
        "intake": [call("hand_off", to="controller", summary="the database is down", reason="it has the runbooks")],
        "controller": [call("accept_handoff"), result("recovery", "done")],
        "evaluator": [verdict("accept")],
    }
    manifest = declared(
        member("intake", tools=["hand_off"]),
        member("controller", tools=["accept_handoff", "reject_handoff"], context_sources=["handoff_record"]),
        handoffs=[{"from": "intake", "to": "controller", "on_reject": "return"}],
    )
    run = Team(place, acts, manifest=manifest).run()
    assert run.finish() == 0, (run.complaints, told(run, "avenor.manifest.end"))
    assert [event["state"] for event in told(run, "avenor.handoff")] == ["offered", "accepted"]
    assert history(run, "intake")[-1] == "done"
    order = [(e["task_id"], e["state"]) for e in told(run, "avenor.task") if e["state"] in ("started", "done")]
    assert order.index(("controller", "started")) < order.index(("intake", "done"))
    (prompt,) = [event["text"] for event in told(run, "turn.start", phase="controller")]
    assert "the database is down" in prompt


def test_a_rejected_handoff_returns(place: Place) -> None:
    """The sender goes on and ends the work itself."""
    acts: Acts = {
        "intake": [
            call("hand_off", to="controller", summary="the database is down", reason="it has the runbooks"),
            result("recovery", "done by intake"),
        ],
        "controller": [call("reject_handoff", reason="not mine")],
        "evaluator": [verdict("accept")],
    }
    manifest = declared(
        member("intake", tools=["hand_off"]),
        member("controller", tools=["accept_handoff", "reject_handoff"], context_sources=["handoff_record"]),
        handoffs=[{"from": "intake", "to": "controller", "on_reject": "return"}],
    )
    run = Team(place, acts, manifest=manifest).run()
    assert run.finish() == 0, (run.complaints, told(run, "avenor.manifest.end"))
    assert "not mine" in json.dumps(told(run, "avenor.handoff", state="rejected"))
    assert history(run, "intake")[-1] == "done"
