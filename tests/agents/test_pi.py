"""Real pi, both lines of it, with a stand-in model: what is special to pi, beside the conformance suite."""

import os
import signal
from collections.abc import Generator
from pathlib import Path

import msgspec
import pytest
import trio

from avenor.host import tree
from avenor.protocol import events
from avenor.protocol.mcp import McpServer
from avenor.runtimes.backends.base import BackendRefused, OpenParams, PermissionAsk, TurnStop, open_within
from tests.agents.pi_agent import LINES, PiHome, PiKit, PiLine
from tests.agents.standin_model import StandInModel
from tests.helpers import eventually
from tests.runtimes.agent_kit import GRACES, OPEN_SECONDS, TURN_SECONDS, RecordingSink, never, opened, picks

pytestmark = pytest.mark.agents


@pytest.fixture(scope="module")
def pi_model() -> Generator[StandInModel, None, None]:
    """The model that pi talks to."""
    with StandInModel() as running:
        yield running


@pytest.fixture(scope="module", params=LINES, ids=lambda line: line.version)
def line(request: pytest.FixtureRequest) -> PiLine:
    """Each line of pi."""
    chosen: PiLine = request.param
    return chosen


@pytest.fixture(scope="module")
def pi_home(line: PiLine, pi_model: StandInModel, tmp_path_factory: pytest.TempPathFactory) -> PiHome:
    """A user who has it; at the end nothing may run in this home."""
    return PiHome(line, tmp_path_factory.mktemp("pi-user"), pi_model.url)


@pytest.fixture(scope="module", autouse=True)
def nothing_left(pi_home: PiHome) -> Generator[None, None, None]:
    """When all tests of a line are over, nothing of it runs."""
    yield
    assert tree.tagged("HOME", str(pi_home.path)) == []


@pytest.fixture
def kit(pi_home: PiHome, pi_model: StandInModel) -> PiKit:
    """pi for the conformance suite."""
    return PiKit(pi_home, pi_model)


async def test_pi_tells_its_version(kit: PiKit, line: PiLine, tmp_path: Path) -> None:
    """Our extension reads it from pi's own package."""
    async with opened(kit.backend, kit.params(tmp_path), RecordingSink()) as session:
        assert session.agent_version == f"pi {line.version}"


async def test_thoughts_and_texts_of_pi_are_told_apart(kit: PiKit, tmp_path: Path) -> None:
    """Each block of a message has an id of its own, and so has each message."""
    sink = RecordingSink()
    async with opened(kit.backend, kit.params(tmp_path), sink) as session:
        await session.prompt("[[reason: let me see]][[text: one two three]]")
        await session.prompt("[[text: four]]")
    thoughts = sink.of(events.ThoughtChunk)
    assert "".join(msgspec.json.decode(event.content)["text"] for event in thoughts) == "let me see"
    assert sink.text() == "one two threefour"
    texts = {event.messageId for event in sink.of(events.MessageChunk)}
    assert len(texts) == 2
    assert texts.isdisjoint(event.messageId for event in thoughts)


async def test_pi_asks_with_the_whole_tool_call(kit: PiKit, tmp_path: Path) -> None:
    """The question has the tool, its input and a sentence; the tool's events have title, kind, input and output."""
    sink = RecordingSink(picks("allow_once"))
    async with opened(kit.backend, kit.params(tmp_path), sink) as session:
        await session.prompt("[[shell: echo made > made.txt; echo loud]][[text: done]]")
    (ask,) = sink.asks
    assert (ask.tool, ask.question) == ("bash", "echo made > made.txt; echo loud")
    assert isinstance(ask.input, msgspec.Raw)
    assert msgspec.json.decode(ask.input)["command"] == ask.question
    assert (ask.trusted_options, [option.kind for option in ask.options]) == (["Allow"], ["allow_once", "reject_once"])
    (call,) = sink.of(events.ToolCall)
    assert (call.title, call.kind) == (ask.question, "execute")
    last = sink.of(events.ToolCallUpdate)[-1]
    assert (last.toolCallId, last.status) == (call.toolCallId, "completed")
    assert isinstance(last.content, msgspec.Raw)
    assert b"loud" in bytes(last.content)


async def test_pi_tells_a_rejected_tool_as_failed(kit: PiKit, tmp_path: Path) -> None:
    """The model hears that the user rejected it, and the turn goes on."""
    sink = RecordingSink(picks("reject_once"))
    async with opened(kit.backend, kit.params(tmp_path), sink) as session:
        stop = await session.prompt("[[write: made.txt | hello]][[text: as you like]]")
    assert stop.stop_reason == "end_turn"
    assert sink.text() == "as you like"
    assert sink.of(events.ToolCallUpdate)[-1].status == "failed"
    assert not (tmp_path / "made.txt").exists()


async def test_pi_does_not_ask_with_auto_approve(kit: PiKit, tmp_path: Path) -> None:
    """Then it acts as it does by itself."""
    sink = RecordingSink(never)
    params = msgspec.structs.replace(kit.params(tmp_path), auto_approve=True)
    async with opened(kit.backend, params, sink) as session:
        assert (await session.prompt(kit.touch(tmp_path / "made.txt"))).stop_reason == "end_turn"
    assert sink.asks == []
    assert (tmp_path / "made.txt").exists()


async def test_usage_and_cost_of_pi_are_summed_over_a_turn(kit: PiKit, tmp_path: Path) -> None:
    """Two answers of the model are one turn; pi knows the model's prices."""
    sink = RecordingSink(picks("allow_once"))
    async with opened(kit.backend, kit.params(tmp_path), sink) as session:
        stop = await session.prompt("[[usage: 1000 50]][[shell: true]][[text: done]]")
    told = sink.of(events.SessionUsage)
    assert stop.usage is not None
    assert len(told) == 2
    assert stop.usage.total_tokens == sum(event.used for event in told)
    assert {event.size for event in told} == {128000}
    cost = (stop.usage.input_tokens + 2 * stop.usage.output_tokens) / 1e6
    assert stop.usage.cost_usd == pytest.approx(cost)


@pytest.mark.parametrize(
    ("directive", "failure_class", "permanent", "reason"),
    [
        ("[[error: 400]]", "unknown", True, "invalid_request"),
        ("[[error: 401]]", "unknown", True, "auth"),
        ("[[error: 429]]", "rate_limit", False, ""),
        ("[[error: 500]]", "overloaded", False, ""),
    ],
)
async def test_a_lasting_fault_of_the_model_is_told(
    kit: PiKit, tmp_path: Path, directive: str, failure_class: str, permanent: bool, reason: str
) -> None:
    """pi tries some of them again, for up to half a minute; in the end the turn has failed, with the model's words."""
    sink = RecordingSink()
    async with opened(kit.backend, kit.params(tmp_path), sink) as session:
        stop = await session.prompt(f"{directive} {tmp_path.name}")
        assert stop.stop_reason == "error"
        assert stop.error is not None
        error = stop.error
        assert (error.failure_class, error.permanent, error.reason) == (failure_class, permanent, reason)
        assert (await session.prompt(kit.say("still here"))).stop_reason == "end_turn"


async def test_an_answer_that_just_ends_is_a_fault_to_the_newer_pi(kit: PiKit, line: PiLine, tmp_path: Path) -> None:
    """0.73 takes it for a whole answer, and nothing that it says tells the difference."""
    async with opened(kit.backend, kit.params(tmp_path), RecordingSink()) as session:
        stop = await session.prompt(f"[[drop]] {tmp_path.name}")
    if line.version.startswith("0."):
        assert stop == TurnStop(stop_reason="end_turn")
    else:
        assert stop.error is not None
        assert (stop.stop_reason, stop.error.failure_class, stop.error.permanent) == ("error", "transport", False)


async def test_a_fault_that_passes_is_sat_out_by_pi(kit: PiKit, tmp_path: Path) -> None:
    """The turn ends well; the tries before it are no end."""
    sink = RecordingSink()
    async with opened(kit.backend, kit.params(tmp_path), sink) as session:
        stop = await session.prompt(f"[[error: 500 x3]][[text: whole]] {tmp_path.name}")
    assert (stop.stop_reason, stop.error) == ("end_turn", None)
    assert sink.text() == "whole"
    assert _updates(sink, b"auto_retry_start")


async def test_a_cancel_ends_the_wait_for_another_try(kit: PiKit, tmp_path: Path) -> None:
    """While pi waits before it tries a failing model again, it can be cancelled as ever."""
    sink = RecordingSink()
    async with opened(kit.backend, kit.params(tmp_path), sink) as session, trio.open_nursery() as nursery:
        stops: list[TurnStop] = []

        async def turn() -> None:
            stops.append(await session.prompt("[[error: 500]] for good"))

        nursery.start_soon(turn)
        await eventually(lambda: _updates(sink, b"auto_retry_start"), seconds=TURN_SECONDS)
        await session.cancel()
        await eventually(lambda: stops, seconds=TURN_SECONDS)
        assert stops[0].stop_reason == "cancelled"
        assert (await session.prompt(kit.say("next"))).stop_reason == "end_turn"
        assert sink.text().endswith("next")


async def test_a_killed_pi_leaves_its_tool_to_the_ladder(kit: PiKit, tmp_path: Path) -> None:
    """After kill -9 the tool runs on; closing finds and ends it, and the session can be resumed."""
    sink, params = RecordingSink(picks("allow_once")), kit.params(tmp_path)
    async with opened(kit.backend, params, sink) as session, trio.open_nursery() as nursery:
        await session.prompt(kit.say("The word is HERON."))
        nursery.start_soon(session.prompt, kit.work_on(tmp_path / "begun"))
        await eventually((tmp_path / "begun").exists, seconds=TURN_SECONDS)
        os.kill(session.agent_pid, signal.SIGKILL)
        await session.wait_exited()
        assert tree.tagged(*params.tag)
        assert (await session.close(GRACES)).left == []
        assert tree.tagged(*params.tag) == []
    async with opened(kit.backend, kit.params(tmp_path, resume=session.session_id), RecordingSink()) as resumed:
        await resumed.prompt(kit.recall())
        assert kit.has_recalled("HERON", "")


async def test_pi_takes_a_model_by_its_bare_id(kit: PiKit, tmp_path: Path) -> None:
    """The session tells the whole name; the user's default stays as it was."""
    before = (kit.home.settings / "settings.json").read_text()
    params = kit.params(tmp_path, model="thinker", thinking="low")
    async with opened(kit.backend, params, RecordingSink()) as session:
        assert session.model == "standin/thinker"
        assert {"off", "low", "high"} <= set(session.capabilities.thinking)
    assert (kit.home.settings / "settings.json").read_text() == before


@pytest.mark.parametrize("wanted", ["no-such", "standin/no-such", "no/such", "thin"])
async def test_a_model_that_pi_would_guess_is_refused(kit: PiKit, tmp_path: Path, wanted: str) -> None:
    """pi takes a part of a name, and makes up a model of a known provider; we want the one that was named."""
    refusal = await _refusal(kit, tmp_path, model=wanted)
    assert refusal.reason_word == "unknown_model"
    assert "standin/small" in refusal.data["offers"]


@pytest.mark.parametrize(("model", "wanted"), [("standin/small", "high"), ("standin/thinker", "deepest")])
async def test_a_thinking_level_that_the_model_lacks_is_refused(
    kit: PiKit, tmp_path: Path, model: str, wanted: str
) -> None:
    """pi would quietly take the nearest."""
    refusal = await _refusal(kit, tmp_path, model=model, thinking=wanted)
    assert refusal.reason_word == "unknown_thinking"
    assert "off" in refusal.data["offers"]


async def test_pi_takes_no_mcp_servers(kit: PiKit, tmp_path: Path) -> None:
    """They are refused before it is started."""
    params = msgspec.structs.replace(kit.params(tmp_path), mcp_servers=[McpServer(name="ping", command="ping")])
    assert (await _refused(kit, params)).reason_word == "unsupported_mcp"


async def test_a_session_of_another_folder_is_not_resumed(kit: PiKit, tmp_path: Path) -> None:
    """pi would ask whether to copy it; that is no answer to who wanted this one."""
    first, second = tmp_path / "first", tmp_path / "second"
    first.mkdir()
    second.mkdir()
    async with opened(kit.backend, kit.params(first), RecordingSink()) as session:
        await session.prompt(kit.say("hello"))
    assert (await _refusal(kit, second, resume=session.session_id)).reason_word == "resume_failed"


async def test_a_part_of_a_session_id_is_not_resumed(kit: PiKit, tmp_path: Path) -> None:
    """pi would take the first session that begins so."""
    async with opened(kit.backend, kit.params(tmp_path), RecordingSink()) as session:
        await session.prompt(kit.say("hello"))
    assert (await _refusal(kit, tmp_path, resume=session.session_id[:8])).reason_word == "resume_failed"


async def test_a_command_of_an_extension_ends_its_turn(kit: PiKit, tmp_path: Path) -> None:
    """It does not reach the model, and pi tells no end of it: the turn ends all the same, and so does the next."""
    sink = RecordingSink()
    async with opened(kit.backend, kit.params(tmp_path), sink) as session:
        assert await session.prompt("/avenor") == TurnStop(stop_reason="end_turn")
        assert (await session.prompt(kit.say("hello"))).stop_reason == "end_turn"
        assert sink.text() == "hello"


_ASKING = """
export default function (pi: any) {
    pi.registerCommand("survey", { description: "", handler: async (_args: string, ctx: any) => {
        const sure = await ctx.ui.confirm("Sure?", "It cannot be undone");
        const colour = await ctx.ui.select("Which?", ["Red", "Never"]);
        const name = await ctx.ui.input("Your name?");
        ctx.ui.notify(JSON.stringify({ sure, colour, name: name ?? null }), "info");
    } });
}
"""


async def test_questions_of_the_users_extensions_are_asked(kit: PiKit, tmp_path: Path) -> None:
    """Those with options are asked, one that wants text is told that nobody gives it; what it shows is kept."""
    kit.home.add_extension("survey", _ASKING)
    sink = RecordingSink(picks("allow_once"))
    async with opened(kit.backend, kit.params(tmp_path), sink) as session:
        assert (await session.prompt("/survey")).stop_reason == "end_turn"
    assert [_summary(ask) for ask in sink.asks] == [
        ("Sure?: It cannot be undone", ["Yes", "No"], ["Yes"]),
        ("Which?", ["Red", "Never"], []),
    ]
    (shown,) = _updates(sink, b'"notify"')
    assert msgspec.json.decode(msgspec.json.decode(shown)["message"]) == {"sure": True, "colour": "Red", "name": None}
    assert "Your name?" in sink.of(events.Error)[0].message


def _summary(ask: PermissionAsk) -> tuple[str, list[str], list[str]]:
    return ask.question, [option.name for option in ask.options], list(ask.trusted_options)


def _updates(sink: RecordingSink, words: bytes) -> list[bytes]:
    return [bytes(event.update) for event in sink.of(events.SessionUpdate) if words in bytes(event.update)]


async def _refusal(kit: PiKit, folder: Path, **wanted: str) -> BackendRefused:
    return await _refused(kit, kit.params(folder, **wanted))


async def _refused(kit: PiKit, params: OpenParams) -> BackendRefused:
    async with trio.open_nursery() as nursery:
        with pytest.raises(BackendRefused) as caught:
            await open_within(OPEN_SECONDS, kit.backend, params, RecordingSink(), nursery)
    assert tree.tagged(*params.tag) == []
    return caught.value
