"""Writes the generated parts of `reference/backends.md`: what was seen of real agents, and the data of the profiles.

Run as `python docs/backends.py`, after `make test-agents`. It starts no agent: it reads the results that those tests
have kept in `tests/agents/results`.
"""

import json
import shlex
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from avenor.runtimes.backends.profiles import Profile, builtin, builtin_names

PAGE: Final = Path(__file__).parent / "reference" / "backends.md"
RESULTS: Final = Path(__file__).parents[1] / "tests" / "agents" / "results"

# The checks in plain words, in the order of the page; a check that is missing here fails a test.
ROWS: Final[Mapping[str, Mapping[str, str]]] = {
    "Turns": {
        "opens_a_session": "opens a session; its process is recorded before it works",
        "runs_a_text_turn": "a text turn gives its text and ends by itself",
        "tells_thoughts_apart": "thoughts come as thoughts",
        "remembers_in_the_second_turn": "two prompts are one conversation",
        "takes_one_prompt_at_a_time": "a second prompt in a busy session is refused by avenor",
        "tells_its_usage": "tokens, for each turn its own",
        "tells_what_it_costs": "the price in dollars",
    },
    "Tools": {
        "runs_a_tool_that_is_allowed": "asks before it acts; allowed, the tool runs",
        "rejects_a_tool": "rejected, the tool does not run, and the session goes on",
        "starts_an_mcp_server": "an MCP server that is handed over is started and asked for its tools",
    },
    "Cancelling": {
        "cancels_a_text": "in the midst of a text; the next turn is whole",
        "cancels_a_tool": "while a tool runs",
        "ends_its_tool_on_cancel": "the cancelled turn's tool ends as well",
        "cancels_an_open_question": "while a question is open: it is withdrawn",
        "survives_a_cancelled_prompt": "whoever waits for a turn may give up",
    },
    "A failing model is told as a failure": {
        "tells_a_bad_request": "400: for good",
        "tells_a_refused_login": "401: for good",
        "tells_a_rate_limit": "429: sat out, or told as such",
        "tells_a_model_that_is_down": "500 without end: may pass",
        "tells_a_broken_answer": "a connection that breaks off: may pass",
    },
    "Sessions": {
        "resumes_a_session": "resumed by another process; the past is not told again",
        "resumes_after_a_kill": "resumed after kill −9 in the midst of a turn",
        "refuses_to_resume_what_is_not_there": "an unknown session is refused",
    },
    "Settings": {
        "uses_what_was_chosen": "model, agent (mode) and thinking are set, and verified",
        "refuses_a_model_that_is_not_offered": "an unknown model is refused, with what is offered",
        "refuses_an_agent_that_is_not_offered": "an unknown agent (mode) is refused, with what is offered",
    },
    "Ending, with a tool running: nothing is left": {
        "leaves_nothing_when_closed": "after the session was closed",
        "leaves_nothing_after_a_sigterm": "after SIGTERM to the agent",
        "leaves_nothing_after_a_kill": "after kill −9 of the agent",
        "leaves_nothing_when_its_input_closes": "after its input was closed",
        "tells_a_death_in_mid_turn": "killed in a turn, it is told as a crash, with how it died",
    },
}

_SIGNS: Final = {"passed": "✓", "failed": "✗"}
_BUSY: Final = {
    "queued": "queues it",
    "cancels": "cancels the first",
    "refused": "refuses it",
    "steers": "adds it to the turn",
    "lost": "never answers it",
    "unknown": "not known",
}

Column = dict[str, Any]


def page(text: str) -> str:
    """The page with its generated parts made anew.

    Args:
        text: The page as it is.
    """
    columns = [json.loads(path.read_text(encoding="utf-8")) for path in RESULTS.glob("*.json")]
    order = {name: place for place, name in enumerate(builtin_names())}
    columns.sort(key=lambda column: (order.get(column["backend"], len(order)), column["agent"]))
    text = _replace(text, "matrix", _matrix(columns))
    return _replace(text, "profiles", _profiles([builtin(name) for name in builtin_names()]))


def _replace(text: str, part: str, made: str) -> str:
    begin, end = f"<!-- {part}: made by docs/backends.py -->\n", f"<!-- end of {part} -->"
    before, rest = text.split(begin)
    _, after = rest.split(end)
    return f"{before}{begin}\n{made}\n{end}{after}"


def _matrix(columns: Sequence[Column]) -> str:
    notes: dict[str, int] = {}
    lines = [_row(["", *(_head(column) for column in columns)]), _row(["---", *(":-:" for _ in columns)])]
    for title, rows in ROWS.items():
        lines.append(_row([f"**{title}**", *("" for _ in columns)]))
        for check, words in rows.items():
            lines.append(_row([words, *(_cell(column, check, notes) for column in columns)]))
    told = [f"{number}. {reason[0].upper()}{reason[1:]}." for reason, number in notes.items()]
    return "\n".join([*lines, "", *told, ""])


def _head(column: Column) -> str:
    """The column's name, and which program it was seen with last, and when."""
    latest = _latest(column)
    return f"`{column['agent']}`<br>{latest['version']}<br>{latest['date']}"


def _latest(column: Column) -> dict[str, str]:
    found: dict[str, str] = max(column["checks"].values(), key=lambda result: result["date"])
    return found


def _cell(column: Column, check: str, notes: dict[str, int]) -> str:
    result = column["checks"].get(check)
    if result is None:
        return "not run"
    latest = _latest(column)
    sign = _SIGNS.get(result["verdict"], "–")
    if result["verdict"] == "not offered":
        sign += f" <sup>{notes.setdefault(result['reason'], len(notes) + 1)}</sup>"
    if result["version"] != latest["version"]:
        sign += f"<br>{result['version']}"
    return sign if result["date"] == latest["date"] else f"{sign}<br>{result['date']}"


def _profiles(profiles: Sequence[Profile]) -> str:
    head = [
        "backend",
        "program",
        "to install",
        "set to a mode in which it asks",
        "a second prompt in a busy session",
        "ends by",
        "MCP",
        "note",
    ]
    lines = [_row(head), _row(["---"] * len(head))]
    for profile in profiles:
        lines.append(
            _row(
                [
                    f"`{profile.name}`",
                    _program(profile),
                    profile.install,
                    " or ".join(f"`{mode}`" for mode in profile.asking_agents),
                    _BUSY[profile.busy_prompt],
                    "its input closed" if profile.ends_on_stdin_close else "SIGTERM",
                    ", ".join(profile.mcp) or "none",
                    profile.note,
                ]
            )
        )
    return "\n".join([*lines, ""])


def _program(profile: Profile) -> str:
    if not profile.argv:
        return "what `--agent-command` says"
    words = ["python3" if word == "{python}" else word for word in profile.argv]
    if words[1:3] == ["-P", "{start}"]:  # which is `-m`, wherever avenor lies
        words[1:3] = ["-m"]
    return f"`{shlex.join(words)}`"


def _row(cells: Iterable[str]) -> str:
    return f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |"


def main() -> None:
    """Writes the page."""
    PAGE.write_text(page(PAGE.read_text(encoding="utf-8")), encoding="utf-8")


if __name__ == "__main__":
    main()
