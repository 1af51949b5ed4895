"""Opening a session, and every way in which it can fail: nothing is left running, and the error says what to do."""

import os
import resource
import signal
from pathlib import Path

import msgspec
import pytest
import trio
from trio.testing import MockClock

from avenor.host import tree
from avenor.host.identity import ProcessId, is_alive
from avenor.host.ladder import Graces
from avenor.protocol import events
from avenor.protocol.errors import AgentExited, AvenorError, HandshakeTimeout, InvalidParams, SpawnError
from avenor.protocol.spec import BACKENDS, PROGRESS_DEFAULTS
from avenor.runtimes.backends.acp import AcpBackend
from avenor.runtimes.backends.acp_session import AcpSession
from avenor.runtimes.backends.agent_link import DRAIN_SECONDS, FLUSH_SECONDS
from avenor.runtimes.backends.agent_process import REAP_SECONDS
from avenor.runtimes.backends.base import CLOSING_SECONDS, BackendRefused, OpenParams, open_within
from avenor.runtimes.backends.profiles import builtin, split_command
from avenor.runtimes.backends.registry import backend_names, get_backend
from tests.helpers import eventually
from tests.runtimes.agent_kit import OPEN_SECONDS, RecordingSink, make_params, opened, python_agent
from tests.runtimes.mini_agent import PRELUDE

ACP = get_backend("acp")
_NO_TIME = Graces(stdin_seconds=0.1, term_seconds=0.1, kill_seconds=0.1)


def _params(folder: Path, body: str, **changes: object) -> OpenParams:
    return make_params(folder, command=python_agent(folder, PRELUDE + body), **changes)


async def _failure(params: OpenParams, seconds: float = OPEN_SECONDS, sink: RecordingSink | None = None) -> AvenorError:
    """The error of an opening that must fail, with nothing left behind."""
    async with trio.open_nursery() as nursery:
        with pytest.raises(AvenorError) as caught:
            await open_within(seconds, ACP, params, sink or RecordingSink(), nursery)
    assert tree.tagged(*params.tag) == []
    return caught.value


async def _open_session(params: OpenParams) -> AcpSession:
    """A session that has been opened and closed again, to look at."""
    async with opened(ACP, params, RecordingSink()) as session:
        assert isinstance(session, AcpSession)
        return session


# The program


async def test_a_missing_program_is_permanent_and_says_how_to_get_it(tmp_path: Path) -> None:
    """opencode is not on an empty PATH."""
    params = make_params(tmp_path, env={"PATH": str(tmp_path)})
    async with trio.open_nursery() as nursery:
        with pytest.raises(SpawnError, match=r"opencode is not installed.*npm install -g opencode-ai") as caught:
            await get_backend("opencode-acp").open(params, RecordingSink(), nursery)
    assert not caught.value.retryable


async def test_a_file_that_is_no_program_is_permanent(tmp_path: Path) -> None:
    """Neither one without the executable bit, nor one that the system cannot run."""
    plain = tmp_path / "plain"
    plain.write_text("hello")
    refused = await _failure(make_params(tmp_path, command=[str(plain)]))
    assert isinstance(refused, SpawnError)
    assert "not executable" in refused.message
    assert not refused.retryable
    plain.chmod(0o755)
    garbled = await _failure(make_params(tmp_path, command=[str(plain)]))
    assert isinstance(garbled, SpawnError)
    assert "no program that this system runs" in garbled.message


async def test_a_missing_working_directory_is_named(tmp_path: Path) -> None:
    """It is not mistaken for a missing program."""
    gone = str(tmp_path / "gone")
    refused = await _failure(make_params(tmp_path, command=["true"], cwd=gone))
    assert isinstance(refused, SpawnError)
    assert refused.message == f"cannot start true: the working directory {gone} is not there"


async def test_a_shortage_of_descriptors_may_pass(tmp_path: Path) -> None:
    """At the descriptor limit the error is retryable."""
    _soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    held = [os.open("/dev/null", os.O_RDONLY)]
    resource.setrlimit(resource.RLIMIT_NOFILE, (held[0] + 2, hard))
    try:
        refused = await _failure(make_params(tmp_path, command=["true"]))
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)
        os.close(held[0])
    assert isinstance(refused, SpawnError)
    assert refused.retryable


async def test_the_agent_has_its_tag_its_directory_and_a_session_of_its_own(tmp_path: Path) -> None:
    """What is needed to find and end everything that it starts."""
    body = """
print(json.dumps([os.environ["AVENOR_AGENT_TAG"], os.getcwd(), os.getsid(0) == os.getpid()]), file=sys.stderr)
sys.stderr.flush()
start()
turns()
"""
    params = _params(tmp_path, body)
    sink = RecordingSink()
    async with opened(ACP, params, sink):
        (line,) = await sink.wait_for(events.AgentStderr)
    assert line.text == f'["{params.tag[1]}", "{tmp_path}", true]'


async def test_an_opencode_gets_a_random_password_unless_it_has_one(tmp_path: Path) -> None:
    """Its HTTP port would else be open to every local user."""
    program = tmp_path / "opencode"
    program.write_text(
        f"#!/bin/sh\nexec {python_agent(tmp_path, PRELUDE + _TELL_PASSWORD)[0]} {_agent_path(tmp_path)}\n"
    )
    program.chmod(0o755)
    seen = [await _password(tmp_path, {}), await _password(tmp_path, {})]
    assert seen[0] != seen[1]
    assert min(map(len, seen)) >= 32
    for given in ("", "mine"):
        assert await _password(tmp_path, {"OPENCODE_SERVER_PASSWORD": given}) not in ("", "mine", None)


_TELL_PASSWORD = """
assert sys.argv[1:] == [], sys.argv
sys.stderr.write(os.environ["OPENCODE_SERVER_PASSWORD"] + "\\n")
sys.stderr.flush()
start()
turns()
"""


def _agent_path(folder: Path) -> Path:
    return next(folder.glob("agent-*.py"))


async def _password(folder: Path, extra: dict[str, str]) -> str:
    sink = RecordingSink()
    params = make_params(folder)
    params.env = {**params.env, "PATH": f"{folder}:{os.environ['PATH']}", **extra}
    async with opened(get_backend("opencode-acp"), params, sink):
        (line,) = await sink.wait_for(events.AgentStderr)
    return line.text


# The handshake


@pytest.mark.parametrize(
    "body",
    [
        'sys.stderr.write("no key\\n")\nsys.exit(4)\n',
        'expect("initialize")\nsys.stderr.write("no key\\n")\nsys.exit(4)\n',
        'hello()\nexpect("session/new")\nsys.stderr.write("no key\\n")\nsys.exit(4)\n',
    ],
    ids=["at once", "in initialize", "in session/new"],
)
async def test_an_agent_that_dies_before_its_session_is_told_with_its_stderr(tmp_path: Path, body: str) -> None:
    """Exit status and the end of stderr; worth a retry."""
    failure = await _failure(_params(tmp_path, body))
    assert isinstance(failure, AgentExited)
    assert "exit status 4" in failure.message
    assert failure.message.endswith("no key")
    assert failure.data["returncode"] == 4
    assert failure.retryable


@pytest.mark.parametrize("body", ["recv()\ntime.sleep(600)\n", 'hello()\nexpect("session/new")\ntime.sleep(600)\n'])
async def test_an_agent_that_never_answers_runs_into_the_deadline(
    tmp_path: Path, body: str, shifted_clock: MockClock
) -> None:
    """The error has what it wrote meanwhile, and it is gone."""
    body = 'sys.stderr.write("loading\\n")\nsys.stderr.flush()\n' + body
    sink = RecordingSink()
    async with trio.open_nursery() as nursery:

        async def pass_the_time() -> None:
            await sink.wait_for(events.AgentStderr)
            shifted_clock.jump(300)

        nursery.start_soon(pass_the_time)
        failure = await _failure(_params(tmp_path, body), seconds=300.0, sink=sink)
    assert isinstance(failure, HandshakeTimeout)
    assert failure.message.startswith("acp gave no session within 300 s")
    assert failure.message.endswith("loading")
    assert failure.retryable


async def test_an_opening_that_is_cancelled_leaves_nothing(tmp_path: Path) -> None:
    """Whoever gives up waiting does not pay with a process."""
    sink = RecordingSink()
    params = _params(tmp_path, 'sys.stderr.write("up\\n")\nsys.stderr.flush()\nrecv()\ntime.sleep(60)\n')
    async with trio.open_nursery() as nursery:

        async def open_it() -> None:
            await ACP.open(params, sink, nursery)

        nursery.start_soon(open_it)
        await sink.wait_for(events.AgentStderr)
        nursery.cancel_scope.cancel()
    assert tree.tagged(*params.tag) == []


async def test_another_protocol_version_is_refused_before_any_session(tmp_path: Path) -> None:
    """The agent gets no session/new; upgrading is the user's to do."""
    body = """
reply(expect("initialize"), {"protocolVersion": 2})
sys.stderr.write("".join(sys.stdin.readlines()) or "nothing more\\n")
"""
    sink = RecordingSink()
    failure = await _failure(_params(tmp_path, body), sink=sink)
    assert isinstance(failure, BackendRefused)
    assert (failure.reason_word, failure.retryable) == ("wrong_protocol_version", False)
    assert "version 2" in failure.message
    assert [event.text for event in sink.of(events.AgentStderr)] == ["nothing more"]


@pytest.mark.parametrize(
    ("body", "reason", "retryable", "text"),
    [
        ('m = expect("initialize")\nfail(m, -32603, "no")\nrecv()\n', "session_refused", False, "initialize: no"),
        ('reply(expect("initialize"), {})\nrecv()\n', "session_refused", False, "protocolVersion"),
        ('hello()\nreply(expect("session/new"), {})\nrecv()\n', "session_refused", False, "without a session id"),
        (
            'hello()\nfail(expect("session/new"), -32603, "Internal error", details="503 Unavailable")\nrecv()\n',
            "session_refused",
            True,
            "503",
        ),
        (
            'hello()\nfail(expect("session/new"), -32602, "cwd does not exist")\nrecv()\n',
            "session_refused",
            False,
            "cwd does not exist",
        ),
        (
            'ways = [{"id": "l", "name": "Log in with X"}]\n'
            'reply(expect("initialize"), {"protocolVersion": 1, "authMethods": ways})\n'
            'fail(expect("session/new"), -32000, "Authentication required")\nrecv()\n',
            "auth_required",
            False,
            "it offers: Log in with X",
        ),
    ],
)
async def test_a_refused_handshake_says_why(tmp_path: Path, body: str, reason: str, retryable: bool, text: str) -> None:
    """In the agent's words, with what is to be done where it is known."""
    failure = await _failure(_params(tmp_path, body))
    assert isinstance(failure, BackendRefused)
    assert (failure.reason_word, failure.retryable) == (reason, retryable)
    assert text in failure.message
    assert "stderr_tail" in failure.data


def _send_nothing(_process: ProcessId, _number: int) -> bool:
    return True


async def test_an_agent_that_cannot_be_ended_is_told_and_not_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As one in uninterruptible sleep: what was started is still there, and whoever opened hears of it."""
    params = _params(tmp_path, "time.sleep(3600)\n")
    with monkeypatch.context() as patch:
        patch.setattr("avenor.host.ladder.signal_process", _send_nothing)
        patch.setattr("avenor.runtimes.backends.acp.ABORT_GRACES", _NO_TIME)
        patch.setattr("avenor.runtimes.backends.agent_process.REAP_SECONDS", 3600.0)
        patch.setattr("avenor.runtimes.backends.base.CLOSING_SECONDS", OPEN_SECONDS)
        async with trio.open_nursery() as nursery:
            with pytest.raises(HandshakeTimeout):
                await open_within(0.1, ACP, params, RecordingSink(), nursery)
    (stuck,) = tree.tagged(*params.tag)
    (stopped,) = params.aborted
    assert f"process {stuck.id.pid} ({stuck.name}) had not ended" in (stopped.unverified or "")
    os.kill(stuck.id.pid, signal.SIGKILL)
    await eventually(lambda: not is_alive(stuck.id))


def test_a_close_has_time_for_all_that_it_may_wait_for() -> None:
    """Beyond the graces: for last words, for the agent's status, and for what is left in its pipes."""
    assert CLOSING_SECONDS > FLUSH_SECONDS + REAP_SECONDS + DRAIN_SECONDS


# Resuming


_RESUME_REPLAY = """
heard("Remember PELICAN.")
say("I will.")
update("tool_call", toolCallId="t", title="old")
update("available_commands_update", availableCommands=[])
"""


async def test_a_replayed_conversation_is_not_told_again(tmp_path: Path) -> None:
    """What comes before the answer to session/load, and what trails it, is history; its state is told."""
    body = f"""
hello(loadSession=True)
m = expect("session/load")
{_RESUME_REPLAY}
reply(m, {{}})
{_RESUME_REPLAY}
turns()
"""
    sink = RecordingSink()
    async with opened(ACP, _params(tmp_path, body, resume="s1"), sink) as session:
        assert (session.resumed, session.session_id) == (True, "s1")
        assert session.capabilities.resume == "load"
        await session.prompt("new")
    assert sink.text() == "new"
    assert [type(event) for event in sink.events] == [
        events.SessionCommands,
        events.SessionCommands,
        events.MessageChunk,
    ]


async def test_a_declared_resume_that_is_not_there_falls_back_to_load(tmp_path: Path) -> None:
    """qwen 0.15 declares session/resume and does not know it."""
    body = """
hello(loadSession=True, sessionCapabilities={"resume": {}})
fail(expect("session/resume"), -32601, "Method not found")
m = expect("session/load")
heard("old")
reply(m, {"sessionId": "s1"})
turns()
"""
    backend = AcpBackend(msgspec.structs.replace(builtin("acp"), resume_by="resume"), "0")
    async with opened(backend, _params(tmp_path, body, resume="s1"), RecordingSink()) as session:
        assert session.resumed


@pytest.mark.parametrize(
    ("body", "text"),
    [
        ("hello()\nrecv()\n", "cannot resume sessions"),
        (
            'hello(loadSession=True)\nfail(expect("session/load"), -32603, "Internal error", x="not yours")\nrecv()\n',
            "the agent refused session/load: Internal error; not yours",
        ),
        (
            'hello(sessionCapabilities={"resume": {}})\n'
            'reply(expect("session/resume"), {"sessionId": "another"})\nrecv()\n',
            "opened another session, another",
        ),
        (
            'hello(sessionCapabilities={"resume": {}})\nfail(expect("session/resume"), -32601, "?")\nrecv()\n',
            "the agent refused session/resume",
        ),
        (
            'hello(loadSession=True, sessionCapabilities={"list": {}})\nreply(expect("session/load"), {})\n'
            'reply(expect("session/list"), {"sessions": [{"sessionId": "a", "cwd": "/"}], "nextCursor": "2"})\n'
            'm = expect("session/list")\nassert m["params"]["cursor"] == "2"\n'
            'reply(m, {"sessions": [{"sessionId": "b", "cwd": "/"}]})\nrecv()\n',
            "does not know it and would start afresh",
        ),
    ],
)
async def test_a_session_that_cannot_be_restored_is_an_error(tmp_path: Path, body: str, text: str) -> None:
    """Permanent, and never a silent fresh start."""
    failure = await _failure(_params(tmp_path, body, resume="s1"))
    assert isinstance(failure, BackendRefused)
    assert (failure.reason_word, failure.retryable) == ("resume_failed", False)
    assert text in failure.message


async def test_a_listed_session_without_a_past_can_be_loaded(tmp_path: Path) -> None:
    """A session that was never prompted has nothing to replay."""
    body = """
hello(loadSession=True, sessionCapabilities={"list": {}})
reply(expect("session/load"), {})
reply(expect("session/list"), {"sessions": [{"sessionId": "s1", "cwd": "/"}]})
turns()
"""
    assert (await _open_session(_params(tmp_path, body, resume="s1"))).resumed


# Settings


_OPTIONS = """
def options(**values):
    offered = {"model": ["small", "large"], "mode": ["build", "plan"], "thought_level": ["low", "high"]}
    return {"configOptions": [
        {"id": name, "name": name, "category": name, "type": "select", "currentValue": values.get(name, listed[0]),
         "options": [{"value": value, "name": value.title()} for value in listed]} for name, listed in offered.items()]}

def expect_set(name, value):
    m = expect("session/set_config_option")
    assert m["params"] == {"sessionId": "s1", "configId": name, "value": value}, m
    return m
"""


async def test_settings_are_made_in_an_order_that_keeps_them(tmp_path: Path) -> None:
    """First the agent, then its model, then the thinking level; a name does as well as a value."""
    body = (
        _OPTIONS
        + """
start(result=options())
reply(expect_set("mode", "plan"), options(mode="plan"))
reply(expect_set("model", "large"), options(mode="plan", model="large"))
reply(expect_set("thought_level", "high"), options(mode="plan", model="large", thought_level="high"))
turns()
"""
    )
    session = await _open_session(_params(tmp_path, body, model="large", agent="Plan", thinking="high"))
    assert (session.agent, session.model) == ("plan", "large")
    assert session.capabilities.thinking == ["low", "high"]


async def test_what_is_in_force_already_is_not_set(tmp_path: Path) -> None:
    """No needless call: `turns` takes nothing but prompts."""
    async with opened(
        ACP, _params(tmp_path, _OPTIONS + "start(result=options())\nturns()\n", model="small"), RecordingSink()
    ) as session:
        assert (await session.prompt("x")).stop_reason == "end_turn"


async def test_modes_and_models_are_set_in_the_older_way_where_there_is_no_other(tmp_path: Path) -> None:
    """gemini has no config options."""
    body = """
start(result={"modes": {"currentModeId": "default", "availableModes": [{"id": "default", "name": "D"},
              {"id": "yolo", "name": "Y"}]},
              "models": {"currentModelId": "a", "availableModels": [{"modelId": "a", "name": "A"},
              {"modelId": "b", "name": "B"}]}})
m = expect("session/set_mode")
assert m["params"] == {"sessionId": "s1", "modeId": "yolo"}
reply(m, {})
m = expect("session/set_model")
assert m["params"] == {"sessionId": "s1", "modelId": "b"}
reply(m, None)
turns()
"""
    session = await _open_session(_params(tmp_path, body, model="b", agent="yolo"))
    assert (session.agent, session.model) == ("yolo", "b")


@pytest.mark.parametrize(
    ("body", "changes", "reason", "text"),
    [
        ("start()\nrecv()\n", {"model": "x"}, "unknown_model", "does not let it be chosen; leave model out"),
        (
            _OPTIONS + "start(result=options())\nrecv()\n",
            {"thinking": "x"},
            "unknown_thinking",
            "choose one of: low, high",
        ),
        (
            _OPTIONS + 'start(result=options())\nfail(expect_set("model", "large"), -32602, "no licence")\nrecv()\n',
            {"model": "large"},
            "unknown_model",
            "the agent refused it: no licence; choose one of: small, large",
        ),
        (
            _OPTIONS + 'start(result=options())\nreply(expect_set("model", "large"), options())\nrecv()\n',
            {"model": "large"},
            "not_applied",
            "was set, but the agent uses 'small'",
        ),
        (
            _OPTIONS
            + 'start(result=options())\nreply(expect_set("mode", "plan"), options(mode="plan"))\n'
            + 'reply(expect_set("model", "large"), options(mode="build", model="large"))\nrecv()\n',
            {"agent": "plan", "model": "large"},
            "not_applied",
            "agent 'plan' was set, but the agent uses 'build'",
        ),
    ],
)
async def test_a_setting_that_cannot_be_made_is_refused(
    tmp_path: Path, body: str, changes: dict[str, object], reason: str, text: str
) -> None:
    """Never silently another model or mode than the one that was asked for."""
    failure = await _failure(_params(tmp_path, body, **changes))
    assert isinstance(failure, BackendRefused)
    assert (failure.reason_word, failure.retryable) == (reason, False)
    assert text in failure.message


async def test_a_mode_that_the_agent_changes_itself_is_known(tmp_path: Path) -> None:
    """`current_mode_update` and `config_option_update` are followed; a malformed one changes nothing."""
    body = (
        _OPTIONS
        + """
start(result={**options(), "modes": {"currentModeId": "build", "availableModes": [{"id": "build", "name": "B"}]}})
p = expect("session/prompt")
update("config_option_update", **options(model="large"))
update("config_option_update", configOptions=[{"no": "id"}])
end(p)
turns()
"""
    )
    async with opened(ACP, _params(tmp_path, body), RecordingSink()) as session:
        await session.prompt("x")
        assert session.model == "large"


# Login


async def test_a_login_that_the_agent_has_is_used(tmp_path: Path) -> None:
    """Cursor wants its method called before it opens a session; then the session is opened again."""
    body = """
hello()
fail(expect("session/new"), -32000, "Authentication required")
m = expect("authenticate")
assert m["params"] == {"methodId": "cursor_login"}, m
reply(m, {})
reply(expect("session/new"), {"sessionId": "s1"})
turns()
"""
    backend = AcpBackend(msgspec.structs.replace(builtin("acp"), authenticate="cursor_login"), "0")
    async with opened(backend, _params(tmp_path, body), RecordingSink()) as session:
        assert session.session_id == "s1"


@pytest.mark.parametrize("method", ["", "cursor_login"])
async def test_without_a_login_the_error_says_so(method: str, tmp_path: Path) -> None:
    """Whether the agent's method was called or not."""
    body = 'hello()\nfail(expect("session/new"), -32000, "Authentication required")\n'
    body += 'fail(expect("authenticate"), -32000, "log in first")\nrecv()\n' if method else "recv()\n"
    backend = AcpBackend(msgspec.structs.replace(builtin("acp"), authenticate=method), "0")
    params = _params(tmp_path, body)
    async with trio.open_nursery() as nursery:
        with pytest.raises(BackendRefused, match="wants you to log in") as caught:
            await backend.open(params, RecordingSink(), nursery)
    assert (caught.value.reason_word, caught.value.retryable) == ("auth_required", False)
    assert tree.tagged(*params.tag) == []


# Names


def test_every_backend_that_a_run_may_name_is_there() -> None:
    """The names of the spec are those of the profiles, and so are the agents that fail in silence."""
    assert list(BACKENDS) == backend_names()
    assert {name for name in backend_names() if builtin(name).silent_when_model_fails} == set(PROGRESS_DEFAULTS)
    for name in backend_names():
        assert get_backend(name).name == name


def test_an_unknown_backend_lists_those_that_there_are() -> None:
    """A typo is answered with the choice."""
    with pytest.raises(InvalidParams, match=f"choose one of {', '.join(BACKENDS)}$"):
        get_backend("opencode")


async def test_backend_acp_needs_a_program_line(tmp_path: Path) -> None:
    """Without one there is nothing to start."""
    assert isinstance(await _failure(make_params(tmp_path)), InvalidParams)


def test_a_program_line_is_split_as_a_shell_would() -> None:
    """Quotes hold words together; nothing is expanded."""
    assert split_command("agent --flag 'a b' $HOME") == ["agent", "--flag", "a b", "$HOME"]
    for bad in ("", "   ", "agent 'open"):
        with pytest.raises(InvalidParams):
            split_command(bad)


async def test_an_agent_that_ignores_the_end_of_its_input_is_not_waited_for(tmp_path: Path) -> None:
    """Where the profile knows it, SIGTERM follows at once."""
    stubborn = AcpBackend(msgspec.structs.replace(builtin("acp"), ends_on_stdin_close=False), "0")
    params = _params(tmp_path, "start()\nsay('up')\ntime.sleep(60)\n")
    sink = RecordingSink()
    async with opened(stubborn, params, sink) as session:
        await sink.wait_text("up")
        await eventually(lambda: tree.tagged(*params.tag))
    assert (await session.wait_exited()).returncode == -15
