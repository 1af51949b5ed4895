"""How long a spawn takes, and how many a second there can be."""

import statistics
import time
from collections.abc import Callable, Iterator

from tests.bench import machine
from tests.bench.bench import Bench
from tests.bench.circus import Circus
from tests.bench.figures import Figure, Limit, Row, median, percentile_99, sample_in_turns
from tests.bench.ours import Client, Params, Refusal, Supervisor, rest
from tests.bench.supervisord import Supervisord

_CLIENTS = 8


def measure_ready(bench: Bench) -> Iterator[Row]:
    """From the request to a runtime that answers on its own socket, beside others' bare children."""
    rounds, samples = bench.times(5, 2), bench.times(20, 10)
    idle = bench.settle()
    children = rounds * samples
    with (
        Supervisor(bench.new_folder("spawn")) as ours,
        Supervisord(bench.new_folder("d"), bench.child, count=children, are_started=False) as supervisord,
        Circus(bench.new_folder("c"), bench.child, count=children, are_started=False) as circus,
        ours.client() as client,
    ):
        ours.warm_up(bench.agent)
        used = _Used(ours)
        taken = sample_in_turns(
            {
                "avenor": lambda: _spawn_ready(bench, ours, client, used),
                supervisord.name: _next_child(supervisord.start_child),
                circus.name: _next_child(circus.start_child),
            },
            rounds=rounds,
            samples=samples,
        )
    figures = {name: median(rounds) for name, rounds in taken.items()}
    tails = {name: percentile_99(rounds) for name, rounds in taken.items()}
    note = (
        "avenor: until the runtime, a Python process with its own log and socket, has answered our own `ping` on that "
        "socket, after the supervisor's answer with `wait: started`; its agent starts meanwhile. Others: until a bare "
        f"child, a few lines of C, says that it runs. Processor time of avenor until then: {used.describe()}."
    )
    yield _row("spawn-p50", "spawn: request to runtime ready, p50", figures, Limit(shown=6), idle, note)
    yield _row("spawn-p99", "spawn: request to runtime ready, p99", tails, Limit(shown=15), idle, "Of all samples.")


def measure_session(bench: Bench) -> Iterator[Row]:
    """From the request to the agent's session: a Python program, and a few lines of shell."""
    idle = bench.settle()
    scripted: Params = {"backend": "scripted", "prompt": "hello", "dir": "/"}
    shell = {**bench.agent, "wait": "session"}
    with Supervisor(bench.new_folder("session")) as ours, ours.client() as client:
        ours.warm_up(bench.agent)
        taken = sample_in_turns(
            {
                "scripted": lambda: _spawn_session(bench, client, scripted),
                "shell": lambda: _spawn_session(bench, client, shell),
            },
            rounds=bench.times(3, 1),
            samples=bench.times(6, 4),
        )
    yield Row(
        key="session",
        what="spawn: request to the scripted agent's session, p50",
        unit="ms",
        ours=median(taken["scripted"]),
        others={"an agent of a few lines of shell": median(taken["shell"])},
        notes=("With `wait: session`. The scripted agent is a fresh Python process.",),
        idle_before=idle,
    )


def measure_rate(bench: Bench) -> Iterator[Row]:
    """Spawns a second from several clients at once."""
    count = bench.times(240, 80)
    idle = bench.settle()
    rates: list[list[float]] = []
    for _ in range(bench.times(3, 1)):
        with Supervisor(bench.new_folder("rate")) as ours:
            ours.warm_up(bench.agent)
            bench.spawns += count
            rates.append([count / ours.spawn_many(bench.agent, count, _CLIENTS)])
            pids = ours.runtime_pids()
            for runtime_id in pids:
                with ours.runtime_client(runtime_id) as runtime:
                    runtime.call("ping")
            if len(pids) != count:
                bench.failures.append(f"{count - len(pids)} of {count} runtimes are not there")
            bench.note_launcher(ours)
    yield Row(
        key="spawn-rate",
        what=f"spawns a second, {_CLIENTS} clients",
        unit="/s",
        ours=median(rates),
        limit=Limit(shown=300, is_floor=True),
        notes=(f"{count} spawns each time; every runtime starts its agent meanwhile, and each was pinged afterwards.",),
        idle_before=idle,
    )


class _Used:
    """Processor time that spawns use until the runtime is ready, which other work on the machine changes little.

    Args:
        ours: Warm.
    """

    def __init__(self, ours: Supervisor) -> None:
        self._keepers = {"supervisor": ours.pid, "zygote": machine.zygote_of(ours.pid)}
        self._seconds: dict[str, list[float]] = {name: [] for name in (*self._keepers, "runtime")}
        self._before: dict[str, float] = {}

    def begin(self) -> None:
        """A spawn begins."""
        self._before = {name: machine.cpu_seconds([pid]) for name, pid in self._keepers.items()}

    def end(self, runtime: int) -> None:
        """Its runtime, this process, is ready."""
        self._seconds["runtime"].append(machine.cpu_seconds([runtime]))
        for name, pid in self._keepers.items():
            self._seconds[name].append(machine.cpu_seconds([pid]) - self._before[name])

    def describe(self) -> str:
        """The medians."""
        return ", ".join(f"{name} {statistics.median(each) * 1e3:.1f} ms" for name, each in self._seconds.items())


def _spawn_ready(bench: Bench, ours: Supervisor, client: Client, used: _Used) -> float:
    bench.spawns += 1
    used.begin()
    began = time.perf_counter()
    try:
        runtime_id: str = client.call("spawn", bench.agent)["runtime_id"]
    except Refusal as refusal:
        bench.failures.append(str(refusal))
        return time.perf_counter() - began
    with ours.runtime_client(runtime_id) as runtime:
        pong = runtime.call("ping")
        taken = time.perf_counter() - began
        used.end(pong["pid"])
        bench.note_runtime(ours, pong["pid"])
    if pong["runtime_id"] != runtime_id:
        bench.failures.append(f"{runtime_id} answers as {pong['runtime_id']}")
    rest(client, runtime_id)
    return taken


def _spawn_session(bench: Bench, client: Client, params: Params) -> float:
    bench.spawns += 1
    began = time.perf_counter()
    spawned = client.call("spawn", params)
    taken = time.perf_counter() - began
    if not spawned["session_id"]:
        bench.failures.append(f"{spawned['runtime_id']} has no session")
    rest(client, spawned["runtime_id"])
    return taken


def _next_child(start: Callable[[int], float]) -> Callable[[], float]:
    indices = iter(range(1_000_000))
    return lambda: start(next(indices))


def _row(key: str, what: str, figures: dict[str, Figure], limit: Limit, idle: float, note: str) -> Row:
    peers = {name: figure for name, figure in figures.items() if name != "avenor"}
    return Row(
        key=key,
        what=what,
        unit="ms",
        ours=figures["avenor"],
        peers=peers,
        limit=limit,
        notes=(note,),
        idle_before=idle,
    )
