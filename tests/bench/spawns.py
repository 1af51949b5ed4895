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
_BEHIND = "right behind another spawn"


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
        # Afterwards, for these are as many runs again.
        taken |= sample_in_turns({_BEHIND: lambda: _spawn_behind(bench, ours, client)}, rounds=rounds, samples=5)
    figures = {name: median(rounds) for name, rounds in taken.items()}
    tails = {name: percentile_99(rounds) for name, rounds in taken.items()}
    note = (
        "avenor: until the supervisor's answer with `wait: started`. It is given when the runtime, a Python process "
        "with its own log and socket, has answered a ping there (`router.hello`, which brings the snapshot too). We "
        "then ping it there ourselves, over a new connection, and have the answer after "
        f"{statistics.median(used.pings) * 1e3:.1f} ms: its agent starts meanwhile. Others: until a bare child, a few "
        "lines of C, says that it runs. The zygote has had time to make a fork ahead, which became the runtime in "
        f"{used.from_spare} of {used.count} spawns; right behind another spawn there is none. Processor time of avenor "
        f"until our ping is answered: {used.describe()}."
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

    Attributes:
        from_spare: How many became what the zygote had forked ahead.
        pings: Seconds from the request until our own ping was answered.
    """

    def __init__(self, ours: Supervisor) -> None:
        self._ours = ours
        self._keepers = {"supervisor": ours.pid, "zygote": machine.zygote_of(ours.pid)}
        self._seconds: dict[str, list[float]] = {name: [] for name in (*self._keepers, "runtime", "made ahead")}
        self._before: dict[str, float] = {}
        self._spare = 0
        self._spare_seconds = 0.0
        self.from_spare = 0
        self.pings: list[float] = []

    @property
    def count(self) -> int:
        """How many spawns there were."""
        return len(self._seconds["runtime"])

    def begin(self) -> None:
        """A spawn begins, as soon as a fork waits for it."""
        self._spare = self._ours.wait_spare()
        self._spare_seconds = machine.cpu_seconds([self._spare])
        self._before = {name: machine.cpu_seconds([pid]) for name, pid in self._keepers.items()}

    def end(self, runtime: int) -> None:
        """Its runtime, this process, is ready."""
        is_spare = runtime == self._spare
        self.from_spare += is_spare
        ahead = self._spare_seconds if is_spare else 0.0
        self._seconds["made ahead"].append(ahead)
        self._seconds["runtime"].append(machine.cpu_seconds([runtime]) - ahead)
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
    taken = time.perf_counter() - began
    with ours.runtime_client(runtime_id) as runtime:
        pong = runtime.call("ping")
        used.pings.append(time.perf_counter() - began)
        used.end(pong["pid"])
        bench.note_runtime(ours, pong["pid"])
    if pong["runtime_id"] != runtime_id:
        bench.failures.append(f"{runtime_id} answers as {pong['runtime_id']}")
    rest(client, runtime_id)
    return taken


def _spawn_behind(bench: Bench, ours: Supervisor, client: Client) -> float:
    """The same for a spawn that nothing could be made ahead for."""
    bench.spawns += 2
    before: str = client.call("spawn", bench.agent)["runtime_id"]
    began = time.perf_counter()
    runtime_id: str = client.call("spawn", bench.agent)["runtime_id"]
    taken = time.perf_counter() - began
    for each in (before, runtime_id):
        rest(client, each)
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
    peers = {name: figure for name, figure in figures.items() if name not in ("avenor", _BEHIND)}
    return Row(
        key=key,
        what=what,
        unit="ms",
        ours=figures["avenor"],
        peers=peers,
        others={_BEHIND: figures[_BEHIND]},
        limit=limit,
        notes=(note,),
        idle_before=idle,
    )
