"""When a run under a supervisor begins: not before the supervisor has connected, unless there is none any more."""

import os
from pathlib import Path
from typing import Any

import msgspec
import pytest
import trio

from avenor.host.identity import process_id
from avenor.host.rundir import RunDir
from avenor.host.sockaddr import dial
from avenor.protocol.errors import AvenorError
from avenor.protocol.outcomes import Outcome, Status
from avenor.protocol.spec import Record, RunSpec, resolve_spec
from avenor.runtimes import process
from tests.runtimes.fake_backend import FakeBackend

_FOR_EVER = float("inf")


async def run(tmp_path: Path, told: trio.Event, problems: list[AvenorError], **spec: Any) -> Outcome:
    """What a run comes to that was started by a supervisor."""
    resolved = resolve_spec(RunSpec(prompt="go", dir=str(tmp_path), backend="scripted", **spec))
    identity = process_id(os.getpid())
    assert identity is not None
    rundir = RunDir(tmp_path)

    def note(problem: AvenorError | None) -> None:
        problems.extend([] if problem is None else [problem])
        told.set()

    place = process.Place(
        rundir=rundir,
        identity=identity,
        sentinel_path=None,
        sockets=[process.Listening(path=str(rundir.socket_path), is_private=True)],
        told=note,
        has_supervisor=True,
    )
    record = Record(runtime_id="rt_1", run_id="r", spec=resolved, prompt="go")
    return (await process.run_process(record, place)).outcome


@pytest.fixture(autouse=True)
def _fake_agent(monkeypatch: pytest.MonkeyPatch) -> None:
    def find(_name: str, _folder: str) -> FakeBackend:
        return FakeBackend()

    monkeypatch.setattr(process, "usable_backend", find)


async def test_a_run_begins_when_its_supervisor_has_introduced_itself(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It answers before that, and has done nothing; what comes with the introduction is done before it begins."""
    monkeypatch.setattr(process, "_LINK_SECONDS", _FOR_EVER)
    told = trio.Event()
    problems: list[AvenorError] = []
    async with trio.open_nursery() as nursery:
        nursery.start_soon(run, tmp_path, told, problems)
        await told.wait()
        with dial(RunDir(tmp_path).socket_path) as connected:
            connected.setblocking(False)
            stream = trio.SocketStream(trio.socket.from_stdlib_socket(connected))
            await stream.send_all(b'{"jsonrpc":"2.0","id":1,"method":"status"}\n')
            answer = msgspec.json.decode(await stream.receive_some())
            assert (answer["result"]["status"], answer["result"]["latest_seq"]) == ("starting", 0)
            await stream.send_all(
                b'{"jsonrpc":"2.0","id":2,"method":"router.hello","params":{}}\n'
                b'{"jsonrpc":"2.0","id":3,"method":"router.call","params":{"client":"c1","method":"claim"}}\n'
                b'{"jsonrpc":"2.0","id":4,"method":"status"}\n'
            )
            said = b""
            while b'"id":4' not in said:
                said += await stream.receive_some()
    snapshot = next(line for line in map(msgspec.json.decode, said.splitlines()) if line.get("id") == 4)["result"]
    assert (snapshot["owner"], snapshot["latest_seq"]) == ("c1", 0)


async def test_a_run_whose_supervisor_is_gone_begins_all_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After a while."""
    monkeypatch.setattr(process, "_LINK_SECONDS", 0.0)
    assert (await run(tmp_path, trio.Event(), [])).status is Status.DONE


async def test_a_run_that_cannot_begin_waits_for_nobody(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No supervisor connects to what has told it a problem."""
    monkeypatch.setattr(process, "_LINK_SECONDS", _FOR_EVER)
    problems: list[AvenorError] = []
    outcome = await run(tmp_path, trio.Event(), problems, on_event=str(tmp_path / "no" / "events"))
    assert (outcome.status, len(problems)) == (Status.FAILED, 1)
