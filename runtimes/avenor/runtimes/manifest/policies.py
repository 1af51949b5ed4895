"""The policy of an attempt in a run: what is decided goes to the journal, and what is used to the ledger."""

from typing import Literal

from avenor.protocol.manifest.events import AuthorityEvent
from avenor.runtimes.manifest.attempts import LiveAttempt
from avenor.runtimes.manifest.journal import Journal
from avenor.runtimes.manifest.metering import Metering
from avenor.runtimes.manifest.policy import Judged, Policy
from avenor.runtimes.manifest.services import Bench
from avenor.runtimes.manifest.tooluse import Roots
from avenor.runtimes.manifest.workshop import GitBench


def make_policy(journal: Journal, metering: Metering, live: LiveAttempt, bench: Bench) -> Policy:
    """What answers the questions of an attempt."""
    top = bench.top if isinstance(bench, GitBench) else bench.directory
    return Policy(live.member.capabilities, Roots(top=top, cwd=bench.directory), _Teller(journal, metering, live))


class _Teller:
    """The `policy.Watcher` of an attempt."""

    def __init__(self, journal: Journal, metering: Metering, live: LiveAttempt) -> None:
        self._journal = journal
        self._metering = metering
        self._live = live

    def use(self, tool_call_id: str) -> str | None:
        return self._metering.use_tool(self._live.attempt_id)

    def used(self, tool_call_id: str) -> None:
        over = self._metering.used_tool(self._live.attempt_id)
        if over is not None:
            self._live.over_budget(over)

    def allowed(self, judged: Judged) -> None:
        self._tell(judged, "allow")

    def denied(self, judged: Judged) -> None:
        self._tell(judged, "deny")

    def violated(self, judged: Judged) -> None:
        self._tell(judged, "violation")
        self._live.violated(f"{judged.tool}: {judged.reason}")

    def _tell(self, judged: Judged, decision: Literal["allow", "deny", "violation"]) -> None:
        event = AuthorityEvent(
            attempt_id=self._live.attempt_id,
            tool=judged.tool,
            tool_kind=judged.kind,
            decision=decision,
            permitted_by=judged.field,
            detail=judged.reason,
        )
        self._journal.tell([event])
