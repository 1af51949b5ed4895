"""An agent that is hard to end, and its tools, which are harder: `python -S stubborn.py BIRTHS WHAT [HABIT …]`.

WHAT is `agent`, or one of the tools. Every process writes `NAME PID START_TICKS` as a line to the file BIRTHS before it
does anything else, so that whoever reads it knows what must be gone. What forks on and on does so for a bounded time:
nobody could find what a test run that was killed has left.
"""

import json
import os
import signal
import sys
import time
from collections.abc import Callable
from typing import Any, NoReturn

_FORK_SECONDS = 20.0


def announce(name: str) -> None:
    with open("/proc/self/stat", "rb") as stat:
        start_ticks = int(stat.read().rpartition(b")")[2].split()[19])
    fd = os.open(sys.argv[1], os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    os.write(fd, f"{name} {os.getpid()} {start_ticks}\n".encode())
    os.close(fd)


def ignore_signals() -> None:
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)


def fork(name: str, child: Callable[[], object]) -> int:
    pid = os.fork()
    if pid == 0:
        announce(name)
        child()
        os._exit(0)
    return pid


def sleep() -> NoReturn:
    while True:
        time.sleep(100)


# ---- tools


def deaf() -> None:
    """Ignores SIGTERM."""
    sleep()


def session() -> None:
    """Leads a session of its own."""
    os.setsid()
    sleep()


def daemon() -> None:
    """Double fork, a session of its own, and a program with no environment at all."""

    def middle() -> None:
        os.setsid()
        if os.fork() == 0:
            os.execve(sys.executable, [sys.executable, "-S", __file__, sys.argv[1], "daemonised"], {})

    os.waitpid(fork("daemon-middle", middle), 0)


def daemonised() -> None:
    sleep()


def leader() -> None:
    """Ends on SIGTERM, and leaves a child in its group that does not."""
    fork("leader-child", sleep)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    sleep()


def halted() -> None:
    """Stops itself, as a terminal would."""
    os.kill(os.getpid(), signal.SIGSTOP)
    sleep()


def storm() -> None:
    """Forks on and on; each child lives for a moment."""
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    end = time.monotonic() + _FORK_SECONDS
    while time.monotonic() < end:
        fork("storm-child", lambda: time.sleep(0.1))
        time.sleep(0.01)


def walker() -> None:
    """Is another process, in another session, whenever one looks."""
    end = time.monotonic() + _FORK_SECONDS
    while time.monotonic() < end:
        if os.fork():
            os._exit(0)
        announce("walker-step")
        os.setsid()
        time.sleep(0.005)


TOOLS: dict[str, Callable[[], None]] = {
    tool.__name__: tool for tool in (deaf, session, daemon, leader, halted, storm, walker)
}


# ---- the agent


def start_tools() -> None:
    for name in TOOLS:
        if os.fork() == 0:
            os.setsid()  # as agents start their tools
            null = os.open(os.devnull, os.O_RDWR)
            for fd in (0, 1, 2):
                os.dup2(null, fd)
            os.execv(sys.executable, tool_command(sys.argv[1], name))


def tool_command(births: str, name: str) -> list[str]:
    """The command line of a tool."""
    return [sys.executable, "-S", __file__, births, name]


def agent(habits: list[str]) -> None:
    """Speaks ACP. Its prompt starts the tools and is answered only by a cancel.

    Args:
        habits: `deaf-to-cancel`; `deaf-to-signals`, and to the end of its input; `exits` soon after the tools have
            started; `mute`, which starts them at once and then says nothing.
    """
    if "deaf-to-signals" in habits:
        ignore_signals()
    if "mute" in habits:
        start_tools()
        sleep()
    prompt_id: object = None
    for line in sys.stdin:
        asked = json.loads(line)
        match asked.get("method"):
            case "initialize":
                answer(asked["id"], {"protocolVersion": 1, "agentCapabilities": {}})
            case "session/new":
                answer(asked["id"], {"sessionId": "stubborn"})
            case "session/prompt":
                prompt_id = asked["id"]
                start_tools()
                if "exits" in habits:
                    wait_born()
                    os._exit(0)
            case "session/cancel" if "deaf-to-cancel" not in habits:
                answer(prompt_id, {"stopReason": "cancelled"})
            case _:
                pass
    if "deaf-to-signals" in habits:
        sleep()


def wait_born() -> None:
    """Returns when all tools have announced themselves."""
    names = {*TOOLS, "daemonised", "leader-child", "storm-child", "walker-step"}
    while True:
        with open(sys.argv[1]) as births:
            if names <= {line.split()[0] for line in births if line.strip()}:
                return
        time.sleep(0.01)


def answer(request_id: object, result: dict[str, Any]) -> None:
    sys.stdout.write(json.dumps({"jsonrpc": "2.0", "id": request_id, "result": result}) + "\n")
    sys.stdout.flush()


def main(what: str, habits: list[str]) -> None:
    announce(what)
    if what == "agent":
        agent(habits)
        return
    ignore_signals()
    {**TOOLS, "daemonised": daemonised}[what]()


if __name__ == "__main__":
    main(sys.argv[2], sys.argv[3:])
