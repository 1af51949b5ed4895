"""What an attempt's policy answers to what agents ask, and what it makes of what did not ask."""

import json
from collections.abc import Sequence
from typing import Any

import msgspec
import pytest
from msgspec import UNSET, Raw

from avenor.protocol import events
from avenor.protocol.events import PermissionOption, ToolCall, ToolCallUpdate
from avenor.protocol.manifest.authority import Capabilities, Grant, WriteGrant
from avenor.protocol.peer import IncomingRequest
from avenor.runtimes.backends import acp_permissions, codex_questions, opencode_questions, pi_permissions
from avenor.runtimes.backends.base import PermissionAsk
from avenor.runtimes.backends.codex_questions import KnownItem
from avenor.runtimes.backends.opencode_types import Inquiry, Permission, ToolRef
from avenor.runtimes.backends.pi_types import UiRequest
from avenor.runtimes.backends.profiles import builtin
from avenor.runtimes.manifest.policy import Judged, Policy
from avenor.runtimes.manifest.tooluse import Roots

TOP = "/run/worktrees/w.1"
ACP_OPTIONS = [
    {"kind": "allow_always", "name": "Always", "optionId": "always"},
    {"kind": "allow_once", "name": "Allow", "optionId": "once"},
    {"kind": "reject_once", "name": "Reject", "optionId": "reject"},
]
WRITER = Capabilities(
    field="members[3]",
    grants=[
        Grant(tool="read_file", field="members[3].tools[0]", kinds=["read", "search"]),
        Grant(tool="apply_patch", field="members[3].tools[1]", kinds=["edit", "delete", "move"]),
        Grant(tool="run_test", field="members[3].tools[2]", kinds=["execute"], commands=["pytest -q tests/*"]),
    ],
    writes=[WriteGrant(target="retry", field="members[3].allowed_writes[0]", globs=["src/retry.py", "docs/**"])],
    own_tools={"submit_result": "members[3]", "read_diff": "members[3].tools[3]"},
)


class Watch:
    """Keeps what the policy tells; `left` calls may still ask."""

    def __init__(self, left: int = 100) -> None:
        self.left = left
        self.told: list[tuple[str, str]] = []
        self.judged: list[Judged] = []

    def use(self, tool_call_id: str) -> str | None:
        if self.left <= 0:
            return "no tool call is left"
        self.left -= 1
        self.told.append(("use", tool_call_id))
        return None

    def used(self, tool_call_id: str) -> None:
        self.told.append(("used", tool_call_id))

    def allowed(self, judged: Judged) -> None:
        self._keep("allowed", judged)

    def denied(self, judged: Judged) -> None:
        self._keep("denied", judged)

    def violated(self, judged: Judged) -> None:
        self._keep("violated", judged)

    def _keep(self, word: str, judged: Judged) -> None:
        self.told.append((word, judged.tool_call_id))
        self.judged.append(judged)


def make(watch: Watch, capabilities: Capabilities = WRITER, cwd: str = TOP) -> Policy:
    """A policy of the writer."""
    return Policy(capabilities, Roots(top=TOP, cwd=cwd), watch)


def raw(value: object) -> Raw:
    """A value, encoded."""
    return Raw(msgspec.json.encode(value))


def acp(tool_call: dict[str, Any], options: Sequence[dict[str, str]] = ACP_OPTIONS) -> PermissionAsk:
    """A question as it comes over ACP."""
    payload = {"sessionId": "s", "toolCall": {"toolCallId": "c1", **tool_call}, "options": list(options)}
    return acp_permissions.read_ask(raw(payload), {}, builtin("acp"))


def answer(ask: PermissionAsk, **options: Any) -> tuple[str | None, Watch]:
    """The option that a fresh policy takes; "?" if it leaves the question to others."""
    watch = Watch()
    found = make(watch, **options).answer(ask)
    return ("?" if found is None else found.option_id), watch


COMMANDS: dict[str, dict[str, Any]] = {
    "opencode, claude": {"kind": "execute", "title": "t", "rawInput": {"command": "pytest -q tests/test_retry.py"}},
    "codex-acp 0.16": {
        "kind": "execute",
        "title": "pytest",
        "rawInput": {"command": ["/bin/bash", "-lc", "pytest -q tests/test_retry.py"], "cwd": TOP},
    },
    "cline, copilot": {"kind": "execute", "title": "x", "rawInput": {"commands": ["pytest -q tests/test_retry.py"]}},
    "gemini": {"kind": "execute", "title": "pytest -q tests/test_retry.py", "content": [], "locations": []},
}


@pytest.mark.parametrize("tool_call", COMMANDS.values(), ids=COMMANDS)
def test_a_command_that_is_granted_is_allowed_once(tool_call: dict[str, Any]) -> None:
    """However the agent tells it; never for good."""
    option, watch = answer(acp(tool_call))
    assert option == "once"
    assert watch.told == [("use", "c1"), ("allowed", "c1")]
    assert (watch.judged[0].tool, watch.judged[0].field) == ("run_test", "members[3].tools[2]")


@pytest.mark.parametrize(
    "tool_call",
    [
        {"kind": "execute", "rawInput": {"command": "pytest -q tests/x; rm -rf ."}},
        {"kind": "execute", "rawInput": {"commands": ["pytest -q tests/x", "rm x"]}},
        {"kind": "execute", "rawInput": {"command": ["bash", "-c", "rm x"]}},
        {"kind": "execute", "title": "rm x"},
        # A title says nothing where there is an input.
        {"kind": "execute", "title": "pytest -q tests/x", "rawInput": {"description": "pytest -q tests/x"}},
        {"kind": "execute", "title": "pytest -q tests/x", "rawInput": {"command": "rm x"}},
        # Whatever the agent calls it, what has a command is a command.
        {"kind": "read", "title": "pytest -q tests/x", "rawInput": {"command": "rm x"}},
        {"kind": "fetch", "title": "x", "rawInput": {"url": "http://x/"}},
        {"kind": "switch_mode", "title": "plan_exit"},
        {"kind": "other", "title": "todowrite"},
        {"title": "?"},
    ],
)
def test_what_is_not_granted_is_refused_with_the_field_that_decided(tool_call: dict[str, Any]) -> None:
    """By the option that refuses once; nothing is charged."""
    option, watch = answer(acp(tool_call))
    assert option == "reject"
    assert watch.told == [("denied", "c1")]
    assert watch.judged[0].field.startswith("members[3].tools")
    assert watch.judged[0].reason


EDITS: dict[str, dict[str, Any]] = {
    "location": {"locations": [{"path": "PATH"}]},
    "opencode": {"rawInput": {"filepath": "PATH", "diff": "x"}, "locations": [{"path": "PATH"}]},
    "claude": {"rawInput": {"file_path": "PATH", "content": "x"}},
    "gemini": {"content": [{"type": "diff", "path": "PATH", "oldText": "", "newText": "x"}], "locations": []},
    "copilot": {"rawInput": {"fileName": "PATH", "diff": "x"}},
    "hermes": {"content": [{"type": "diff", "path": "PATH"}], "rawInput": {"tool": "write_file"}},
    "codex": {"rawInput": {"changes": [{"path": "PATH", "kind": {"type": "update", "move_path": None}}]}},
    "codex, first protocol": {"rawInput": {"fileChanges": {"PATH": {"add": {}}}}},
    "a patch": {"rawInput": {"input": "*** Begin Patch\n*** Update File: PATH\n*** End Patch"}},
}


@pytest.mark.parametrize("told", EDITS.values(), ids=EDITS)
@pytest.mark.parametrize(
    ("path", "option"),
    [
        ("src/retry.py", "once"),
        (f"{TOP}/docs/deep/x.md", "once"),
        ("src/other.py", "reject"),
        ("docs/../src/other.py", "reject"),
        ("../b.1/src/retry.py", "reject"),
        ("/etc/passwd", "reject"),
        (f"{TOP}-2/src/retry.py", "reject"),
    ],
)
def test_an_edit_is_allowed_inside_the_write_targets_only(told: dict[str, Any], path: str, option: str) -> None:
    """Wherever the agent tells the path, and however it writes it."""
    text = json.dumps({"kind": "edit", "title": "Edit", **told}).replace("PATH", path)
    chosen, watch = answer(acp(json.loads(text)))
    assert chosen == option
    assert watch.judged[0].field == ("members[3].tools[1]" if option == "once" else "members[3].allowed_writes")


def test_one_bad_path_of_many_is_enough() -> None:
    """A patch that also touches something else, or moves a file out, is refused as a whole."""
    patch = "*** Update File: src/retry.py\n*** Move to: src/other.py\n"
    moved = {"changes": [{"path": "src/retry.py", "kind": {"type": "update", "move_path": "src/x.py"}}]}
    for given in ({"patchText": patch}, moved):
        assert answer(acp({"kind": "edit", "title": "Edit", "rawInput": given}))[0] == "reject"


def test_paths_are_meant_from_where_the_member_works() -> None:
    """In a folder of the repository, relative paths are below that folder; write targets are below the repository."""
    told = {"kind": "edit", "title": "Edit", "locations": [{"path": "retry.py"}]}
    assert answer(acp(told), cwd=f"{TOP}/src")[0] == "once"
    assert answer(acp(told))[0] == "reject"


OWN: dict[str, dict[str, Any]] = {
    "claude": {"kind": "other", "title": "mcp__avenor__read_diff", "rawInput": {"path": "src/x.py"}},
    "opencode": {"kind": "other", "title": "avenor_read_diff", "rawInput": {"path": "src/x.py"}},
    "gemini": {"kind": "other", "title": "read_diff (avenor MCP Server)"},
    "codex-acp, of a call that it has told before": {"kind": "execute", "title": "mcp.avenor.read_diff"},
    "one that finds places in arguments": {
        "kind": "other",
        "title": "avenor_read_diff",
        "locations": [{"path": "src/x.py"}],
    },
    "codex-acp": {
        "kind": "execute",
        "title": "mcp.avenor.read_diff",
        "rawInput": {"server": "avenor", "tool": "read_diff", "arguments": {"path": "x"}},
    },
}


@pytest.mark.parametrize("tool_call", OWN.values(), ids=OWN)
def test_avenors_own_tools_are_allowed_if_declared_and_never_charged(tool_call: dict[str, Any]) -> None:
    """Under every agent's name for them; one that is not declared is refused."""
    option, watch = answer(acp(tool_call))
    assert (option, watch.told) == ("once", [("allowed", "c1")])
    text = json.dumps(tool_call).replace("read_diff", "start_worker")
    option, watch = answer(acp(json.loads(text)))
    assert (option, watch.told) == ("reject", [("denied", "c1")])


def test_a_command_is_not_taken_for_an_own_tool_by_its_name() -> None:
    """A title proves nothing."""
    told = {"kind": "execute", "title": "avenor_read_diff", "rawInput": {"command": "avenor_read_diff"}}
    assert answer(acp(told))[0] == "reject"


def test_what_was_told_before_the_question_counts_as_well() -> None:
    """An agent that asks with the bare id of a call is answered by what it has told of that call."""
    watch = Watch()
    policy = make(watch)
    policy.note(ToolCall(toolCallId="c1", title="bash", kind="execute", rawInput=raw({"command": "rm x"})))
    ask = acp({})
    found = policy.answer(ask)
    assert found is not None
    assert found.option_id == "reject"


def codex_ask(method: str, params: dict[str, Any], item: KnownItem | None = None) -> PermissionAsk:
    """A question of codex."""
    request = IncomingRequest(id=1, method=method, params=raw(params))
    known = {} if item is None else {"c1": item}
    question = codex_questions.read_question(request, known, builtin("codex-app-server"))
    assert question is not None
    return question.ask


def test_codex_is_answered_in_its_own_words() -> None:
    """Commands, changes, tools of MCP servers; what would leave its sandbox for good, or asks for more, is refused."""
    base = {"threadId": "t", "turnId": "u", "itemId": "c1"}
    command = {**base, "command": "/bin/bash -lc 'pytest -q tests/x'", "cwd": TOP}
    asked = "item/commandExecution/requestApproval"
    assert answer(codex_ask(asked, command))[0] == "accept"
    assert answer(codex_ask(asked, {**command, "command": "rm x"}))[0] == "decline"
    network = {**command, "networkApprovalContext": {"host": "x", "protocol": "https"}}
    assert answer(codex_ask(asked, network))[0] == "decline"
    changed = {"changes": [{"path": f"{TOP}/src/retry.py", "kind": {"type": "update"}}]}
    item = KnownItem(title="Change retry.py", raw_input=raw(changed))
    assert answer(codex_ask("item/fileChange/requestApproval", base, item))[0] == "accept"
    assert (
        answer(codex_ask("item/permissions/requestApproval", {**base, "permissions": {"network": True}}))[0]
        == "decline"
    )
    elicited = {
        "serverName": "avenor",
        "message": "Run it?",
        "_meta": {"codex_approval_kind": "mcp", "tool_name": "read_diff", "tool_params": {"path": "x"}},
    }
    assert answer(codex_ask("mcpServer/elicitation/request", elicited))[0] == "accept"
    foreign = {**elicited, "serverName": "rig"}
    assert answer(codex_ask("mcpServer/elicitation/request", foreign))[0] == "decline"
    question = {"questions": [{"id": "q", "question": "Which?", "options": [{"label": "A"}]}]}
    assert answer(codex_ask("item/tool/requestUserInput", {**base, **question}))[0] == "?"


def test_opencode_over_http_and_pi_are_answered_alike() -> None:
    """The same question gets the same answer, whatever the wire."""
    permission = Permission(
        id="p",
        sessionID="s",
        permission="bash",
        metadata=raw({"command": "rm x"}),
        tool=ToolRef(callID="c1"),
    )
    ask = opencode_questions.permission_ask(permission, raw({}), builtin("opencode-http"))
    option, watch = answer(ask)
    assert (option, watch.judged[0].tool_call_id) == ("reject", "c1")
    assert answer(opencode_questions.inquiry_ask(Inquiry(question="Which?"), raw({})))[0] == "?"
    asked = {"avenor": {"toolCallId": "c1", "toolName": "bash", "input": {"command": "pytest -q tests/x"}}}
    request = UiRequest(id="u", method="select", title=json.dumps(asked), options=["Allow", "Reject"])
    pi_ask = pi_permissions.read_ask(request, b"PATH", builtin("pi"))
    assert pi_ask is not None
    assert answer(pi_ask)[0] == "Allow"


def test_without_a_call_left_even_what_is_granted_is_refused() -> None:
    """The field is that of the budget; avenor's own tools still work, so that a result can be handed in."""
    watch = Watch(left=1)
    policy = make(watch)
    told = {"kind": "execute", "rawInput": {"command": "pytest -q tests/x"}}
    chosen = [policy.answer(acp({**told, "toolCallId": f"c{number}"})) for number in (1, 2)]
    assert [each and each.option_id for each in chosen] == ["once", "reject"]
    assert watch.judged[-1].field == "members[3].budget.tool_calls"
    own = policy.answer(acp({"toolCallId": "c3", "kind": "other", "title": "avenor_submit_result"}))
    assert own is not None
    assert own.option_id == "once"


def test_a_yes_for_good_is_never_taken() -> None:
    """With no trusted yes for once, a person has to decide; with no way to say no, the question is withdrawn."""
    told = {"kind": "execute", "rawInput": {"command": "pytest -q tests/x"}}
    only_always = [ACP_OPTIONS[0], ACP_OPTIONS[2]]
    assert answer(acp(told, only_always))[0] == "?"
    disguised = [{"kind": "allow_once", "name": "Reject", "optionId": "no"}, ACP_OPTIONS[2]]
    assert answer(acp(told, disguised))[0] == "?"
    refused = {"kind": "execute", "rawInput": {"command": "rm x"}}
    assert answer(acp(refused, ACP_OPTIONS[:2]))[0] is None
    for_good = [ACP_OPTIONS[1], {"kind": "reject_always", "name": "Never", "optionId": "never"}]
    assert answer(acp(refused, for_good))[0] == "never"


def test_a_question_without_a_yes_is_left_to_people() -> None:
    """It wants something else than a permission."""
    options = [PermissionOption(option_id="a", kind="reject_once", name="No answer")]
    ask = PermissionAsk(tool="question", question="?", options=options, payload=raw({}))
    assert answer(ask)[0] == "?"


def run(
    policy: Policy, call_id: str, title: str, kind: str, given: object, *, status: str = "completed", **more: Any
) -> None:
    """A tool call that was begun and has ended."""
    policy.note(ToolCall(toolCallId=call_id, title=title, kind=kind))
    policy.note(ToolCallUpdate(toolCallId=call_id, status="in_progress", rawInput=raw(given)))
    policy.note(ToolCallUpdate(toolCallId=call_id, status=status, **more))
    policy.note(ToolCallUpdate(toolCallId=call_id, status=status))


def test_what_ran_without_asking_is_counted_once_and_held_against_the_grants() -> None:
    """Inside them it is a call; outside it is a violation, once for each call."""
    watch = Watch()
    policy = make(watch)
    run(policy, "r", "read", "read", {"path": "x"})
    run(policy, "e", "bash", "execute", {"command": "rm x"})
    run(policy, "w", "write", "edit", {"file_path": "/etc/x"})
    policy.note(events.AgentNoise(text="x"))
    assert watch.told == [("used", "r"), ("used", "e"), ("violated", "e"), ("used", "w"), ("violated", "w")]
    assert [each.field for each in watch.judged] == ["members[3].tools[2]", "members[3].allowed_writes"]


def test_what_asked_is_not_held_against_it_again() -> None:
    """Neither what was allowed nor what was refused; codex tells of a call before it asks, gemini only after."""
    watch = Watch()
    policy = make(watch)
    policy.note(ToolCall(toolCallId="c1", title="x", kind="execute", status="in_progress"))
    policy.answer(acp({"kind": "execute", "rawInput": {"command": "rm x"}}))
    policy.note(ToolCallUpdate(toolCallId="c1", status="failed", rawOutput=raw({"exitCode": 1})))
    policy.answer(acp({"toolCallId": "c2", "kind": "read", "title": "Read"}))
    run(policy, "c2", "Read", "read", {})
    assert watch.told == [("denied", "c1"), ("use", "c2"), ("allowed", "c2")]


@pytest.mark.parametrize(
    "asked", [{"kind": "read", "title": "Read"}, {"kind": "execute", "rawInput": {"command": "x"}}]
)
def test_an_id_that_is_used_again_is_another_calls(asked: dict[str, Any]) -> None:
    """What was answered of the first, yes or no, is no answer for those that do not ask."""
    watch = Watch()
    policy = make(watch)
    policy.answer(acp(asked))
    run(policy, "c1", "Read", "read", {})
    answered = len(watch.told)
    run(policy, "c1", "bash", "execute", {"command": "rm x"})
    run(policy, "c1", "Read", "read", {})
    assert watch.told[answered:] == [("used", "c1"), ("violated", "c1"), ("used", "c1")]


def test_a_question_about_an_id_that_is_used_again_is_one_of_its_own() -> None:
    """It is answered by what it says, not by what was told of the earlier call, and charged; so is a second try."""
    watch = Watch()
    policy = make(watch)
    given = {"command": "pytest -q tests/x"}
    policy.answer(acp({"kind": "execute", "rawInput": given}))
    run(policy, "c1", "bash", "execute", given)
    policy.answer(acp({"kind": "execute"}))
    policy.answer(acp({"kind": "execute", "rawInput": given}))
    run(policy, "c1", "bash", "execute", given)
    assert watch.told == [("use", "c1"), ("allowed", "c1"), ("denied", "c1"), ("use", "c1"), ("allowed", "c1")]


def test_two_questions_about_one_call_are_one_call() -> None:
    """opencode asks for a file outside and then for the tool."""
    watch = Watch()
    policy = make(watch)
    for _ in range(2):
        policy.answer(acp({"kind": "read", "title": "Read"}))
    assert watch.told == [("use", "c1"), ("allowed", "c1"), ("allowed", "c1")]


def test_a_call_that_failed_before_it_ran_is_no_violation() -> None:
    """An agent's own rules may have refused it; where there is an exit status it has run."""
    watch = Watch()
    policy = make(watch)
    run(policy, "a", "bash", "execute", {"command": "rm x"}, status="failed")
    run(policy, "b", "bash", "execute", {"command": "rm x"}, status="failed", rawOutput=raw({"exitCode": 1}))
    run(policy, "c", "bash", "execute", {"command": "rm x"}, status="failed", rawOutput=raw({"metadata": {"exit": 1}}))
    policy.note(ToolCall(toolCallId="d", title="todowrite", kind="other"))
    policy.note(ToolCallUpdate(toolCallId="d", title="Invalid Tool", status="completed"))
    assert [told for told in watch.told if told[0] == "violated"] == [("violated", "b"), ("violated", "c")]
    assert len([told for told in watch.told if told[0] == "used"]) == 4


def test_own_tools_that_run_without_asking_are_nobodys_business_here() -> None:
    """The server that offers them checks and counts for itself; also of codex, which asks without the call's id."""
    watch = Watch()
    policy = make(watch)
    run(policy, "a", "avenor: submit_result", "other", {"finding": "x"})
    run(policy, "b", "avenor_start_worker", "other", {"path": "x"})
    assert watch.told == []


def test_a_question_without_an_id_is_matched_to_its_call_by_name() -> None:
    """So that codex's tools of other servers are charged once."""
    watch = Watch()
    grant = Grant(tool="ping", field="members[3].tools[9]", kinds=["other"], names=["rig/ping"])
    policy = make(watch, msgspec.structs.replace(WRITER, grants=[grant]))
    elicited: dict[str, Any] = {
        "serverName": "rig",
        "_meta": {"codex_approval_kind": "mcp", "tool_name": "ping", "tool_params": {}},
    }
    policy.answer(codex_ask("mcpServer/elicitation/request", elicited))
    run(policy, "i1", "rig: ping", "other", {"server": "rig", "tool": "ping"})
    assert watch.told == [("use", ""), ("allowed", "")]


def test_what_cannot_be_read_allows_nothing_and_breaks_nothing() -> None:
    """Inputs of any form, lists where texts should be, locations that are none."""
    inputs: list[Any] = [
        [1],
        "x",
        {"command": 7},
        {"command": []},
        {"commands": []},
        {"changes": 3},
        {"file_path": ["x"]},
    ]
    for given in inputs:
        option, _ = answer(acp({"kind": "execute", "rawInput": given}))
        assert option == "reject"
    watch = Watch()
    policy = make(watch)
    run(policy, "a", "x", "edit", [1], locations=raw({"no": "list"}), content=raw([1, {"path": 2}, {"path": "/x"}]))
    policy.note(ToolCallUpdate(toolCallId="b", status="completed", rawInput=UNSET))
    assert ("violated", "a") in watch.told


def test_an_agent_that_names_calls_without_end_is_not_remembered_without_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """The oldest are forgotten; the policy goes on."""
    monkeypatch.setattr("avenor.runtimes.manifest.policy._CALLS_LIMIT", 3)
    watch = Watch()
    policy = make(watch)
    for number in range(10):
        policy.note(ToolCall(toolCallId=f"c{number}", title="x", kind="read"))
    policy.note(ToolCallUpdate(toolCallId="c9", status="completed"))
    assert watch.told == [("used", "c9")]
