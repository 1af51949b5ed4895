"""What `avenor doctor` finds out about backends: what `--json` prints, with every member always there."""

from typing import Literal

import msgspec

State = Literal["works", "failed", "not_installed", "skipped"]


class Examined(msgspec.Struct, frozen=True, kw_only=True):
    """One backend.

    Attributes:
        backend: The name that `--backend` takes.
        source: Whether it comes with avenor, is a profile file of the user, or belongs to an installed package.
        state: `works` if it has opened a session; `skipped` if nothing was tried, for the reason in `error`.
        program: The path of its program; null if it is not installed, or has none of its own.
        install: How to get the program; empty where nobody knows.
        note: What a user should know before choosing it; may be empty.
        version: What the program says of its version.
        agent: Name and version as the agent tells them in its handshake.
        resume: How it restores sessions; null if it cannot, or was not asked.
        mcp: The kinds of MCP servers that it takes.
        modes: What `--agent` may be; `mode` is the one that it starts with.
        models: What `--model` may be; `model` is the one that it starts with.
        thinking: What `--thinking` may be.
        seconds: How long the examination took.
        error: What is wrong, in words; null if it works.
        reason: The stable word for that.
    """

    backend: str
    source: Literal["builtin", "profile", "entry_point"]
    state: State
    program: str | None = None
    install: str = ""
    note: str = ""
    version: str | None = None
    agent: str | None = None
    resume: Literal["resume", "load"] | None = None
    mcp: list[str] = []
    mode: str | None = None
    modes: list[str] = []
    model: str | None = None
    models: list[str] = []
    thinking: list[str] = []
    seconds: float = 0.0
    error: str | None = None
    reason: str | None = None


class Diagnosis(msgspec.Struct, frozen=True, kw_only=True):
    """All that were examined.

    Attributes:
        ok: Every backend that was asked for by name works; asked for none, at least one real agent does.
        version: Of avenor.
        dir: Where the sessions were opened.
        seconds: How long it took.
        left: Processes that could not be ended, in words; empty unless something is very wrong.
        backends: In the order in which they are listed everywhere.
    """

    ok: bool
    version: str
    dir: str
    seconds: float
    left: list[str]
    backends: list[Examined]
