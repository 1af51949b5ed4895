"""Agents that are started through a prefix: every kind, what is told of a missing program, and how all of it ends."""

import os
import secrets
import shlex
import sys
from collections.abc import AsyncGenerator
from pathlib import Path

import msgspec
import pytest
import trio

from avenor.host import tree
from avenor.host.ladder import Graces
from avenor.protocol import events
from avenor.protocol.errors import AgentExited, AvenorError, InvalidParams, SpawnError
from avenor.runtimes.backends.agent_process import start_agent
from avenor.runtimes.backends.base import OpenParams, StderrTail, open_within
from avenor.runtimes.backends.profiles import builtin
from avenor.runtimes.backends.registry import get_backend
from avenor.runtimes.manifest.private import make_private
from avenor.runtimes.manifest.sandbox import sandbox_prefix
from tests.helpers import eventually
from tests.runtimes.agent_kit import OPEN_SECONDS, RecordingSink, make_params, opened, write_script
from tests.runtimes.sandbox_kit import Place, needs_sandbox

# What a prefix may be: here it notes that it was there, and runs the rest.
NOTE = ["/bin/sh", "-c", 'echo noted >&2; exec "$@"', "sh"]


async def refusal(name: str, params: OpenParams) -> AvenorError:
    """Why an agent could not be opened."""
    async with trio.open_nursery() as nursery:
        with pytest.raises(AvenorError) as caught:
            await open_within(OPEN_SECONDS, get_backend(name), params, RecordingSink(), nursery)
        nursery.cancel_scope.cancel()
    return caught.value


@pytest.fixture
async def subreaper() -> AsyncGenerator[None, None]:
    """This process gets back what its descendants leave, as a runtime does."""
    was = tree.is_subreaper()
    tree.become_subreaper()
    yield
    if not was:
        tree._prctl(36, 0)  # pyright: ignore[reportPrivateUsage]


async def test_the_prefix_goes_before_the_program_of_every_adapter(tmp_path: Path) -> None:
    """Whatever speaks to the agent, its program is started by the words that were given."""
    for name, program in (
        ("acp", "agent"),
        ("codex-app-server", "codex"),
        ("pi", "pi"),
        ("opencode-http", "opencode"),
    ):
        fake = tmp_path / program
        fake.write_text("#!/bin/sh\nexit 3\n", encoding="utf-8")
        fake.chmod(0o755)
        env = {"PATH": f"{tmp_path}:{os.environ['PATH']}", "HOME": str(tmp_path)}
        params = make_params(tmp_path, env=env, prefix=NOTE, command=[program])
        assert isinstance(await refusal(name, params), AgentExited)
        assert params.stderr_tail.text() == "noted", name


async def test_a_missing_program_is_told_as_itself(tmp_path: Path) -> None:
    """Not as the sandbox that could not start it; nothing is started."""
    for program in ("no-such-agent", str(tmp_path / "no-such-agent"), "./no-such-agent"):
        params = make_params(tmp_path, prefix=["false"], command=[program])
        error = await refusal("acp", params)
        assert isinstance(error, SpawnError)
        assert error.message.startswith(f"{program} is not installed")
        assert msgspec.to_builtins(error.data)["program"] == program


async def test_a_missing_sandbox_is_told_as_that(tmp_path: Path) -> None:
    """The program is there; what is missing is what was to start it."""
    params = make_params(tmp_path, prefix=["/no/such/sandbox"], command=["sh"])
    error = await refusal("acp", params)
    assert isinstance(error, SpawnError)
    assert "/no/such/sandbox is not installed" in error.message


async def test_a_server_that_runs_already_cannot_be_sandboxed(tmp_path: Path) -> None:
    """It would be outside, so it is refused."""
    params = make_params(tmp_path, prefix=NOTE, server_url="http://127.0.0.1:9")
    error = await refusal("opencode-http", params)
    assert isinstance(error, InvalidParams)
    assert "sandbox" in error.message


@needs_sandbox()
async def test_the_scripted_agent_works_in_the_sandbox(tmp_path: Path) -> None:
    """It talks and works as ever, and cannot write where it may not."""
    place = Place(tmp_path)
    steps = [
        {"do": "run", "command": "echo x > src/retry/new.py; echo x > src/b.py; echo x > ../../log"},
        {"do": "say", "text": "done"},
    ]
    script: dict[str, object] = {"rules": [{"steps": steps}]}
    path = write_script(place.home, script)
    states = builtin("scripted").state_places(place.env)
    cage = place.cage("src/retry", home_state=[each.path for each in states])
    make_private(cage.private, states)
    params = make_params(place.worktree, script=path, prefix=sandbox_prefix(cage), env=place.env)
    params.procs = None
    sink = RecordingSink()
    async with opened(get_backend("scripted"), params, sink) as session:
        stop = await session.prompt("go")
    assert (stop.stop_reason, sink.text()) == ("end_turn", "done")
    assert (place.worktree / "src/retry/new.py").read_text(encoding="utf-8") == "x\n"
    assert (place.worktree / "src/b.py").read_text(encoding="utf-8") == "as it was\n"
    assert (place.folder / "run/log").read_text(encoding="utf-8") == "as it was\n"
    assert sink.of(events.ToolCall)


@needs_sandbox()
async def test_a_program_that_is_not_there_inside_is_told_as_itself(tmp_path: Path) -> None:
    """One that the sandbox hides is named with that reason, by the words in which all start errors end."""
    place = Place(tmp_path)
    hidden = place.folder / "run" / "agent"
    hidden.write_text("#!/bin/sh\n", encoding="utf-8")
    hidden.chmod(0o755)
    cage = place.cage()
    make_private(cage.private, [])
    params = make_params(place.worktree, prefix=sandbox_prefix(cage), command=[str(hidden)], env=place.env)
    params.procs = None
    error = await refusal("acp", params)
    assert isinstance(error, AgentExited)
    assert f"{hidden} cannot be started inside the sandbox: not found" in error.message


LEAVERS = {
    "a daemon": "setsid sh -c 'trap \"\" TERM HUP; {note}; while :; do sleep 1; done' < /dev/null > /dev/null 2>&1 &",
    "no environment": "env -i PATH=$PATH setsid sh -c '({note}; exec sleep 300) &' < /dev/null > /dev/null 2>&1;",
}


@needs_sandbox()
@pytest.mark.parametrize("leave", LEAVERS.values(), ids=LEAVERS)
@pytest.mark.parametrize("ends", ["by itself", "by the ladder", "by SIGKILL"])
async def test_whatever_a_tool_leaves_behind_ends_with_the_sandbox(
    tmp_path: Path, subreaper: None, leave: str, ends: str
) -> None:
    """Daemons that ignore SIGTERM, left the session and cleared their environment: none outlives its agent."""
    place = Place(tmp_path)
    mark = f"cage-{os.urandom(6).hex()}"
    note = f": {mark}; echo up > src/retry/up"
    wait = "until [ -e src/retry/up ]; do :; done; echo up"
    tail = "" if ends == "by itself" else "; exec cat"
    cage = place.cage("src/retry")
    make_private(cage.private, [])
    process = await start_agent(
        ["sh", "-c", f"{leave.format(note=note)} {wait}{tail}"],
        cwd=str(place.worktree),
        env=place.env,
        tag=("AVENOR_TEST_TAG", mark),
        install="x",
        procs=None,
        prefix=sandbox_prefix(cage),
    )
    assert (await process.stdout.receive_some(10)).startswith(b"up")
    if ends == "by itself":
        assert await process.wait() == 0
        await eventually(lambda: not _alive(mark, str(place.worktree)))  # nobody had to look for them
    elif ends == "by SIGKILL":
        os.kill(process.pid, 9)
        await process.wait()
    graces = Graces(stdin_seconds=5.0, term_seconds=1.0, kill_seconds=5.0)
    result = await process.stop(graces)
    assert result.left == []
    await eventually(lambda: not _alive(mark, str(place.worktree)))


def _alive(mark: str, worktree: str) -> list[int]:
    """Processes that have the mark on their command line, or work in the worktree."""
    found: list[int] = []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit() or int(entry.name) == os.getpid():
            continue
        try:
            line = (entry / "cmdline").read_bytes().decode(errors="replace")
            where = os.readlink(entry / "cwd")
        except OSError:
            continue
        if mark in line or where.startswith(worktree):
            found.append(int(entry.name))
    return found


async def test_what_the_agent_says_is_not_taken_for_the_sandboxs_words(tmp_path: Path) -> None:
    """Only the shell's word about this very program is put into other words, and only with a prefix."""
    lines = ["sh: 1: agent: not found", "sh: 1: other: not found", "sh: line 1: agent: command not found", "plain"]
    for prefix, expected in (
        ((), lines),
        (NOTE[:1], ["agent cannot be started inside the sandbox: not found", lines[1], None, "plain"]),
    ):
        program = tmp_path / "agent"
        text = "\n".join(lines)
        program.write_text(f"#!/bin/sh\ncat >&2 <<X\n{text}\nX\n", encoding="utf-8")
        program.chmod(0o755)
        process = await start_agent(
            [str(program) if not prefix else "agent"],
            cwd=str(tmp_path),
            env={"PATH": f"{tmp_path}:{os.environ['PATH']}"},
            tag=("AVENOR_TEST_TAG", secrets.token_hex(8)),
            install="x",
            procs=None,
            prefix=["env"] if prefix else (),
        )
        tail = StderrTail()
        await process.read_stderr(tail, lambda _line: None)
        await process.wait()
        await process.stop(Graces())
        said = tail.text().split("\n")
        for line, wanted in zip(said, expected, strict=True):
            assert wanted is None or line == wanted


async def test_a_program_is_looked_for_where_it_would_be_started(tmp_path: Path) -> None:
    """A relative one is relative to the working directory, a name is on the PATH of its own environment."""
    (tmp_path / "here").symlink_to(sys.executable)
    for argv, env in (
        (["./here", "-c", ""], {}),
        ([shlex.quote("here"), "-c", ""], {"PATH": str(tmp_path)}),
    ):
        process = await start_agent(
            argv,
            cwd=str(tmp_path),
            env=env,
            tag=("AVENOR_TEST_TAG", secrets.token_hex(8)),
            install="x",
            procs=None,
            prefix=["/usr/bin/env"],
        )
        with trio.fail_after(60):
            assert await process.wait() == 0
        await process.stop(Graces())
