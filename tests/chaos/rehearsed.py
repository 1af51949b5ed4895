"""What the scripted agents of the suite do, and the loop and team that they are put into.

What a prompt is about is its first word. An agent at its gate waits for a file, so that a run stands still until a step
of the schedule lets it go on.
"""

import json
from pathlib import Path
from typing import Any, Final

SCRIPT: Final = "script.json"
LOOP: Final = "loop.json"
TEAM: Final = "team.json"
# In the environment of a run's agents: its name, and a number of seconds that no other command sleeps.
NAME: Final = "CHAOS_RUN"
SLEEP: Final = "CHAOS_SLEEP"
AT_GATE: Final = "at the gate"

_GATE: Final = {"do": "wait_for", "path": "{cwd}/gate-{env:CHAOS_RUN}"}
_STUBBORN_TOOL: Final = {
    "do": "run",
    "command": "trap '' TERM; exec sleep {env:CHAOS_SLEEP}",
    "background": True,
}


def _say(text: str) -> dict[str, Any]:
    return {"do": "say", "text": text}


def _rule(word: str, *steps: dict[str, Any]) -> dict[str, Any]:
    return {"match": f"^{word}", "steps": list(steps)}


_RULES: Final = [
    _rule("gate", _say(AT_GATE), _GATE, _say("through")),
    _rule("ask", {"do": "tool", "title": "a tool", "ask": True}, _say("answered")),
    _rule("tool", _STUBBORN_TOOL, _say(AT_GATE), _GATE, _say("through")),
    {"steps": [_say("done")]},
]


def _phase(name: str, prompt: str) -> dict[str, Any]:
    return {"name": name, "prompt": prompt}


_LOOP: Final = {
    "pre": [_phase("before", "quick")],
    "loop": [_phase("round", "gate"), _phase("look", "quick")],
    "post": [_phase("after", "ask")],
    "max_iterations": 2,
}
TEAM_PHASES: Final = [
    _phase("fast", "quick"),
    _phase("slow", "gate"),
    _phase("tooled", "tool"),
    _phase("asking", "ask"),
]
_TEAM: Final = {
    "pre": [_phase("plan", "quick")],
    "team": TEAM_PHASES,
    "post": [_phase("sum", "quick")],
}


def write_files(folder: Path) -> None:
    """Put the script and the configs into the folder in which the agents work."""
    for name, content in ((SCRIPT, {"rules": _RULES}), (LOOP, _LOOP), (TEAM, _TEAM)):
        (folder / name).write_text(json.dumps(content))


def gate(folder: Path, name: str) -> Path:
    """The file that a run's agents wait for."""
    return folder / f"gate-{name}"
