"""Starts the scripted agent: `python -m avenor.runtimes.scripted [--script FILE]`."""

import os
import sys

from avenor.protocol.errors import ConfigError
from avenor.protocol.script import load_script
from avenor.runtimes.scripted.agent import Agent
from avenor.runtimes.scripted.rules import RuleBook
from avenor.runtimes.scripted.state import StateDirectory, default_state_directory

USAGE = """\
usage: python -m avenor.runtimes.scripted [--script FILE]

An ACP agent on stdin and stdout that plays a script and asks no model.
Without --script it plays the default script.

example: python -m avenor.runtimes.scripted --script review.json
"""

DEFAULT_SCRIPT = os.path.join(os.path.dirname(__file__), "default.json")


class UsageError(Exception):
    """The command line cannot be used."""


def main(arguments: list[str]) -> int:
    """Runs the agent until its client leaves. Returns the exit code: 0, or 2 if it could not start."""
    if arguments in (["--help"], ["-h"]):
        sys.stdout.write(USAGE)
        return 0
    try:
        path = _script_path(arguments)
        with open(path, "rb") as file:
            data = file.read()
        script = load_script(data, file=path)
    except (UsageError, ConfigError, OSError) as error:
        sys.stderr.write(f"scripted agent: {error}\n")
        return 2
    state = StateDirectory(default_state_directory())
    rules = RuleBook(script, data, state=state, run_id=os.environ.get("AVENOR_RUN_ID"))
    agent = Agent(script, rules, state)
    agent.play_start()
    agent.loop.run()
    return 0


def _script_path(arguments: list[str]) -> str:
    match arguments:
        case []:
            return DEFAULT_SCRIPT
        case ["--script", path]:
            return path
        case [argument] if argument.startswith("--script="):
            return argument.removeprefix("--script=")
        case _:
            raise UsageError(f"cannot use {' '.join(arguments)!r}\n{USAGE}")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
