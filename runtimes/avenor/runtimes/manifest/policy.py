"""Answers what the agent of one attempt asks, from what its member was granted, and watches what did not ask.

Nothing here trusts an agent to ask: a tool that ran all the same is told, and the sandbox has held back what it could.
"""

from typing import Final, Protocol

import msgspec

from avenor.protocol.events import Event, PermissionOption, ToolCall, ToolCallUpdate
from avenor.protocol.manifest.authority import Capabilities, Decision, ToolUse, decide, own_tool_name
from avenor.runtimes.backends.base import PermissionAnswer, PermissionAsk
from avenor.runtimes.manifest.tooluse import Call, Roots, use_of_ask, use_of_call

# An agent that names more calls than this in one attempt is not told apart any more: the oldest are forgotten.
_CALLS_LIMIT: Final = 10_000


class Judged(msgspec.Struct, frozen=True, kw_only=True):
    """What was decided of one tool call.

    Attributes:
        tool: The declared tool that allows it; else what the agent calls it.
        kind: ACP's word.
        field: The field of the manifest that decided.
        reason: One line.
        tool_call_id: The agent's; empty if it gave none.
    """

    tool: str
    kind: str
    field: str
    reason: str
    tool_call_id: str


class Watcher(Protocol):
    """Is told what becomes of tool calls, each charged once; avenor's own are not charged here.

    All of it is synchronous and raises nothing. Ids are empty where the agent gives none.
    """

    def use(self, tool_call_id: str) -> str | None:
        """Charges a tool call that is about to be allowed; why there is none left, and then charges nothing."""
        ...

    def used(self, tool_call_id: str) -> None:
        """Charges a tool call that is over and has not asked."""
        ...

    def allowed(self, judged: Judged) -> None:
        """A question was answered with yes."""
        ...

    def denied(self, judged: Judged) -> None:
        """A question was answered with no."""
        ...

    def violated(self, judged: Judged) -> None:
        """Something ran that the member may not do, and that did not ask. Once for each tool call."""
        ...


class Policy:
    """The policy of one attempt; see `sinks.Policy`.

    Args:
        capabilities: What its member may do.
        roots: Where it works.
        watcher: Is told what becomes of it.
    """

    def __init__(self, capabilities: Capabilities, roots: Roots, watcher: Watcher) -> None:
        self._capabilities = capabilities
        self._roots = roots
        self._watcher = watcher
        self._calls: dict[str, Call] = {}
        self._settled: set[str] = set()  # asked about, or over
        self._charged: set[str] = set()
        self._unnamed: list[tuple[str, str]] = []  # asked about without an id

    def answer(self, ask: PermissionAsk) -> PermissionAnswer | None:
        """Yes once, no, or None for what is no question about a tool: a person has to answer that."""
        if not _is_about_a_tool(ask):
            return None
        self._begin_anew(ask.tool_call_id or "")
        use = use_of_ask(ask, self._calls.get(ask.tool_call_id or ""), self._roots)
        decision = decide(self._capabilities, use)
        option = _yes(ask)
        if decision.allow and option is None:
            return None  # it offers no yes that is meant for once
        if decision.allow and (why := self._charge(ask, use)) is not None:
            decision = Decision(allow=False, field=f"{self._capabilities.field}.budget.tool_calls", reason=why)
        self._settle(ask, use)
        judged = _judged(use, decision, ask.tool_call_id or "")
        if decision.allow and option is not None:
            self._watcher.allowed(judged)
            return PermissionAnswer(option_id=option.option_id, message=decision.reason)
        self._watcher.denied(judged)
        return PermissionAnswer(option_id=_no(ask), message=f"{decision.reason} ({decision.field})")

    def note(self, event: Event) -> None:
        """Takes every event of the session."""
        if not isinstance(event, (ToolCall, ToolCallUpdate)):
            return
        if isinstance(event, ToolCall):
            self._begin_anew(event.toolCallId)
        call = self._calls.setdefault(event.toolCallId, Call())
        was_over = call.is_over
        call.take(event)
        if call.is_over and not was_over:
            self._end(event.toolCallId, call)
        while len(self._calls) > _CALLS_LIMIT:
            del self._calls[next(iter(self._calls))]

    def _begin_anew(self, tool_call_id: str) -> None:
        """What comes under the id of a call that is over is another call, of which nothing was decided yet."""
        call = self._calls.get(tool_call_id)
        if call is not None and call.is_over:
            del self._calls[tool_call_id]
            self._settled.discard(tool_call_id)
            self._charged.discard(tool_call_id)

    def _charge(self, ask: PermissionAsk, use: ToolUse) -> str | None:
        if own_tool_name(use) is not None or ask.tool_call_id in self._charged:  # some ask twice about one call
            return None
        why = self._watcher.use(ask.tool_call_id or "")
        if why is None and ask.tool_call_id is not None:
            self._charged.add(ask.tool_call_id)
        return why

    def _end(self, tool_call_id: str, call: Call) -> None:
        use = use_of_call(call, self._roots)
        if tool_call_id in self._settled or own_tool_name(use) is not None:
            return
        self._settled.add(tool_call_id)
        if use.mcp in self._unnamed:
            self._unnamed.remove(use.mcp)
            return
        self._watcher.used(tool_call_id)
        decision = decide(self._capabilities, use)
        if call.has_run and not call.is_void and not decision.allow:
            self._watcher.violated(_judged(use, decision, tool_call_id))

    def _settle(self, ask: PermissionAsk, use: ToolUse) -> None:
        if ask.tool_call_id is not None:
            self._settled.add(ask.tool_call_id)
        elif use.mcp is not None:
            self._unnamed.append(use.mcp)


def _judged(use: ToolUse, decision: Decision, tool_call_id: str) -> Judged:
    return Judged(
        tool=decision.tool or use.tool or use.title,
        kind=use.kind or "other",
        field=decision.field,
        reason=decision.reason,
        tool_call_id=tool_call_id,
    )


def _is_about_a_tool(ask: PermissionAsk) -> bool:
    """Whether it can be answered with yes or no, and is about a tool; not what the agent asks the user."""
    if not any(option.kind.startswith("allow") for option in ask.options):
        return False
    return ask.kind is not None or ask.tool_call_id is not None or bool(ask.trusted_options)


def _yes(ask: PermissionAsk) -> PermissionOption | None:
    offered = {option.option_id: option for option in ask.options}
    trusted = [offered[option_id] for option_id in ask.trusted_options if option_id in offered]
    return next((option for option in trusted if option.kind == "allow_once"), None)


def _no(ask: PermissionAsk) -> str | None:
    """The option that refuses this once, else for good; None withdraws the question, which agents take for a no."""
    for kind in ("reject_once", "reject_always"):
        for option in ask.options:
            if option.kind == kind:
                return option.option_id
    return None
