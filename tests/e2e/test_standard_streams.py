"""Families: SIGPIPE and full pipes: nobody needs to read what we say on standard error."""

import subprocess

from tests.e2e.harness import AVENOR, WAIT_SECONDS, Client, Place, Stable, say, steps


def test_a_supervisor_survives_the_reader_of_its_log(place: Place) -> None:
    """The terminal or log pipe behind standard error has gone: it works on, and stops in good order."""
    stable = Stable(place, "--log-level", "debug")
    assert stable.process.stderr is not None
    stable.process.stderr.close()
    stable.process.stderr = None
    client = stable.connect()
    runtime_id = client.spawn(place, script=place.script(steps(say("ok"))))["runtime_id"]
    assert client.call("wait", runtime_id=runtime_id, until="done")["outcome"] == "DONE"
    assert stable.shutdown() == 0
    assert "reason=shutdown" in stable.tombstone.read_text()
    assert place.processes() == {}


def test_a_supervisor_does_not_hang_on_a_full_pipe(place: Place) -> None:
    """Standard error is a pipe that nobody reads: when it is full, clients are served all the same."""
    stable = Stable(place, "--log-level", "debug", "--max-runtimes", "100")
    client = stable.connect()
    for _ in range(10):
        asked = [
            client.send("spawn", prompt="x", dir="/nonexistent", backend="scripted", run_id="y" * 1000)
            for _ in range(60)
        ]
        assert all("error" in client.answer(each) for each in asked)
    runtimes = [
        client.send(
            "spawn", prompt="x", dir=str(place.work), backend="acp", agent_command="/" + "n" * 200, label="z" * 1000
        )
        for _ in range(60)
    ]
    assert all("error" in client.answer(each) for each in runtimes)
    with Client(stable.socket) as other:
        assert other.call("ping")["mode"] == "stable"
    client.call("shutdown", mode="graceful")
    assert stable.process.wait(WAIT_SECONDS) == 0


def test_a_run_with_closed_streams_ends_truly(place: Place) -> None:
    """Started with 0, 1 and 2 closed, as by a careless daemon: the outcome is the same, and no file gets our output."""
    sentinel = place.path / "run.done"
    script = place.script(steps(say("ok")))
    command = f"exec {AVENOR} run --backend scripted --script {script} --prompt x --sentinel-file {sentinel}"
    process = subprocess.Popen(
        ["sh", "-c", f"{command} <&- >&- 2>&-"], cwd=place.work, env=place.environ(), start_new_session=True
    )
    assert process.wait(WAIT_SECONDS) == 0
    assert sentinel.read_text().startswith("DONE\n")
