"""A hundred parked runtimes: what they cost, and how fast the supervisor answers for them."""

import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from tests.bench import machine
from tests.bench.bench import FLEET, Bench
from tests.bench.circus import Circus
from tests.bench.figures import Figure, Limit, Row, median, sample_in_turns
from tests.bench.native import make_echo
from tests.bench.ours import AVENOR, Client, Supervisor
from tests.bench.peers import Peer
from tests.bench.supervisord import Supervisord

_MIB = 2**20
# What a runtime would be without the zygote, and with nothing of avenor in it.
_FRESH = "import trio, os, sys; trio.run(trio.lowlevel.checkpoint); os.write(1, b'x'); sys.stdin.read()"


def measure_fleet(bench: Bench) -> Iterator[Row]:
    """All rows of the same hundred runtimes, with a hundred children of each other supervisor beside them."""
    with (
        Supervisor(bench.new_folder("fleet")) as ours,
        Supervisord(bench.new_folder("d"), bench.child, count=FLEET, are_started=True) as supervisord,
        Circus(bench.new_folder("c"), bench.child, count=FLEET, are_started=True) as circus,
    ):
        ours.warm_up(bench.agent)
        bench.spawns += FLEET
        ours.spawn_one_by_one(bench.agent, FLEET)
        ours.wait_parked()
        bench.note_launcher(ours)
        peers = (supervisord, circus)
        yield _memory(bench, ours)
        yield from _asking(bench, ours, peers)
        yield _command(bench, ours, peers)
        yield _idle(bench, ours, peers)


def measure_shutdown(bench: Bench) -> Iterator[Row]:
    """A graceful end of a hundred."""
    idle = bench.settle()
    taken = sample_in_turns(
        {
            "avenor": lambda: _shut_down_ours(bench),
            Supervisord.name: lambda: _shut_down(Supervisord, bench),
            Circus.name: lambda: _shut_down(Circus, bench),
        },
        rounds=bench.times(3, 1),
        samples=1,
    )
    figures = {name: median(rounds) for name, rounds in taken.items()}
    yield Row(
        key="shutdown",
        what=f"{FLEET} idle runtimes shut down gracefully",
        unit="ms",
        ours=figures.pop("avenor"),
        peers=figures,
        limit=Limit(shown=200),
        notes=(
            "From the request to the supervisor's end. avenor's runtimes end their agents, write `run.end` and sync "
            "it; others (supervisord by SIGTERM, circus by `quit`) end bare children.",
            *(f"{name} had to be killed {bench.stuck.count(name)} times." for name in dict.fromkeys(bench.stuck)),
        ),
        idle_before=idle,
    )


def _memory(bench: Bench, ours: Supervisor) -> Row:
    pids = ours.runtime_pids().values()
    sizes = [machine.pss_bytes(pid) / _MIB for pid in pids]
    keepers = [
        ("supervisor", ours.pid),
        ("zygote", machine.zygote_of(ours.pid)),
        ("the fork that is made ahead", ours.wait_spare()),
    ]
    shown = ", ".join(f"{name} {machine.pss_bytes(pid) / _MIB:.1f} MiB" for name, pid in keepers)
    return Row(
        key="memory",
        what="memory of an idle runtime without its agent, PSS",
        unit="MiB",
        ours=Figure(value=median([sizes]).value, low=min(sizes), high=max(sizes), count=len(sizes)),
        others={"a fresh Python with trio": _fresh_python_size()},
        limit=Limit(shown=4),
        notes=(
            f"Of {len(sizes)} parked runtimes after a turn each, with all of them alive. They were spawned one after "
            "the other, so that each was a fork made ahead; one that is not is some 0.3 MiB smaller. Beside them: "
            f"{shown}.",
        ),
    )


def _asking(bench: Bench, ours: Supervisor, peers: tuple[Peer, ...]) -> Iterator[Row]:
    language, command = make_echo(bench.folder, sys.executable)
    echo_socket = bench.new_folder("echo")
    rounds = bench.times(7, 3)
    with subprocess.Popen([*command, str(echo_socket)]) as echo, ours.client() as client:
        try:
            _pin_apart([ours.pid, echo.pid, *(peer.pid for peer in peers)])
            idle = bench.settle()
            with _dial_when_there(echo_socket) as echoing:
                yield _status(ours, client, peers, {f"{language} echo": _round_trip(echoing)}, rounds, idle)
            yield _listing(client, peers, rounds, bench.settle())
        finally:
            echo.kill()
            machine.unpin(0)
            machine.unpin(ours.pid)


def _status(
    ours: Supervisor,
    client: Client,
    peers: tuple[Peer, ...],
    floors: dict[str, Callable[[], float]],
    rounds: int,
    idle: float,
) -> Row:
    runtime_id = next(iter(ours.runtime_pids()))
    request = client.request("status", {"runtime_id": runtime_id})
    taken = sample_in_turns(
        {
            "avenor": _round_trip(client, request),
            **floors,
            **{peer.name: peer.ask for peer in peers},
        },
        rounds=rounds,
        samples=300,
        warm_up=50,
    )
    figures = {name: median(rounds) for name, rounds in taken.items()}
    return Row(
        key="status",
        what="`status` round trip on a held connection, p50",
        unit="µs",
        ours=figures["avenor"],
        peers={peer.name: figures[peer.name] for peer in peers},
        others={name: figures[name] for name in floors},
        limit=Limit(shown=80),
        notes=(
            f"A snapshot of one of {FLEET} runtimes ({len(client.exchange(request))} bytes); supervisord `getState`, "
            "circus `numwatchers`. Blocking clients, requests encoded beforehand, on one core; servers on the other.",
        ),
        idle_before=idle,
    )


def _listing(client: Client, peers: tuple[Peer, ...], rounds: int, idle: float) -> Row:
    request = client.request("list")
    taken = sample_in_turns(
        {"avenor": _round_trip(client, request), **{peer.name: peer.ask_all for peer in peers}},
        rounds=rounds,
        samples=30,
        warm_up=5,
    )
    figures = {name: median(rounds) for name, rounds in taken.items()}
    return Row(
        key="list",
        what=f"`list` of {FLEET}, round trip p50",
        unit="ms",
        ours=figures.pop("avenor"),
        peers=figures,
        limit=Limit(shown=0.3),
        notes=(
            f"All snapshots ({len(client.exchange(request)) // 1024} KiB); supervisord `getAllProcessInfo`, circus "
            "`status`. Answers are received and not decoded. Pinned as above.",
        ),
        idle_before=idle,
    )


def _command(bench: Bench, ours: Supervisor, peers: tuple[Peer, ...]) -> Row:
    idle = bench.settle()
    commands = {"avenor": [str(AVENOR), "control", "--socket", str(ours.socket), "list"]}
    commands |= {peer.name: peer.list_command() for peer in peers}
    commands["python -c pass"] = [sys.executable, "-c", "pass"]
    taken = sample_in_turns(
        {name: _timed_command(command) for name, command in commands.items()},
        rounds=bench.times(5, 2),
        samples=3,
        warm_up=1,
    )
    figures = {name: median(rounds) for name, rounds in taken.items()}
    return Row(
        key="command",
        what=f"`avenor control list` as a whole command, {FLEET} runtimes",
        unit="ms",
        ours=figures["avenor"],
        peers={peer.name: figures[peer.name] for peer in peers},
        others={"`python -c pass`": figures["python -c pass"]},
        limit=Limit(shown=30),
        notes=("From exec to exit, output to /dev/null; `supervisorctl status`, `circusctl status`.",),
        idle_before=idle,
    )


def _idle(bench: Bench, ours: Supervisor, peers: tuple[Peer, ...]) -> Row:
    keepers = [ours.pid, machine.zygote_of(ours.pid), ours.wait_spare()]
    groups = {"avenor": [*keepers, *ours.runtime_pids().values()]}
    groups |= {peer.name: [peer.pid] for peer in peers}
    # Worker threads that were used go away after ten seconds at most; that is part of the idle state, and is counted.
    before = {name: machine.cpu_by_thread(pids) for name, pids in groups.items()}
    began = time.perf_counter()
    time.sleep(bench.times(5, 2))
    elapsed = time.perf_counter() - began
    used = {name: _used(before[name], machine.cpu_by_thread(pids)) / elapsed for name, pids in groups.items()}
    figures = {name: Figure(value=share, low=share, high=share, count=1) for name, share in used.items()}
    return Row(
        key="idle",
        what=f"processor time with {FLEET} idle runtimes",
        unit="%",
        ours=figures.pop("avenor"),
        peers=figures,
        limit=Limit(shown=0.0),
        notes=(
            f"Of one core, over {elapsed:.0f} s, from the scheduler's nanosecond counts: supervisor, zygote, the "
            "fork that is made ahead and all runtimes; of the others the supervisor alone.",
        ),
    )


def _used(before: dict[int, int], after: dict[int, int]) -> float:
    """Seconds, by the threads that are there in the end."""
    return sum(used - before.get(thread, 0) for thread, used in after.items()) / 1e9


def _shut_down_ours(bench: Bench) -> float:
    with Supervisor(bench.new_folder("end")) as ours:
        ours.warm_up(bench.agent)
        bench.spawns += FLEET
        ours.spawn_many(bench.agent, FLEET, 4)
        ours.wait_parked()
        pids = ours.runtime_pids()
        with ours.client() as client:
            began = time.perf_counter()
            client.call("shutdown", {"mode": "graceful"})
            ours.wait_ended()
            taken = time.perf_counter() - began
        alive = [pid for pid in pids.values() if machine.is_running(pid)]
        if alive or len(pids) != FLEET:
            bench.failures.append(f"of {len(pids)} runtimes {len(alive)} outlived a graceful shutdown")
    return taken


def _shut_down(kind: type[Peer], bench: Bench) -> float:
    with kind(bench.new_folder("end"), bench.child, count=FLEET, are_started=True) as peer:
        taken = peer.stop()
        if peer.is_stuck:
            bench.stuck.append(peer.name)
    return taken


def _round_trip(client: Client, request: bytes = b"x" * 80 + b"\n") -> Callable[[], float]:
    def once() -> float:
        began = time.perf_counter()
        client.exchange(request)
        return time.perf_counter() - began

    return once


def _timed_command(command: list[str]) -> Callable[[], float]:
    def once() -> float:
        began = time.perf_counter()
        subprocess.run(command, stdout=subprocess.DEVNULL, check=True)
        return time.perf_counter() - began

    return once


def _pin_apart(servers: list[int]) -> None:
    """This process on one core, the servers on another."""
    machine.pin(0, 0)
    for pid in servers:
        machine.pin(pid, 1)


def _fresh_python_size() -> Figure:
    command = [sys.executable, "-c", _FRESH]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.read(1)
        size = machine.pss_bytes(process.pid) / _MIB
        process.communicate()
    return Figure(value=size, low=size, high=size, count=1)


def _dial_when_there(path: Path) -> Client:
    deadline = time.monotonic() + 5
    while True:
        try:
            return Client(path)
        except OSError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.01)
