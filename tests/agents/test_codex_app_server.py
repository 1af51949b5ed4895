"""Real codex over its app-server, with stand-in models: what is special to it. The conformance suite is run beside."""

import json
import sys
from collections.abc import Generator
from pathlib import Path
from typing import Any

import msgspec
import pytest
import trio
import trio.testing

from avenor.host import tree
from avenor.host.ladder import Graces
from avenor.protocol import events
from avenor.protocol.mcp import McpServer
from avenor.runtimes.backends.base import BackendRefused, OpenParams, PermissionAnswer, TurnStop, open_within
from tests.agents.acp_dialects import DialectModel
from tests.agents.codex_app_server import MODEL, OTHER_MODEL, VERSION, CodexHome, CodexKit, steps
from tests.agents.codex_model import ItemModel
from tests.agents.standin_model import StandInModel
from tests.helpers import eventually
from tests.runtimes.agent_kit import GRACES, OPEN_SECONDS, TURN_SECONDS, RecordingSink, never, opened, picks

pytestmark = pytest.mark.agents

_PATCH = "*** Begin Patch\n*** Add File: new.txt\n+some content\n*** End Patch\n"
_MCP_SERVER = """
import json, os, sys
for line in sys.stdin:
    call = json.loads(line)
    match call.get("method"):
        case "initialize":
            result = {"protocolVersion": call["params"]["protocolVersion"], "capabilities": {"tools": {}}}
            result["serverInfo"] = {"name": "pinger", "version": "0"}
        case "tools/list":
            result = {"tools": [{"name": "ping", "description": "Says pong", "inputSchema": {"type": "object"}}]}
        case "tools/call":
            result = {"content": [{"type": "text", "text": "pong " + os.environ["WORD"]}]}
        case _:
            result = {}
    if "id" in call:
        print(json.dumps({"jsonrpc": "2.0", "id": call["id"], "result": result}), flush=True)
"""


@pytest.fixture(scope="module")
def codex_model() -> Generator[StandInModel, None, None]:
    """The model that codex talks to, through a translator."""
    with StandInModel() as running:
        yield running


@pytest.fixture(scope="module")
def codex_home(codex_model: StandInModel, tmp_path_factory: pytest.TempPathFactory) -> Generator[CodexHome, None, None]:
    """A user who has codex; at the end nothing may run in this home."""
    with DialectModel(codex_model.url) as translator:
        made = CodexHome(tmp_path_factory.mktemp("codex-user"), translator.url)
        yield made
    assert tree.tagged("HOME", str(made.path)) == []


@pytest.fixture
def kit(codex_home: CodexHome, codex_model: StandInModel) -> CodexKit:
    """codex for the conformance suite."""
    return CodexKit(codex_home, codex_model)


@pytest.fixture(scope="module")
def items() -> Generator[ItemModel, None, None]:
    """A model that gives whatever items it is told."""
    with ItemModel() as running:
        yield running


@pytest.fixture(scope="module")
def item_home(items: ItemModel, tmp_path_factory: pytest.TempPathFactory) -> Generator[CodexHome, None, None]:
    """A user whose codex talks to that one."""
    plan = "tools.update_plan.enabled = true"
    features = ("default_mode_request_user_input", "request_permissions_tool", "exec_permission_approvals")
    made = CodexHome(tmp_path_factory.mktemp("codex-items"), items.url, plan, features)
    yield made
    assert tree.tagged("HOME", str(made.path)) == []


@pytest.fixture
def item_kit(item_home: CodexHome, codex_model: StandInModel) -> CodexKit:
    """codex with the item model."""
    return CodexKit(item_home, codex_model)


def _picks_id(option_id: str) -> RecordingSink:
    async def answer(_ask: object) -> PermissionAnswer:
        await trio.lowlevel.checkpoint()
        return PermissionAnswer(option_id=option_id)

    return RecordingSink(answer)


def _last_result(items: ItemModel) -> str:
    """What the model was last told of a tool."""
    results = [item for item in items.bodies[-1]["input"] if str(item.get("type")).endswith("_output")]
    return json.dumps(results[-1])


def _plain(raw: object) -> Any:
    assert isinstance(raw, msgspec.Raw)
    return msgspec.json.decode(raw)


# What it tells


async def test_codex_tells_its_version(kit: CodexKit, tmp_path: Path) -> None:
    """Behind our own name, in what it calls its user agent."""
    async with opened(kit.backend, kit.params(tmp_path), RecordingSink()) as session:
        assert session.agent_version == f"codex {VERSION}"


async def test_thoughts_and_texts_of_codex_are_told_apart(kit: CodexKit, tmp_path: Path) -> None:
    """Each item has an id of its own, and its text is told once."""
    sink = RecordingSink()
    async with opened(kit.backend, kit.params(tmp_path), sink) as session:
        await session.prompt("[[reason: hm]][[text: one two three]]")
        await session.prompt("[[text: four]]")
    (thought,) = sink.of(events.ThoughtChunk)
    assert _plain(thought.content) == {"type": "text", "text": "hm"}
    assert sink.text() == "one two threefour"
    texts = {event.messageId for event in sink.of(events.MessageChunk)}
    assert len(texts) == 2
    assert thought.messageId not in texts


async def test_a_command_inside_the_sandbox_runs_unasked(item_kit: CodexKit, tmp_path: Path) -> None:
    """Its call has title, kind and input, its end the output and the exit status."""
    sink = RecordingSink(never)
    prompt = steps([{"call": "exec_command", "arguments": {"cmd": "echo loud; exit 3"}}], [{"text": "done"}])
    async with opened(item_kit.backend, item_kit.params(tmp_path), sink) as session:
        assert (await session.prompt(prompt)).stop_reason == "end_turn"
    assert sink.text() == "done"
    (call,) = sink.of(events.ToolCall)
    assert (call.title, call.kind, call.status) == ("echo loud; exit 3", "execute", "in_progress")
    end = sink.of(events.ToolCallUpdate)[-1]
    assert (end.toolCallId, end.status) == (call.toolCallId, "failed")
    output = _plain(end.rawOutput)
    assert (output["aggregatedOutput"].strip(), output["exitCode"]) == ("loud", 3)
    assert _plain(end.content)[0]["content"]["text"].strip() == "loud"


async def test_a_file_change_is_asked_for_with_its_files(item_kit: CodexKit, tmp_path: Path) -> None:
    """codex asks with the bare id of the item; the question has what the item told."""
    sink = RecordingSink(picks("allow_once"))
    prompt = steps([{"custom": "apply_patch", "input": _PATCH}], [{"text": "done"}])
    async with opened(item_kit.backend, item_kit.params(tmp_path, agent="read-only"), sink) as session:
        assert (await session.prompt(prompt)).stop_reason == "end_turn"
    (ask,) = sink.asks
    assert (ask.tool, ask.question, ask.trusted_options) == ("edit", "Change new.txt", ["accept"])
    assert (tmp_path / "new.txt").read_text() == "some content\n"
    (call,) = sink.of(events.ToolCall)
    assert _plain(call.locations) == [{"path": str(tmp_path / "new.txt")}]
    assert call.rawInput == ask.input
    assert sink.of(events.ToolCallUpdate)[-1].status == "completed"


async def test_the_plan_of_codex_is_told(item_kit: CodexKit, tmp_path: Path) -> None:
    """In the words that ACP has for it."""
    plan = [{"step": "look", "status": "in_progress"}, {"step": "leap", "status": "pending"}]
    prompt = steps([{"call": "update_plan", "arguments": {"plan": plan}}], [{"text": "done"}])
    sink = RecordingSink()
    async with opened(item_kit.backend, item_kit.params(tmp_path), sink) as session:
        await session.prompt(prompt)
    (told,) = sink.of(events.SessionPlan)
    assert _plain(told.entries) == [
        {"content": "look", "status": "in_progress", "priority": "medium"},
        {"content": "leap", "status": "pending", "priority": "medium"},
    ]


async def test_the_tokens_of_a_turn_are_those_of_all_its_requests(item_kit: CodexKit, tmp_path: Path) -> None:
    """Cached ones are counted apart; a resumed session does not count its past."""
    prompt = steps([{"call": "exec_command", "arguments": {"cmd": "true"}}], [{"text": "done"}])
    sink = RecordingSink()
    async with opened(item_kit.backend, item_kit.params(tmp_path), sink) as session:
        usages = [(await session.prompt(prompt)).usage for _ in range(2)]
    async with opened(item_kit.backend, item_kit.params(tmp_path, resume=session.session_id), sink) as session:
        usages.append((await session.prompt(prompt)).usage)
    expected = events.Usage(input_tokens=1200, output_tokens=40, total_tokens=2040, cached_read_tokens=800)
    assert usages == [expected] * 3
    assert {event.used for event in sink.of(events.SessionUsage)} == {1020}


# Questions


async def test_auto_approve_does_not_keep_codex_from_asking(kit: CodexKit, tmp_path: Path) -> None:
    """The run answers, so that the log has question and answer."""
    sink = RecordingSink(picks("allow_once"))
    params = msgspec.structs.replace(kit.params(tmp_path), auto_approve=True)
    async with opened(kit.backend, params, sink) as session:
        await session.prompt(kit.touch(tmp_path / "made.txt"))
    (ask,) = sink.asks
    assert (ask.tool, ask.question) == ("execute", "Run touch made.txt\nMay it?")
    assert (tmp_path / "made.txt").exists()


async def test_a_refused_tool_lets_the_turn_go_on(kit: CodexKit, tmp_path: Path) -> None:
    """The first option that rejects is codex's `decline`, which it does not list and takes."""
    sink = RecordingSink(picks("reject_once"))
    async with opened(kit.backend, kit.params(tmp_path), sink) as session:
        stop = await session.prompt(kit.touch(tmp_path / "made.txt"))
    assert (stop.stop_reason, stop.error, sink.text()) == ("end_turn", None, "touched")
    assert sink.of(events.ToolCallUpdate)[-1].status == "failed"
    assert not (tmp_path / "made.txt").exists()


async def test_a_tool_can_be_refused_together_with_the_turn(kit: CodexKit, tmp_path: Path) -> None:
    """codex then stops and waits for a prompt; nobody has cancelled."""
    sink = _picks_id("cancel")
    async with opened(kit.backend, kit.params(tmp_path), sink) as session:
        stop = await session.prompt(kit.touch(tmp_path / "made.txt"))
        assert (stop.stop_reason, stop.error, sink.text()) == ("end_turn", None, "")
        assert (await session.prompt(kit.say("and now?"))).stop_reason == "end_turn"
    assert not (tmp_path / "made.txt").exists()


@pytest.mark.parametrize("option_id", ["acceptForSession", "acceptWithExecpolicyAmendment"])
async def test_a_command_can_be_allowed_from_now_on(option_id: str, kit: CodexKit, tmp_path: Path) -> None:
    """Both of the wider answers are taken: the same command is not asked for again."""
    sink = _picks_id(option_id)
    async with opened(kit.backend, kit.params(tmp_path), sink) as session:
        for word in ("first", "second"):
            await session.prompt(f"[[shell: touch {option_id}.txt]][[text: {word}]]")
    assert sink.text() == "firstsecond"
    assert len(sink.asks) == 1


@pytest.mark.parametrize("mode", ["untrusted", "untrusted-full-access"])
async def test_every_command_is_asked_for_in_the_untrusted_modes(mode: str, item_kit: CodexKit, tmp_path: Path) -> None:
    """Even one that stays inside the sandbox, and one that only reads."""
    sink = RecordingSink(picks("allow_once"))
    prompt = steps([{"call": "exec_command", "arguments": {"cmd": "ls"}}], [{"text": "done"}])
    async with opened(item_kit.backend, item_kit.params(tmp_path, agent=mode), sink) as session:
        await session.prompt(prompt)
    assert [ask.question for ask in sink.asks] == ["Run ls"]


async def test_a_question_of_codex_to_the_user_is_answered_with_a_label(
    item_kit: CodexKit, items: ItemModel, tmp_path: Path
) -> None:
    """Each label is an option, and none of them may be taken for the user."""
    options = [{"label": "red", "description": "like fire"}, {"label": "blue", "description": "like ice"}]
    question = {"id": "q", "header": "Colour", "question": "Which one?", "options": options}
    prompt = steps([{"call": "request_user_input", "arguments": {"questions": [question]}}], [{"text": "done"}])
    sink = _picks_id("answer-2")
    async with opened(item_kit.backend, item_kit.params(tmp_path), sink) as session:
        await session.prompt(prompt)
    (ask,) = sink.asks
    assert (ask.question, ask.trusted_options) == ("Which one?", [])
    assert [option.name for option in ask.options] == ["red: like fire", "blue: like ice", "Do not answer"]
    assert "blue" in _last_result(items)


@pytest.mark.parametrize(("option_id", "is_granted"), [("accept", True), ("decline", False)])
async def test_more_permissions_are_granted_or_not(
    option_id: str, is_granted: bool, item_kit: CodexKit, items: ItemModel, tmp_path: Path
) -> None:
    """codex takes what we grant as it has asked for it."""
    wanted = {"reason": "to fetch", "permissions": {"network": {"enabled": True}}}
    prompt = steps([{"call": "request_permissions", "arguments": wanted}], [{"text": "done"}])
    sink = _picks_id(option_id)
    async with opened(item_kit.backend, item_kit.params(tmp_path), sink) as session:
        assert (await session.prompt(prompt)).stop_reason == "end_turn"
    (ask,) = sink.asks
    assert "to fetch" in ask.question
    assert ("enabled" in _last_result(items)) == is_granted


async def test_the_permissions_of_one_command_are_in_its_question(item_kit: CodexKit, tmp_path: Path) -> None:
    """People see what it would be allowed besides."""
    more = {
        "sandbox_permissions": "with_additional_permissions",
        "additional_permissions": {"network": {"enabled": True}},
    }
    call = {"call": "exec_command", "arguments": {"cmd": "ls", "justification": "to look", **more}}
    sink = RecordingSink(picks("allow_once"))
    async with opened(item_kit.backend, item_kit.params(tmp_path), sink) as session:
        await session.prompt(steps([call], [{"text": "done"}]))
    (ask,) = sink.asks
    assert ask.question == 'Run ls with {"network":{"enabled":true}}\nto look'


# Choices


@pytest.mark.parametrize(
    "mode", ["workspace-write", "read-only", "untrusted", "untrusted-full-access", "danger-full-access"]
)
async def test_codex_confirms_each_mode(mode: str, kit: CodexKit, tmp_path: Path) -> None:
    """What it reports of approval and sandbox is read as the mode's name."""
    async with opened(kit.backend, kit.params(tmp_path, agent=mode), RecordingSink()) as session:
        assert session.agent == mode


async def test_a_user_who_never_wants_to_be_asked_is_asked(
    codex_model: StandInModel, tmp_path_factory: pytest.TempPathFactory, tmp_path: Path
) -> None:
    """The configuration of codex does not switch our questions off: whether one is answered by itself is the run's."""
    with DialectModel(codex_model.url) as translator:
        config = 'approval_policy = "never"\nsandbox_mode = "danger-full-access"'
        home = CodexHome(tmp_path_factory.mktemp("codex-daring"), translator.url, config)
        kit, sink = CodexKit(home, codex_model), RecordingSink(picks("reject_once"))
        async with opened(kit.backend, kit.params(tmp_path), sink) as session:
            assert session.agent == "workspace-write"
            await session.prompt(kit.touch(tmp_path / "made.txt"))
    assert len(sink.asks) == 1


async def test_model_and_thinking_level_reach_the_model(item_kit: CodexKit, items: ItemModel, tmp_path: Path) -> None:
    """Also in a resumed session, whose earlier choice does not stick."""
    async with opened(item_kit.backend, item_kit.params(tmp_path), RecordingSink()) as session:
        await session.prompt(steps([{"text": "as it comes"}]))
    params = item_kit.params(tmp_path, resume=session.session_id, model=OTHER_MODEL, thinking="high")
    async with opened(item_kit.backend, params, RecordingSink()) as session:
        await session.prompt(steps([{"text": "chosen"}]))
        assert session.model == OTHER_MODEL
    asked = [body for body in items.bodies if body["model"] in (MODEL, OTHER_MODEL)]
    assert asked[-2]["model"] == MODEL
    assert (asked[-1]["model"], asked[-1]["reasoning"]["effort"]) == (OTHER_MODEL, "high")


async def test_a_thinking_level_that_is_not_offered_is_refused(kit: CodexKit, tmp_path: Path) -> None:
    """codex itself would take any word."""
    refusal = await _refusal(kit, kit.params(tmp_path, thinking="bogus"))
    assert refusal.reason_word == "unknown_thinking"
    assert "high" in refusal.data["offers"]


async def test_the_configured_model_may_be_one_that_codex_does_not_list(
    codex_model: StandInModel, tmp_path_factory: pytest.TempPathFactory, tmp_path: Path
) -> None:
    """As with a provider of one's own: it is in use, so it is offered, and can be asked for by name."""
    with DialectModel(codex_model.url) as translator:
        home = CodexHome(tmp_path_factory.mktemp("codex-own"), translator.url)
        config = home.path / ".codex" / "config.toml"
        config.write_text(config.read_text().replace(MODEL, "homemade"))
        kit = CodexKit(home, codex_model)
        async with opened(kit.backend, kit.params(tmp_path, model="homemade"), RecordingSink()) as session:
            assert session.model == "homemade"
            assert session.capabilities.models[0] == "homemade"
        refusal = await _refusal(kit, kit.params(tmp_path, model="handmade"))
    assert "homemade" in refusal.message


async def test_a_broken_configuration_is_told_in_the_words_of_codex(kit: CodexKit, tmp_path: Path) -> None:
    """Whether codex ends or answers with an error, the reason is in the message."""
    broken = tmp_path / "broken"
    broken.mkdir()
    (broken / "config.toml").write_text('model = "x"\napproval_policy = 7\n')
    params = kit.params(tmp_path)
    params = msgspec.structs.replace(params, env={**params.env, "CODEX_HOME": str(broken)})
    async with trio.open_nursery() as nursery:
        with pytest.raises(Exception, match=r"broken/config\.toml"):
            await open_within(OPEN_SECONDS, kit.backend, params, RecordingSink(), nursery)
    assert tree.tagged(*params.tag) == []


# MCP servers


def _server(folder: Path) -> McpServer:
    source = folder / "server.py"
    source.write_text(_MCP_SERVER)
    return McpServer(name="pinger", command=sys.executable, args=[str(source)], env={"WORD": "at last"})


_PING = steps([{"call": "ping", "namespace": "mcp__pinger", "arguments": {}}], [{"text": "done"}])


async def test_codex_uses_an_mcp_server_that_it_is_handed(item_kit: CodexKit, tmp_path: Path) -> None:
    """Its tool is asked for, runs with the server's environment, and is told; the server goes when codex does."""
    sink = RecordingSink(picks("allow_once"))
    params = item_kit.params(tmp_path, mcp_servers=[_server(tmp_path)])
    async with opened(item_kit.backend, params, sink) as session:
        assert (await session.prompt(_PING)).stop_reason == "end_turn"
        # Amid an exec, as the tool may be, a process shows no environment.
        await eventually(lambda: len(tree.tagged(*params.tag)) >= 2)
    (ask,) = sink.asks
    assert (ask.tool, ask.trusted_options) == ("ping", ["accept"])
    assert "pinger" in ask.question
    (call,) = sink.of(events.ToolCall)
    assert (call.title, call.kind) == ("pinger: ping", "other")
    end = sink.of(events.ToolCallUpdate)[-1]
    assert end.status == "completed"
    assert _plain(end.rawOutput)["result"]["content"] == [{"type": "text", "text": "pong at last"}]
    assert tree.tagged(*params.tag) == []


async def test_a_refused_mcp_tool_lets_the_turn_go_on(item_kit: CodexKit, tmp_path: Path) -> None:
    """Its end is a failure."""
    sink = RecordingSink(picks("reject_once"))
    params = item_kit.params(tmp_path, mcp_servers=[_server(tmp_path)])
    async with opened(item_kit.backend, params, sink) as session:
        assert (await session.prompt(_PING)).stop_reason == "end_turn"
    assert sink.text() == "done"
    assert sink.of(events.ToolCallUpdate)[-1].status == "failed"


async def test_an_mcp_tool_can_be_allowed_for_the_session(item_kit: CodexKit, tmp_path: Path) -> None:
    """It is asked for once."""
    sink = _picks_id("acceptForSession")
    params = item_kit.params(tmp_path, mcp_servers=[_server(tmp_path)])
    async with opened(item_kit.backend, params, sink) as session:
        for _ in range(2):
            await session.prompt(_PING)
    assert len(sink.asks) == 1
    assert [event.status for event in sink.of(events.ToolCallUpdate)] == ["completed", "completed"]


async def test_an_mcp_server_that_does_not_start_is_told(kit: CodexKit, tmp_path: Path) -> None:
    """codex goes on without it, and the log has an error that names it."""
    sink = RecordingSink()
    server = McpServer(name="missing", command="/no/such/program")
    async with opened(kit.backend, kit.params(tmp_path, mcp_servers=[server]), sink) as session:
        assert (await session.prompt(kit.say("anyway"))).stop_reason == "end_turn"
        (error,) = await sink.wait_for(events.Error)
    assert "'missing' did not start" in error.message


async def test_a_kind_of_mcp_server_that_codex_cannot_take_is_refused(kit: CodexKit, tmp_path: Path) -> None:
    """Before anything is started."""
    server = McpServer(name="old", type="sse", url="http://127.0.0.1:9/sse")
    refusal = await _refusal(kit, kit.params(tmp_path, mcp_servers=[server]))
    assert refusal.reason_word == "unsupported_mcp"


# Failures


@pytest.mark.parametrize(
    ("directive", "failure_class", "permanent", "reason", "words"),
    [
        ("[[error: 400]]", "unknown", True, "invalid_request", "stand-in error 400"),
        ("[[error: 401]]", "unknown", True, "auth", "stand-in error 401"),
        ("[[error: 404]]", "unknown", True, "not_found", "stand-in error 404"),
        ("[[error: 429]]", "rate_limit", False, "", "429"),
        ("[[error: 500]]", "overloaded", False, "", "high demand"),
        ("[[drop]]", "transport", False, "", "disconnected"),
    ],
)
async def test_a_lasting_fault_of_the_model_is_told(
    kit: CodexKit, tmp_path: Path, directive: str, failure_class: str, permanent: bool, reason: str, words: str
) -> None:
    """codex tries most of them again; in the end the turn has failed, with its words, and the session goes on."""
    async with opened(kit.backend, kit.params(tmp_path), RecordingSink()) as session:
        stop = await session.prompt(f"{directive} {tmp_path.name}")
        assert stop.stop_reason == "error"
        error = stop.error
        assert error is not None
        assert (error.failure_class, error.permanent, error.reason) == (failure_class, permanent, reason)
        assert words in error.message
        assert (await session.prompt(kit.say("still here"))).stop_reason == "end_turn"


@pytest.mark.parametrize("directive", ["[[error: 500 x1]]", "[[drop: 1]]"])
async def test_a_fault_that_passes_is_sat_out_by_codex(directive: str, kit: CodexKit, tmp_path: Path) -> None:
    """The turn ends well; the error that codex tells before it tries again is no end."""
    sink = RecordingSink()
    async with opened(kit.backend, kit.params(tmp_path), sink) as session:
        stop = await session.prompt(f"{directive}[[text: whole]] {tmp_path.name}")
    assert (stop.stop_reason, stop.error) == ("end_turn", None)
    assert sink.text().endswith("whole")


# Ends


async def test_a_cancel_that_comes_at_once_is_not_lost(kit: CodexKit, tmp_path: Path) -> None:
    """codex refuses to interrupt a turn that it has not begun, so the interrupt waits for that."""
    sink = RecordingSink()
    async with opened(kit.backend, kit.params(tmp_path), sink) as session, trio.open_nursery() as nursery:
        stops: list[TurnStop] = []

        async def talk() -> None:
            stops.append(await session.prompt(kit.talk_on()))

        nursery.start_soon(talk)
        await trio.testing.wait_all_tasks_blocked()  # it is sent, and nothing has come back
        await session.cancel()
        await eventually(lambda: stops, seconds=TURN_SECONDS)
        assert (stops[0].stop_reason, stops[0].error) == ("cancelled", None)
        assert (await session.prompt(kit.say("whole again"))).stop_reason == "end_turn"


_NO_STDIN = Graces(stdin_seconds=0.0, term_seconds=5.0, kill_seconds=5.0)
_KILL = Graces(stdin_seconds=0.0, term_seconds=0.0, kill_seconds=5.0)


@pytest.mark.parametrize("graces", [GRACES, _NO_STDIN, _KILL], ids=["stdin", "term", "kill"])
@pytest.mark.parametrize("is_inside", [True, False], ids=["sandboxed", "unsandboxed"])
async def test_nothing_is_left_whatever_ends_codex(
    graces: Graces, is_inside: bool, item_kit: CodexKit, tmp_path: Path
) -> None:
    """With a tool running, inside its sandbox or, with leave, outside of it."""
    sink, begun = RecordingSink(picks("allow_once")), tmp_path / "begun"
    arguments: dict[str, object] = {"cmd": "touch begun; exec python3 -c 'import time; time.sleep(60)'"}
    if not is_inside:
        arguments |= {"sandbox_permissions": "require_escalated", "justification": "May it?"}
    prompt = steps([{"call": "exec_command", "arguments": arguments}], [{"text": "done"}])
    params = item_kit.params(tmp_path)
    async with opened(item_kit.backend, params, sink) as session, trio.open_nursery() as nursery:
        nursery.start_soon(session.prompt, prompt)
        await eventually(begun.exists, seconds=TURN_SECONDS)
        # Amid an exec, as the tool may be, a process shows no environment.
        await eventually(lambda: len(tree.tagged(*params.tag)) >= 2)
        assert (await session.close(graces)).left == []
        assert tree.tagged(*params.tag) == []
    assert len(sink.asks) == (0 if is_inside else 1)


async def test_two_sessions_share_one_home(kit: CodexKit, tmp_path: Path) -> None:
    """Each of a process of its own, at the same moment."""
    sinks = {name: RecordingSink() for name in ("left", "right")}

    async def talk(name: str) -> None:
        async with opened(kit.backend, kit.params(tmp_path), sinks[name]) as session:
            await session.prompt(kit.say(f"I am {name}"))

    async with trio.open_nursery() as nursery:
        for name in sinks:
            nursery.start_soon(talk, name)
    assert [sink.text() for sink in sinks.values()] == ["I am left", "I am right"]


async def _refusal(kit: CodexKit, params: OpenParams) -> BackendRefused:
    async with trio.open_nursery() as nursery:
        with pytest.raises(BackendRefused) as caught:
            await open_within(OPEN_SECONDS, kit.backend, params, RecordingSink(), nursery)
    assert tree.tagged(*params.tag) == []
    return caught.value
