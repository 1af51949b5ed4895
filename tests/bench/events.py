"""Events from a runtime through the supervisor to subscribers: how many, and how soon."""

import contextlib
import os
import re
import selectors
import subprocess
import sys
import time
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import NoReturn

import msgspec

from avenor.host.rundir import RunDir
from avenor.protocol.spec import Record, RunSpec, resolve_spec
from tests.bench import machine
from tests.bench.agents import FLOOD_PROMPT, shell_agent
from tests.bench.bench import Bench
from tests.bench.figures import Limit, Row, Unit, median
from tests.bench.flood import Plan
from tests.bench.ours import Client, Supervisor, agent_params

_ROOT = Path(__file__).parents[2]
_RUNTIME = "rt_1"
_SUBSCRIBERS = 100
_PATIENCE_SECONDS = 60.0
_TURN_END = b'"event":"turn.end"'
# A turn's end without a final output is a line of some 300 bytes.
_LAST_BYTES = 2048
_TIMED = re.compile(rb'"text":"(\d+)"')


def measure_flood(bench: Bench) -> Iterator[Row]:
    """Saturated, to one subscriber and to many."""
    with _flooding_runtime(bench) as ours, ours.client() as steering:
        yield _one(bench, ours, steering)
        yield _many(bench, ours, steering)
        yield _latency(bench, ours, steering)


def measure_acp_flood(bench: Bench) -> Iterator[Row]:
    """The same from the pipe of an agent on."""
    count = bench.times(100_000, 20_000)
    folder = bench.new_folder("flooding-agent")
    folder.mkdir()
    agent = agent_params(shell_agent(folder, flood_events=count))
    rates: list[list[float]] = []
    idle = bench.settle()
    with Supervisor(bench.new_folder("acp")) as ours, ours.client() as steering:
        ours.warm_up(bench.agent)
        runtime_id: str = steering.call("spawn", agent)["runtime_id"]
        steering.call("wait", {"runtime_id": runtime_id, "until": "done"})
        bench.spawns += 1
        bench.note_launcher(ours)
        for _ in range(bench.times(3, 2)):
            rates.append([_flood(ours, steering, runtime_id, FLOOD_PROMPT, count)])
    yield Row(
        key="events-acp",
        what="the same from an ACP agent's pipe on",
        unit="/s",
        ours=median(rates),
        notes=(
            f"{count:,} `agent_message_chunk` updates that `cat` writes to the agent's stdout; the runtime decodes and "
            "maps each.",
        ),
        idle_before=idle,
    )


def _one(bench: Bench, ours: Supervisor, steering: Client) -> Row:
    count = bench.times(300_000, 50_000)
    plan = _encode(Plan(count=count))
    idle = bench.settle()
    _flood(ours, steering, _RUNTIME, _encode(Plan(count=count // 10)), count // 10)
    rounds = bench.times(3, 2)
    pids = {"runtime": ours.runtime_pids()[_RUNTIME], "supervisor": ours.pid}
    before = {name: machine.cpu_seconds([pid]) for name, pid in pids.items()}
    rates = [[_flood(ours, steering, _RUNTIME, plan, count)] for _ in range(rounds)]
    used = {name: (machine.cpu_seconds([pid]) - before[name]) / (rounds * count) for name, pid in pids.items()}
    log_bytes = (ours.state / _RUNTIME / "events.ndjson").stat().st_size
    return _row(
        "events",
        "events child → subscriber through the supervisor, saturated, logged",
        "/s",
        rates,
        Limit(shown=300_000, is_floor=True),
        idle,
        f"{count:,} events of about 260 bytes (the log came to {log_bytes // 2**20} MiB), from where a backend hands "
        "them over in a real runtime process: stamped, logged with one write each, folded, passed on by the "
        "supervisor, counted by a subscriber that loses none (`on_lag: disk`). The backend is a loop. Processor time "
        f"of an event: {', '.join(f'{name} {seconds * 1e6:.1f} µs' for name, seconds in used.items())}.",
    )


def _many(bench: Bench, ours: Supervisor, steering: Client) -> Row:
    count = bench.times(20_000, 5_000)
    plan = _encode(Plan(count=count))
    idle = bench.settle()
    with contextlib.ExitStack() as stack:
        clients = [stack.enter_context(_subscriber(ours, _RUNTIME)) for _ in range(_SUBSCRIBERS)]
        rates = [[_SUBSCRIBERS * _flood_all(clients, steering, plan, count)] for _ in range(bench.times(3, 2))]
    return _row(
        "events-100",
        f"the same delivered to {_SUBSCRIBERS} subscribers together",
        "/s",
        rates,
        Limit(shown=1_000_000, is_floor=True),
        idle,
        f"{count:,} events, delivered to each of the subscribers without loss; their one process needs a part of the "
        "processors too.",
    )


def _latency(bench: Bench, ours: Supervisor, steering: Client) -> Row:
    plan = _encode(Plan(count=bench.times(500, 150), burst=1, gap_seconds=0.002, is_timed=True))
    idle = bench.settle()
    rounds: list[list[float]] = []
    with _subscriber(ours, _RUNTIME) as subscriber:
        for _ in range(bench.times(5, 2)):
            rounds.append(_delays(subscriber, steering, plan))
    return _row(
        "latency",
        "latency of one event, child → subscriber, p50",
        "µs",
        rounds,
        Limit(shown=100),
        idle,
        "From before it is stamped in the runtime to when the subscriber has it, one every two milliseconds. Nothing "
        "is pinned.",
    )


def _row(key: str, what: str, unit: Unit, rounds: list[list[float]], limit: Limit, idle: float, note: str) -> Row:
    return Row(key=key, what=what, unit=unit, ours=median(rounds), limit=limit, notes=(note,), idle_before=idle)


def _flood(ours: Supervisor, steering: Client, runtime_id: str, prompt: str, count: int) -> float:
    """Events a second that one subscriber gets, counted from the prompt on to the end of the turn."""
    with _subscriber(ours, runtime_id) as subscriber:
        began = time.perf_counter()
        steering.call("prompt", {"runtime_id": runtime_id, "text": prompt})
        seen, end = 0, b""
        while _TURN_END not in end:
            data = subscriber.receive()
            seen += data.count(b'"event":"agent.message_chunk"')
            end = (end + data)[-_LAST_BYTES:]
        taken = time.perf_counter() - began
    # A name that was cut in two by the edge of what was received is not seen: at most one for each receive.
    if not 0.9 * count < seen <= count:
        raise RuntimeError(f"{seen} of {count} events came")
    return count / taken


def _flood_all(clients: list[Client], steering: Client, prompt: str, count: int) -> float:
    """Events a second that each of the subscribers gets, counted until the last has the end of the turn."""
    sizes = dict.fromkeys(clients, 0)
    ends = dict.fromkeys(clients, b"")
    buffer = bytearray(1 << 20)
    with selectors.DefaultSelector() as selector:
        for client in clients:
            selector.register(client, selectors.EVENT_READ, client)
        began = time.perf_counter()
        steering.call("prompt", {"runtime_id": _RUNTIME, "text": prompt})
        waiting = len(clients)
        while waiting:
            for key, _ in selector.select(_PATIENCE_SECONDS) or _nothing():
                size = key.data.receive_into(buffer)
                sizes[key.data] += size
                ends[key.data] = (ends[key.data] + buffer[max(0, size - _LAST_BYTES) : size])[-_LAST_BYTES:]
                if _TURN_END in ends[key.data]:
                    waiting -= 1
        taken = time.perf_counter() - began
    if len(set(sizes.values())) != 1 or sizes[clients[0]] < 200 * count:
        raise RuntimeError(f"subscribers got different amounts: {sorted(set(sizes.values()))}")
    return count / taken


def _nothing() -> NoReturn:
    raise RuntimeError(f"no subscriber got anything for {_PATIENCE_SECONDS:.0f} s")


def _delays(subscriber: Client, steering: Client, prompt: str) -> list[float]:
    """Seconds from emission to arrival of each event of a turn."""
    steering.call("prompt", {"runtime_id": _RUNTIME, "text": prompt})
    delays: list[float] = []
    end = b""
    while _TURN_END not in end:
        data = subscriber.receive()
        now = time.monotonic_ns()
        delays += [(now - int(emitted)) / 1e9 for emitted in _TIMED.findall(data)]
        end = (end + data)[-_LAST_BYTES:]
    return delays


@contextlib.contextmanager
def _subscriber(ours: Supervisor, runtime_id: str) -> Generator[Client, None, None]:
    with ours.client() as client:
        client.call("subscribe", {"runtime_id": runtime_id, "on_lag": "disk"})
        yield client


@contextlib.contextmanager
def _flooding_runtime(bench: Bench) -> Generator[Supervisor, None, None]:
    """A supervisor that has taken over a runtime of `flood`, which rests."""
    folder = bench.new_folder("flood")
    runtime = RunDir(folder / "state" / _RUNTIME)
    runtime.path.mkdir(parents=True, mode=0o700)
    first = _encode(Plan())
    spec = resolve_spec(RunSpec(prompt=first, backend="scripted", dir="/", sentinel_file=str(runtime.sentinel_path)))
    record = Record(runtime_id=_RUNTIME, run_id="flood", spec=spec, prompt=first, parks=True)
    runtime.write_record(msgspec.json.encode(record))
    ready_out, ready_in = os.pipe()
    command = [sys.executable, "-m", "tests.bench.flood", str(runtime.path), str(ready_in)]
    with (folder / "runtime-log").open("wb") as log:
        process = subprocess.Popen(command, cwd=_ROOT, pass_fds=[ready_in], stderr=log, start_new_session=True)
    os.close(ready_in)
    try:
        said = os.read(ready_out, 4096)
        if said != b"ready\n":
            raise RuntimeError(f"the flooding runtime is not ready: {said!r} {(folder / 'runtime-log').read_text()}")
        with Supervisor(folder) as ours:
            with ours.client() as client:
                client.call("wait", {"runtime_id": _RUNTIME, "until": "done"})
            yield ours
    finally:
        os.close(ready_out)
        process.kill()
        process.wait()


def _encode(plan: Plan) -> str:
    return msgspec.json.encode(plan).decode()
