"""The questions of codex: each kind is read, and each of its options is an answer that codex's schema allows."""

from typing import Any

import msgspec
import pytest
from msgspec import UNSET, Raw

from avenor.protocol.peer import IncomingRequest
from avenor.runtimes.backends.base import PermissionAnswer
from avenor.runtimes.backends.codex_questions import KnownItem, Question, read_question
from avenor.runtimes.backends.profiles import builtin
from tests.runtimes.codex_checks import check_answer, check_question

_PROFILE = builtin("codex-app-server")
_ITEM: dict[str, Any] = {"threadId": "t", "turnId": "u", "itemId": "call-1", "startedAtMs": 1}
_AMENDMENT = {"acceptWithExecpolicyAmendment": {"execpolicy_amendment": ["touch"]}}
_DENIAL = {"applyNetworkPolicyAmendment": {"network_policy_amendment": {"action": "deny", "host": "x.org"}}}
_PERMIT = {"applyNetworkPolicyAmendment": {"network_policy_amendment": {"action": "allow", "host": "x.org"}}}
_FORM = {"threadId": "t", "serverName": "notes", "mode": "form", "message": "Sure?"}
_EMPTY: dict[str, Any] = {"type": "object", "properties": {}}
_META: dict[str, Any] = {
    "codex_approval_kind": "mcp_tool_call",
    "persist": ["session", "always"],
    "tool_name": "ping",
    "tool_params": {},
}
_COLOUR = {"id": "q", "header": "Colour", "question": "Which?"}
_LABELS = [{"label": "red", "description": "like fire"}, {"label": "blue", "description": ""}]

# Method, params, tool, question, and the options with their kinds.
_QUESTIONS: list[tuple[str, dict[str, Any], str, str, dict[str, str]]] = [
    (
        "item/commandExecution/requestApproval",
        {**_ITEM, "command": "touch x", "reason": "to see", "availableDecisions": ["accept", _AMENDMENT, "cancel"]},
        "execute",
        "Run touch x\nto see",
        {
            "accept": "allow_once",
            "acceptForSession": "allow_always",
            "acceptWithExecpolicyAmendment": "allow_always",
            "decline": "reject_once",
            "cancel": "reject_once",
        },
    ),
    (
        "item/commandExecution/requestApproval",
        {
            **_ITEM,
            "kind": "command",
            "networkApprovalContext": {"host": "x.org", "protocol": "https"},
            "availableDecisions": ["accept", _PERMIT, _DENIAL, 7, {}],
        },
        "execute",
        "Connect to x.org (https)",
        {
            "accept": "allow_once",
            "acceptForSession": "allow_always",
            "applyNetworkPolicyAmendment": "allow_always",
            "applyNetworkPolicyAmendment:deny": "reject_always",
            "decline": "reject_once",
            "cancel": "reject_once",
        },
    ),
    (
        "item/commandExecution/requestApproval",
        {**_ITEM, "kind": "writeStdin", "command": "python3", "availableDecisions": []},
        "execute",
        "Write to the running python3",
        {"decline": "reject_once", "cancel": "reject_once"},
    ),
    (
        "item/fileChange/requestApproval",
        {**_ITEM, "grantRoot": "/srv"},
        "edit",
        "Change files (and write below /srv from now on)",
        {
            "accept": "allow_once",
            "acceptForSession": "allow_always",
            "decline": "reject_once",
            "cancel": "reject_once",
        },
    ),
    (
        "item/permissions/requestApproval",
        {**_ITEM, "cwd": "/w", "permissions": {"network": {"enabled": True}}, "reason": "to fetch"},
        "permissions",
        'Give more permissions in /w: {"network":{"enabled":true}}\nto fetch',
        {"accept": "allow_once", "acceptForSession": "allow_always", "decline": "reject_once"},
    ),
    (
        "mcpServer/elicitation/request",
        {**_FORM, "requestedSchema": _EMPTY, "_meta": _META},
        "ping",
        "Sure?",
        {
            "accept": "allow_once",
            "acceptForSession": "allow_always",
            "acceptForAlways": "allow_always",
            "decline": "reject_once",
            "cancel": "reject_once",
        },
    ),
    (
        "mcpServer/elicitation/request",
        {**_FORM, "requestedSchema": {"type": "object", "properties": {"name": {"type": "string"}}}},
        "notes",
        "Sure?",
        {"decline": "reject_once", "cancel": "reject_once"},
    ),
    (
        "mcpServer/elicitation/request",
        {**_FORM, "mode": "url", "elicitationId": "e", "url": "https://x.org"},
        "notes",
        "Sure? https://x.org",
        {"accept": "allow_once", "decline": "reject_once", "cancel": "reject_once"},
    ),
    (
        "item/tool/requestUserInput",
        {**_ITEM, "isBlocking": True, "questions": [{**_COLOUR, "options": _LABELS}]},
        "question",
        "Which?",
        {"answer-1": "allow_once", "answer-2": "allow_once", "decline": "reject_once"},
    ),
    (
        "item/tool/requestUserInput",
        {**_ITEM, "isBlocking": True, "questions": [_COLOUR, {**_COLOUR, "id": "r", "options": _LABELS}]},
        "question",
        "Which?\nWhich?",
        {"decline": "reject_once"},
    ),
    (
        "execCommandApproval",
        {"conversationId": "c", "callId": "1", "command": ["ls", "-l"], "cwd": "/w", "parsedCmd": []},
        "execute",
        "Run ls -l",
        {
            "approved": "allow_once",
            "approved_for_session": "allow_always",
            "denied": "reject_once",
            "abort": "reject_once",
        },
    ),
    (
        "applyPatchApproval",
        {"conversationId": "c", "callId": "1", "fileChanges": {"a.txt": {"type": "add", "content": ""}}, "reason": "r"},
        "edit",
        "Change a.txt\nr",
        {
            "approved": "allow_once",
            "approved_for_session": "allow_always",
            "denied": "reject_once",
            "abort": "reject_once",
        },
    ),
]
# Of these, auto-approve may take the first option.
_TRUSTED = {"execute", "edit", "permissions", "ping"}


def _read(method: str, params: dict[str, Any], known: dict[str, KnownItem] | None = None) -> Question:
    request = IncomingRequest(1, method, Raw(msgspec.json.encode(params)))
    question = read_question(request, known or {}, _PROFILE)
    assert question is not None
    return question


@pytest.mark.parametrize(("method", "params", "tool", "text", "options"), _QUESTIONS)
def test_a_question_is_read_with_its_options(
    method: str, params: dict[str, Any], tool: str, text: str, options: dict[str, str]
) -> None:
    """In the order: allow, wider ways to allow, decline, and end the turn."""
    if 7 not in params.get("availableDecisions", []):
        check_question(method, params)
    ask = _read(method, params).ask
    assert (ask.tool, ask.question) == (tool, text)
    assert {option.option_id: option.kind for option in ask.options} == options
    assert list(options) == [option.option_id for option in ask.options]
    assert all(option.name for option in ask.options)
    assert msgspec.json.decode(ask.payload) == params
    allowed = [name for name, kind in options.items() if kind == "allow_once"] if tool in _TRUSTED else []
    assert list(ask.trusted_options) == allowed


@pytest.mark.parametrize(("method", "params", "_tool", "_text", "options"), _QUESTIONS)
def test_every_answer_is_one_that_codex_takes(
    method: str, params: dict[str, Any], _tool: str, _text: str, options: dict[str, str]
) -> None:
    """Each option, an answer without one, and a cancel; no two options say the same."""
    question = _read(method, params)
    results = [question.result(PermissionAnswer(option_id=name)) for name in options]
    for result in [*results, question.declined, question.cancelled]:
        check_answer(method, msgspec.to_builtins(msgspec.json.decode(msgspec.json.encode(result))))
    assert len({msgspec.json.encode(result) for result in results}) == len(results)
    assert question.result(PermissionAnswer(option_id=None)) == question.declined
    assert question.result(PermissionAnswer(option_id="no such")) == question.declined


def test_no_answer_lets_the_turn_go_on_and_a_cancel_ends_it() -> None:
    """codex has a decision for each."""
    question = _read(_QUESTIONS[0][0], _QUESTIONS[0][1])
    assert (question.declined, question.cancelled) == ({"decision": "decline"}, {"decision": "cancel"})
    old = _read("execCommandApproval", _QUESTIONS[-2][1])
    denied = {"decision": {"denied": {"rejection": "refused"}}}
    assert (old.declined, old.cancelled) == (denied, {"decision": "abort"})


def test_a_question_about_a_bare_id_has_what_was_told_before() -> None:
    """codex asks about file changes without saying which."""
    known = {"call-1": KnownItem(title="Change a.txt", raw_input=Raw(b'{"changes":[]}'))}
    ask = _read("item/fileChange/requestApproval", _ITEM, known).ask
    assert (ask.question, ask.input) == ("Change a.txt", Raw(b'{"changes":[]}'))
    command = _read("item/commandExecution/requestApproval", {**_ITEM, "command": "sh -c ls"}, known).ask
    assert command.question == "Run Change a.txt"
    assert _read("item/fileChange/requestApproval", _ITEM).ask.input is UNSET


def test_a_label_is_the_answer_to_its_question() -> None:
    """codex wants it under the question's id."""
    _, params, *_ = _QUESTIONS[8]
    result = _read("item/tool/requestUserInput", params).result(PermissionAnswer(option_id="answer-2"))
    assert result == {"answers": {"q": {"answers": ["blue"]}}}


def test_other_requests_are_not_questions() -> None:
    """Whoever reads them has to refuse them."""
    assert read_question(IncomingRequest(1, "item/tool/call", Raw(b"{}")), {}, _PROFILE) is None


@pytest.mark.parametrize("method", sorted({method for method, *_ in _QUESTIONS} - {"item/tool/requestUserInput"}))
def test_a_broken_question_is_refused(method: str) -> None:
    """Without the members that name what it is about."""
    with pytest.raises(msgspec.ValidationError):
        _read(method, {"itemId": 3, "callId": 3, "serverName": 3})
