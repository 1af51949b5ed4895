"""Real opencode under supervisors that die, one after the other: its sessions are not even interrupted."""

import contextlib
from collections.abc import Generator
from pathlib import Path

import pytest

from avenor.control.blocking import Client, open_client
from avenor.host.identity import process_id
from avenor.host.tree import descendants
from avenor.protocol.events import PermissionResponse, SessionStart, TurnEnd
from avenor.protocol.outcomes import Status
from tests.agents.harness import WAIT_SECONDS, Home, Runtime, Stable, ended
from tests.agents.standin_model import StandInModel
from tests.helpers import command_of, kill_each

pytestmark = pytest.mark.agents


@contextlib.contextmanager
def supervisor(home: Home, folder: Path) -> Generator[tuple[Stable, Client], None, None]:
    """The next supervisor on the socket of this folder, and a client of it; whoever uses it ends it."""
    stable = Stable(home, folder)
    with ended(stable), open_client(stable.socket, timeout_seconds=WAIT_SECONDS) as client:
        yield stable, client


def spawn(stable: Stable, client: Client, folder: Path, name: str) -> Runtime:
    """A runtime that has had its first turn, in a folder of its own."""
    work = folder / name
    work.mkdir()
    runtime = Runtime(stable, client, stable.spawn(prompt=f"[[text: noted]] {name} is here", dir=str(work)), work)
    assert runtime.wait(TurnEnd).final_output == "noted"
    return runtime


def processes_of(runtime: Runtime) -> tuple[object, object]:
    """Runtime and agent, so that they are not mistaken for others."""
    pid = runtime.snapshot().pid
    assert pid is not None
    return process_id(pid), process_id(runtime.agent_pid())


def kill_with_zygote(stable: Stable) -> None:
    """SIGKILL for the supervisor and all that is below it but the runtimes."""
    zygotes = [
        each.id.pid
        for each in descendants(stable.process.pid)
        if "avenor.runtimes.zygote" in command_of(each.id.pid) and each.ppid == stable.process.pid
    ]
    kill_each([stable.process.pid, *zygotes])
    stable.process.communicate()
    stable.feed.join()


def assert_whole(stable: Stable, runtime: Runtime) -> None:
    """All events of a runtime came, each once, from the first on."""
    seqs = [event.seq for event in stable.feed.of(runtime.id)]
    assert seqs == list(range(1, len(seqs) + 1))
    assert len([event for event in stable.feed.of(runtime.id) if isinstance(event, SessionStart)]) == 1


def test_sessions_of_opencode_outlive_their_supervisors(home: Home, model: StandInModel, tmp_path: Path) -> None:
    """Parked, asking and in a turn, through a SIGKILL of supervisor and zygote, and a detach: the same processes go on,
    the question is answered, the turn ends, and a follow-up is told to a model that is shown what was said before.
    """
    state = tmp_path / "stable"
    state.mkdir()
    with supervisor(home, state) as (first, client), model.held("as long as it takes") as release:
        names = ("parked", "asking", "turning")
        runtimes = {name: spawn(first, client, tmp_path, name) for name in names}
        request = runtimes["asking"].ask("[[shell: echo allowed > allowed.txt]][[text: done]]")
        runtimes["turning"].prompt("[[text: over]] as long as it takes")
        runtimes["turning"].wait_says("held")
        processes = {name: processes_of(runtime) for name, runtime in runtimes.items()}
        sessions = {name: runtime.snapshot().session_id for name, runtime in runtimes.items()}
        kill_with_zygote(first)
        with supervisor(home, state) as (second, client):
            runtimes = {name: Runtime(second, client, each.id, each.folder) for name, each in runtimes.items()}
            assert {each.runtime_id for each in client.list()} == {each.id for each in runtimes.values()}
            assert [runtimes[name].snapshot().status for name in names] == ["idle", "running", "running"]
            assert {name: processes_of(runtime) for name, runtime in runtimes.items()} == processes
            client.answer_permission(request.request_id, "once", runtimes["asking"].id)
            response = runtimes["asking"].wait(PermissionResponse)
            assert (response.request_id, response.kind) == (request.request_id, "allow")
            assert runtimes["asking"].wait(TurnEnd).final_output == "done"
            assert (runtimes["asking"].folder / "allowed.txt").read_text() == "allowed\n"
            release.set()
            assert runtimes["turning"].wait(TurnEnd, lambda event: event.final_output == "held over")
            client.shutdown("detach")
            assert second.process.wait(WAIT_SECONDS) == 0
            second.process.communicate()
            second.feed.join()
    with supervisor(home, state) as (third, client):
        runtimes = {name: Runtime(third, client, each.id, each.folder) for name, each in runtimes.items()}
        assert {name: processes_of(runtime) for name, runtime in runtimes.items()} == processes
        for name, runtime in runtimes.items():
            runtime.prompt(f"[[text: it was {name}]] who is here, {name}?")
            runtime.wait(TurnEnd, lambda event, name=name: event.final_output == f"it was {name}")  # type: ignore[misc]
            (asked,) = model.asked(f"who is here, {name}?")
            assert f"{name} is here" in asked.earlier
        assert {name: runtime.snapshot().session_id for name, runtime in runtimes.items()} == sessions
        assert {name: processes_of(runtime) for name, runtime in runtimes.items()} == processes
        for runtime in runtimes.values():
            cancelled = client.cancel(runtime.id)
            assert (cancelled.ok, cancelled.left) == (True, [])
            assert_whole(third, runtime)
            assert runtime.sentinel().status is Status.DONE
            assert runtime.processes() == []
        assert third.stop() == 0
