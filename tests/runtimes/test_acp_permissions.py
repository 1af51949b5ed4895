"""Questions of agents: reading them, and which options may be taken for the user."""

import json

import msgspec
import pytest
from acp import schema
from msgspec import UNSET, Raw

from avenor.protocol.events import PermissionOption
from avenor.runtimes.backends.acp_permissions import KnownTool, is_allowed, outcome, read_ask, trusted_options
from avenor.runtimes.backends.base import PermissionAnswer, PermissionAsk
from avenor.runtimes.backends.profiles import builtin
from tests.runtimes.transcripts import agent_messages, backend_of

_ACP = builtin("acp")


def _option(option_id: str, kind: str, name: str = "") -> PermissionOption:
    return PermissionOption(option_id=option_id, kind=kind, name=name)


def test_every_recorded_question_can_be_asked_and_approved_once() -> None:
    """Every agent's permission request is valid ACP, has a text, and one option that auto-approve may take."""
    checked = 0
    for name, message in agent_messages("session/request_permission"):
        schema.RequestPermissionRequest.model_validate(message["params"])
        raw = Raw(json.dumps(message["params"]).encode())
        ask = read_ask(raw, {}, builtin(backend_of(name)))
        assert ask.question, name
        assert ask.tool, name
        assert msgspec.json.decode(ask.payload) == message["params"], name
        kinds = {option.option_id: option.kind for option in ask.options}
        assert kinds == {option["optionId"]: option["kind"] for option in message["params"]["options"]}, name
        assert [kinds[option_id] for option_id in ask.trusted_options] == ["allow_once"], name
        checked += 1
    assert checked >= 20


def test_a_question_with_a_bare_id_is_filled_in_from_the_tool_call_before_it() -> None:
    """vibe asks with nothing but the tool call's id."""
    raw = Raw(b'{"sessionId":"s","toolCall":{"toolCallId":"t"},"options":[]}')
    known = {"t": KnownTool(title="bash: echo hi", kind="execute", raw_input=Raw(b'{"command":"echo hi"}'))}
    ask = read_ask(raw, known, _ACP)
    assert (ask.tool, ask.question) == ("execute", "bash: echo hi")
    assert ask.input is not UNSET
    assert bytes(ask.input) == b'{"command":"echo hi"}'
    unknown = read_ask(raw, {}, _ACP)
    assert (unknown.tool, unknown.question, unknown.input) == ("tool", "Allow this tool call?", UNSET)


def test_what_the_question_says_itself_comes_first() -> None:
    """A title in the request is newer than the tool call's."""
    raw = Raw(b'{"toolCall":{"toolCallId":"t","title":"rm x","rawInput":1,"name":"Bash"},"options":[]}')
    ask = read_ask(raw, {"t": KnownTool(title="old", raw_input=Raw(b"2"))}, _ACP)
    assert (ask.tool, ask.question) == ("Bash", "rm x")
    assert ask.input is not UNSET
    assert bytes(ask.input) == b"1"


def test_params_that_are_no_question_are_refused() -> None:
    """Without options there is nothing to choose."""
    with pytest.raises(msgspec.ValidationError):
        read_ask(Raw(b'{"toolCall":{"toolCallId":"t"}}'), {}, _ACP)


def test_auto_approve_never_takes_an_always_or_a_reject_word() -> None:
    """By kind, but not blindly: pi-acp's `Reject` has the kind allow_once."""
    options = [
        _option("always", "allow_always"),
        _option("choice-1", "allow_once", "Reject"),
        _option("deny", "allow_once", "Fine"),
        _option("choice-0", "allow_once", "Allow"),
        _option("no", "reject_once"),
    ]
    assert trusted_options(options, _ACP) == ["choice-0"]


def test_opencode_is_trusted_by_id() -> None:
    """Another option of the right kind would be news, and is not taken."""
    options = [_option("once-and-switch-mode", "allow_once"), _option("once", "allow_once", "Allow once")]
    assert trusted_options(options, builtin("opencode-acp")) == ["once"]


def test_the_option_of_qwen_that_changes_the_mode_is_not_taken() -> None:
    """0.24 offers two of kind allow_once where a model has doubts."""
    options = [
        _option("proceed_once_and_switch_to_default", "allow_once", "Switch to Default Mode and allow once"),
        _option("proceed_once", "allow_once", "Allow"),
        _option("cancel", "reject_once", "Reject"),
    ]
    assert trusted_options(options, builtin("qwen-acp")) == ["proceed_once"]


@pytest.mark.parametrize(
    ("option_id", "allowed"),
    [("yes", True), ("always", True), ("no", False), ("choice-1", False), (None, False), ("unknown", False)],
)
def test_an_answer_allows_or_it_does_not(option_id: str | None, allowed: bool) -> None:
    """By the kind of the option, and not where its name says no; no option is a no as well."""
    options = [
        _option("yes", "allow_once"),
        _option("always", "allow_always"),
        _option("no", "reject_once"),
        _option("choice-1", "allow_once", "Reject"),
    ]
    ask = PermissionAsk(tool="t", question="?", options=options, payload=Raw(b"{}"))
    assert is_allowed(ask, PermissionAnswer(option_id=option_id)) is allowed


@pytest.mark.parametrize("option_id", ["once", None])
def test_the_answer_is_what_the_schema_says(option_id: str | None) -> None:
    """Selected with its option, or cancelled."""
    answer = outcome(PermissionAnswer(option_id=option_id, message="because"))
    decoded = schema.RequestPermissionResponse.model_validate(answer)
    assert decoded.model_dump(by_alias=True, exclude_unset=True) == answer
    assert decoded.outcome.outcome == ("selected" if option_id else "cancelled")
