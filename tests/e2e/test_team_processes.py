"""The processes of a team: each member's are its own while it works, and none is left when all have ended."""

import json

from tests.e2e.harness import WAIT_SECONDS, Place, Stable, commands, is_alive
from tests.helpers import eventually_sync


def write_team(place: Place, *names: str) -> str:
    """A team whose members are told their names."""
    path = place.work / "team.json"
    path.write_text(json.dumps({"team": [{"name": name, "prompt": f"{name} work"} for name in names]}))
    return str(path)


def test_the_end_of_one_member_ends_nothing_of_another(place: Place) -> None:
    """Neither the agent of one that still works, nor what that has put into the background; all of it ends with it."""
    sleeper = place.sleeper()
    gate = place.work / "gate"
    script = place.script(
        {
            "match": "^long",
            "steps": [
                {"do": "run", "command": f"setsid sh -c '{sleeper} &'", "background": True},
                {"do": "wait_for", "path": str(gate)},
                {"do": "say", "text": "long has ended"},
            ],
        },
        {"match": "^short", "steps": [{"do": "say", "text": "short has ended"}]},
    )
    stable = Stable(place)
    client = stable.connect()
    spawned = client.spawn(place, prompt=None, team_file=write_team(place, "long", "short"), script=script)
    runtime_id = spawned["runtime_id"]
    eventually_sync(lambda: commands(sleeper), WAIT_SECONDS)
    client.call("subscribe", runtime_id=runtime_id, replay=True)
    client.wait_event("avenor.phase.end", phase="short")
    (escaped,) = commands(sleeper)
    gate.touch()
    ended = client.call("wait", runtime_id=runtime_id, until="done")
    assert (ended["outcome"], ended["left_processes"]) == ("DONE", [])
    assert client.call("result", runtime_id=runtime_id)["final_output"] == (
        "## long\nlong has ended\n\n## short\nshort has ended\n"
    )
    assert not is_alive(escaped)


def test_a_cancel_ends_all_members_and_what_escaped_them(place: Place) -> None:
    """With a cleared environment, in a session of its own, adopted: found by the sweep after the last member."""
    sleepers = {name: place.sleeper() for name in ("one", "two")}
    script = place.script(
        *(
            {
                "match": f"^{name}",
                "steps": [
                    {"do": "run", "command": f"env -i PATH=$PATH setsid sh -c '{sleeper} &'", "background": True},
                    {"do": "hang"},
                ],
            }
            for name, sleeper in sleepers.items()
        )
    )
    stable = Stable(place)
    client = stable.connect()
    spawned = client.spawn(place, prompt=None, team_file=write_team(place, *sleepers), script=script)
    eventually_sync(lambda: all(commands(sleeper) for sleeper in sleepers.values()), WAIT_SECONDS)
    assert client.call("cancel", runtime_id=spawned["runtime_id"]) == {"ok": True, "left": []}
    assert [commands(sleeper) for sleeper in sleepers.values()] == [[], []]
    assert stable.sentinel(spawned["runtime_id"]).status == "KILLED"
