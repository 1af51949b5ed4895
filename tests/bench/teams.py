"""A team of fifty in one runtime: does its control socket still answer?"""

import json
import time
from collections.abc import Iterator
from pathlib import Path

from tests.bench.bench import Bench
from tests.bench.figures import Limit, Row, percentile_99
from tests.bench.ours import Client, Supervisor

_MEMBERS = 50
_CHUNKS_A_MEMBER = 40
_PAUSE_SECONDS = 0.05


def measure_team(bench: Bench) -> Iterator[Row]:
    """Status of the runtime itself, from when all members work until they end."""
    folder = bench.new_folder("team")
    folder.mkdir()
    idle = bench.settle()
    with Supervisor(bench.new_folder("team")) as ours, ours.client() as client:
        bench.spawns += 1
        runtime_id: str = client.call("spawn", _team(folder))["runtime_id"]
        with ours.runtime_client(runtime_id) as direct:
            _wait_all_at_work(folder)
            taken = _ask_until_over(direct)
        ended = client.call("wait", {"runtime_id": runtime_id, "until": "done"})
        if ended["outcome"] != "DONE":
            bench.failures.append(f"the team ended as {ended['outcome']}: {ended['reason']}")
    yield Row(
        key="team",
        what=f"`status` of a runtime in which a team of {_MEMBERS} works, p99",
        unit="ms",
        ours=percentile_99([taken]),
        limit=Limit(shown=10),
        notes=(
            f"On the runtime's own socket, one question after another. Each member is a scripted agent, a Python "
            f"process, that says {_CHUNKS_A_MEMBER} pieces, one each {_PAUSE_SECONDS * 1000:.0f} ms. From when all "
            "have started: before that fifty interpreters share the processors.",
        ),
        idle_before=idle,
    )


def _team(folder: Path) -> dict[str, object]:
    names = [f"m{number}" for number in range(_MEMBERS)]
    pieces: list[dict[str, object]] = []
    for number in range(_CHUNKS_A_MEMBER):
        pieces.append({"do": "say", "text": f"piece {number} "})
        pieces.append({"do": "wait", "seconds": _PAUSE_SECONDS})
    steps: list[dict[str, object]] = [
        {"do": "barrier", "directory": str(folder / "met"), "count": _MEMBERS},
        {"do": "write", "path": str(folder / "working"), "text": "yes"},
        *pieces,
    ]
    team = folder / "team.json"
    script = folder / "script.json"
    team.write_text(json.dumps({"team": [{"name": name, "prompt": f"work as {name}"} for name in names]}))
    script.write_text(json.dumps({"rules": [{"steps": steps}]}))
    return {
        "backend": "scripted",
        "team_file": str(team),
        "script": str(script),
        "dir": str(folder),
        "auto_approve": True,
    }


def _wait_all_at_work(folder: Path) -> None:
    deadline = time.monotonic() + 60
    while not (folder / "working").exists():
        if time.monotonic() > deadline:
            raise RuntimeError("the members of the team did not meet within a minute")
        time.sleep(0.01)


def _ask_until_over(client: Client) -> list[float]:
    request = client.request("status")
    taken: list[float] = []
    answer = b""
    while b'"turn_state":"running"' in answer or not taken:
        began = time.perf_counter()
        answer = client.exchange(request)
        taken.append(time.perf_counter() - began)
        time.sleep(0.001)
    return taken
