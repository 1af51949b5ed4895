"""Clients that do harm: one that never reads, and one that asks without end. And lines as long as they may be."""

import contextlib
import json
import statistics
import threading
import time
from collections.abc import Callable, Generator
from typing import Any

from tests.e2e.harness import Client, read_log, steps
from tests.e2e.shortage import missing
from tests.load.rows import Load, Row
from tests.load.supervisors import MIB, Loaded, is_idle, rss_mib

_LINE_LIMIT_BYTES = 16 * MIB
_CHUNK = "agent.message_chunk"
# Five backlogs of 4 MiB, the pieces that are read from the log, and what an allocator makes of that. Unbounded queues
# of the four would be twice as large.
_BACKLOGS_MIB = 80
# As a client counts that reads in pieces.
_RECEIVE_BYTES = 1 << 20


def measure_deaf(load: Load) -> Row:
    """Subscribers that read nothing while runs flood."""
    count, size = load.times(50_000), 400
    row = Row(
        key="deaf",
        done=f"4 subscribers that never read, two of either kind, while a run streams {count:,} chunks of {size} "
        "characters to one that does",
    )
    with load.place() as place:
        ours = Loaded(place)
        ours.spawn_many(["warm up"])
        deaf = [ours.connect() for _ in range(4)]
        for number, each in enumerate(deaf):
            each.call("subscribe", on_lag="disk" if number % 2 else "drop")
        reader = ours.connect()
        script = place.script(steps({"do": "flood", "count": count, "size": size}))
        before = rss_mib(ours.pid)
        sizes: list[float] = []
        with _watching(lambda: sizes.append(rss_mib(ours.pid))):
            runtime_id = ours.client.spawn(place, script=script)["runtime_id"]
            reader.call("subscribe", runtime_id=runtime_id, replay=True, on_lag="disk")
            events = _read_turn(reader)
        row.equal("chunks that the reader had", [event["event"] for event in events].count(_CHUNK), count)
        row.equal("gaps in what it had", len(missing(events)), 0)
        ended = ours.client.call("wait", runtime_id=runtime_id, until="done")
        row.equal("outcome of the run", ended["outcome"], "DONE")
        row.equal("gaps in the log", len(missing(read_log(ours.stable.log_path(runtime_id)))), 0)
        row.at_most("growth of the supervisor while it lasts, RSS", max(sizes) - before, _BACKLOGS_MIB, " MiB")
        row.tell("log, MiB", ours.stable.log_path(runtime_id).stat().st_size / MIB)
        began = time.monotonic()
        row.equal("exit of the supervisor, the deaf still connected", ours.stable.shutdown(), 0)
        row.tell("seconds to shut down", time.monotonic() - began)
    return row


def measure_flood(load: Load) -> Row:
    """Requests in a pipe whose answers nobody reads, and others who ask at the same time."""
    count = load.times(100_000)
    row = Row(key="flood", done=f"{count:,} `ping` and `status` requests pipelined by a client that reads no answer")
    with load.place() as place:
        ours = Loaded(place)
        (runtime_id,) = ours.spawn_many(["hello"])
        quiet = _latencies(ours.client, runtime_id, 200)
        flooder, sent = ours.connect(), [0]
        before = rss_mib(ours.pid)
        sizes: list[float] = []
        thread = threading.Thread(target=_flood, args=[flooder, runtime_id, count, sent], daemon=True)
        with _watching(lambda: sizes.append(rss_mib(ours.pid))):
            thread.start()
            disturbed = _latencies(ours.client, runtime_id, 400)
            thread.join(3)
        row.tell("requests taken before it was not read further", sent[0])
        row.equal("answers to others meanwhile", len(disturbed), 400)
        row.at_most("growth of the supervisor, RSS", max(sizes) - before, 30, " MiB")
        row.tell("`status` of others before, p50 ms", 1000 * statistics.median(quiet))
        row.tell("meanwhile, p50 ms", 1000 * statistics.median(disturbed))
        row.tell("meanwhile, longest ms", 1000 * max(disturbed))
        wanted = count // 100 * 100
        row.equal("answers when it reads after all", _drain(flooder, thread, wanted), wanted)
        row.equal("exit of the supervisor", ours.stable.shutdown(), 0)
    return row


def measure_lines(load: Load) -> Row:
    """The longest line that is taken, and the shortest that is not."""
    count = load.times(5)
    row = Row(key="lines", done=f"{count} times a `ping` of exactly 16 MiB and one of a byte more, on one connection")
    with load.place() as place:
        ours = Loaded(place)
        bystander = ours.connect()
        before = rss_mib(ours.pid)
        taken: list[str] = []
        for _ in range(count):
            taken.append(_ping_of(ours.client, _LINE_LIMIT_BYTES))
            taken.append(_ping_of(ours.client, _LINE_LIMIT_BYTES + 1))
        row.equal("answers to 16 MiB", taken[::2].count("pong"), count)
        row.equal("refusals (-32700) of one byte more", taken[1::2].count("-32700"), count)
        row.holds("others are served", "result" in bystander.ask("ping"))
        row.at_most("kept by the supervisor afterwards, RSS", rss_mib(ours.pid) - before, 40, " MiB")
        row.holds("processor idle afterwards", is_idle(ours.pid))
        row.equal("exit of the supervisor", ours.stable.shutdown(), 0)
    return row


@contextlib.contextmanager
def _watching(look: Callable[[], None]) -> Generator[None, None, None]:
    """Calls `look` again and again while this lasts, and once at its end."""
    is_over = threading.Event()

    def watch() -> None:
        while not is_over.wait(0.02):
            look()

    thread = threading.Thread(target=watch)
    thread.start()
    try:
        yield
    finally:
        is_over.set()
        thread.join()
        look()


def _read_turn(reader: Client) -> list[dict[str, Any]]:
    """All events that come, up to the first turn's end."""
    while not reader.events or reader.events[-1]["event"] != "turn.end":
        reader.take()
    return reader.events


def _latencies(client: Client, runtime_id: str, count: int) -> list[float]:
    taken: list[float] = []
    for _ in range(count):
        began = time.perf_counter()
        client.call("status", runtime_id=runtime_id)
        taken.append(time.perf_counter() - began)
    return taken


def _flood(client: Client, runtime_id: str, count: int, sent: list[int]) -> None:
    """Sends the requests, however long nobody takes them; `sent` holds how many are gone."""
    ping = json.dumps({"jsonrpc": "2.0", "id": 1, "method": "ping"}).encode() + b"\n"
    status = {"jsonrpc": "2.0", "id": 2, "method": "status", "params": {"runtime_id": runtime_id}}
    block = (ping + json.dumps(status).encode() + b"\n") * 50
    for _ in range(count // 100):
        client.sock.sendall(block)
        sent[0] += 100


def _drain(client: Client, thread: threading.Thread, count: int) -> int:
    """How many answers come for so many requests."""
    found = 0
    while found < count and (data := client.sock.recv(_RECEIVE_BYTES)):
        found += data.count(b"\n")
    thread.join()
    return found


def _ping_of(client: Client, size: int) -> str:
    """What a `ping` in a line of so many bytes is answered with: `pong`, or the code of the error."""
    head, tail = b'{"jsonrpc":"2.0","id":1,"method":"ping","params":{}', b"}"
    client.sock.sendall(head + b" " * (size - len(head) - len(tail)) + tail + b"\n")
    answer = json.loads(client.read_line())
    return "pong" if "result" in answer else str(answer["error"]["code"])
