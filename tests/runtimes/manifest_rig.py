"""Manifests in virtual time: members played by functions, a repository of names, a desk without a socket."""

import json
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
import trio
import trio.testing

from avenor.host.ladder import Graces, StopResult
from avenor.host.sentinelfile import Sentinel
from avenor.protocol.errors import ConfigError
from avenor.protocol.events import AnyEvent, Event, ToolCall, ToolCallUpdate
from avenor.protocol.manifest.authority import Capabilities, Grant, WriteGrant
from avenor.protocol.manifest.binding import BoundContext, BoundMember, BoundProfile, BoundReceipt, ResolvedManifest
from avenor.protocol.manifest.events import BudgetEvent, ManifestEnd, TaskEvent
from avenor.protocol.manifest.model import (
    AggregateBudget,
    Cancellation,
    Evaluation,
    Handoff,
    Join,
    MemberBudget,
)
from avenor.protocol.manifest.roster import Endpoint, Prices
from avenor.protocol.manifest.state import ManifestState
from avenor.protocol.mcp import McpServer
from avenor.protocol.outcomes import Outcome
from avenor.protocol.spec import RunSpec
from avenor.runtimes.backends.base import OpenParams, PermissionAnswer, PermissionAsk, TurnStop
from avenor.runtimes.eventlog import EventLog, LineFile, Stamp
from avenor.runtimes.host import RunHost, Surroundings
from avenor.runtimes.life import live
from avenor.runtimes.manifest.attempts import LiveAttempt
from avenor.runtimes.manifest.desk import Credentials
from avenor.runtimes.manifest.gateway import Meter
from avenor.runtimes.manifest.journal import Journal
from avenor.runtimes.manifest.mcp_http import ToolBox, ToolReply
from avenor.runtimes.manifest.metering import Metering
from avenor.runtimes.manifest.services import Bench, Change, ReceiptRun
from avenor.runtimes.manifest.working import work_off
from avenor.runtimes.replay import read_past
from tests.runtimes.fake_backend import FakeBackend, FakeSession
from tests.runtimes.run_rig import Folding, make_record

PINNED = "c0ffee0000000000000000000000000000000001"
OWN = ("submit_result",)
PLANNER_TOOLS = ("create_task", "start_worker", "cancel_worker", "replan", "read_receipt")


# ---- manifests


def member(
    id: str,
    *,
    needs: Sequence[str] = (),
    tools: Sequence[str] = (),
    writes: Sequence[str] = (),
    contexts: Sequence[str | BoundContext] = ("task_contract",),
    calls: int = 3,
    tool_calls: int = 8,
    tokens: int = 18000,
    seconds: float = 90,
    callable_by: Sequence[str] = (),
    endpoint: bool = False,
    prices: Prices | None = None,
    family: str | None = None,
    verdict: bool = False,
) -> BoundMember:
    """A member; its place in the manifest is filled in by `manifest`."""
    own = [*tools, *OWN, *(["submit_verdict"] if verdict else [])]
    return BoundMember(
        id=id,
        field="members[0]",
        role=f"be the {id}",
        profile=BoundProfile(
            name="p",
            backend="scripted",
            model="m",
            family=family,
            prices=prices,
            endpoint=Endpoint(dialect="openai", url="http://127.0.0.1:1/v1") if endpoint else None,
        ),
        capabilities=Capabilities(
            field="members[0]",
            grants=[Grant(tool="read_file", field="members[0].tools[0]", kinds=["read", "search"])],
            writes=[WriteGrant(target="t", field="members[0].allowed_writes[0]", globs=list(writes))] if writes else [],
            own_tools={name: f"members[0].tools[{index}]" for index, name in enumerate(own)},
        ),
        own_tools=own,
        contexts=[
            each if isinstance(each, BoundContext) else BoundContext(name=each, kind="builtin", value=each)
            for each in contexts
        ],
        writes=list(writes),
        budget=MemberBudget(model_calls=calls, tool_calls=tool_calls, tokens=tokens, seconds=seconds),
        depends_on=list(needs),
        callable_by=list(callable_by),
    )


def manifest(*members: BoundMember, **changes: Any) -> ResolvedManifest:
    """A manifest whose evaluator is called so."""
    placed = [
        msgspec.structs.replace(
            each,
            field=f"members[{index}]",
            capabilities=msgspec.structs.replace(each.capabilities, field=f"members[{index}]"),
        )
        for index, each in enumerate(members)
    ]
    values: dict[str, Any] = {
        "file": "team.yaml",
        "roster_file": "roster.yaml",
        "team_id": "retry-fix",
        "contract": "fix retry regression without changing the public API",
        "source_revision": "git:r1",
        "plan_epoch": 7,
        "budget": AggregateBudget(
            model_calls=18, tool_calls=40, input_output_tokens=120000, cost_usd=1.2, deadline_seconds=480
        ),
        "members": placed,
        "joins": [],
        "evaluation": Evaluation(
            owner="evaluator",
            accepts_when="contract_checks_and_required_receipts_pass",
            otherwise=["one_bounded_repair", "rejected", "needs_human"],
        ),
        "cancellation": Cancellation(
            parent_cancel="propagate_to_all_children",
            worker_timeout="cancel_tools_then_mark_timed_out",
            grace_seconds=5,
            late_result="reject_unless_run_id_revision_and_plan_epoch_match",
        ),
        "handoffs": [],
        "receipts": [BoundReceipt(name="focused_tests", command=["true"], timeout=60.0)],
        **changes,
    }
    return ResolvedManifest(**values)


def join(
    id: str, *requires: str, on_missing: str = "needs_human", on_conflict: str = "preserve_both_and_pause"
) -> Join:
    """A join."""
    values = {
        "id": id,
        "requires": list(requires),
        "rule": "all_required_results_with_matching_source_revision_and_plan_epoch",
        "on_missing": on_missing,
        "on_conflict": on_conflict,
    }
    return msgspec.convert(values, Join)


def handoff(sender: str, receiver: str, on_reject: str = "return") -> Handoff:
    """A hand-off."""
    return msgspec.convert({"from": sender, "to": receiver, "on_reject": on_reject}, Handoff)


def seed(**changes: Any) -> ResolvedManifest:
    """The manifest of the seed."""
    evaluator = member(
        "evaluator",
        needs=["writer"],
        tools=["read_diff", "read_test_receipt"],
        contexts=["task_contract", "candidate_revision", "raw_receipts"],
        calls=2,
        tool_calls=4,
        tokens=16000,
        verdict=True,
    )
    return manifest(
        member("planner", tools=PLANNER_TOOLS, contexts=["task_contract", "repository_map"], seconds=60),
        member(
            "implementation_reader",
            needs=["planner"],
            contexts=["task_contract", "source_revision", "assigned_paths"],
        ),
        member("test_reader", needs=["planner"], contexts=["task_contract", "source_revision", "test_map"]),
        member(
            "writer",
            needs=["reader_join"],
            writes=["src/retry.py", "tests/test_retry.py"],
            contexts=["task_contract", "joined_reader_evidence", "candidate_branch"],
            calls=4,
            tool_calls=10,
            tokens=30000,
            seconds=150,
        ),
        evaluator,
        **{"joins": [join("reader_join", "implementation_reader", "test_reader")], **changes},
    )


# ---- the machine


class FakeWorkshop:
    """A repository in which commits are numbers.

    Attributes:
        edits: What a writer has changed, by attempt.
        failing: The checks that do not pass, by name: on which revisions, or on all.
        opened: The revision of each worktree, by attempt.
        closed: The worktrees that were removed, in order.
        kept: The refs under which partial work was kept.
        branches: The commits of branches.
        open_errors: Raised by the next worktrees, one each.
        faults: Raised whenever the method of this name is called.
        may_check: Checks wait for this; set unless a test replaces it.
    """

    def __init__(self) -> None:
        self.is_sandboxed = True
        self.edits: dict[str, list[str]] = {}
        self.failing: dict[str, Callable[[str], bool]] = {}
        self.opened: dict[str, str] = {}
        self.closed: list[str] = []
        self.kept: list[str] = []
        self.branches: dict[str, str] = {}
        self.checked: list[tuple[str, str]] = []
        self.revisions = 1
        self.may_check = trio.Event()
        self.may_check.set()
        self.open_errors: list[Exception] = []
        self.faults: dict[str, Exception] = {}

    def _fail(self, method: str) -> None:
        if method in self.faults:
            raise self.faults[method]

    async def resolve(self, revision: str) -> str:
        if revision != "r1":
            raise ConfigError(f"no revision {revision}")
        return PINNED

    async def check_branches(self, branches: str) -> None:
        self._fail("check_branches")
        assert branches == "avenor/run_1"

    async def open(self, attempt_id: str, member: BoundMember, revision: str) -> Bench:
        await trio.lowlevel.checkpoint()
        if self.open_errors:
            raise self.open_errors.pop(0)
        self.opened[attempt_id] = revision
        return Bench(directory=f"/bench/{attempt_id}", prefix=["cage", member.id], environ={"CAGED": "1"})

    async def changes(self, attempt_id: str, writes: Sequence[str]) -> Change:
        self._fail("changes")
        await trio.lowlevel.checkpoint()
        files = self.edits.get(attempt_id, [])
        return Change(files=files, outside=[each for each in files if each not in writes], digest="sha256:d")

    async def commit(self, attempt_id: str, branch: str, message: str) -> str:
        self._fail("commit")
        assert branch.startswith("avenor/")
        assert message
        self.revisions += 1
        self.branches[branch] = f"r{self.revisions}"
        return self.branches[branch]

    async def keep(self, attempt_id: str, branch: str) -> str:
        self.kept.append(branch)
        return branch

    async def leave(self, attempt_id: str) -> str:
        self._fail("leave")
        return f"/left/{attempt_id}"

    async def close(self, attempt_id: str) -> None:
        self._fail("close")
        await trio.lowlevel.checkpoint()
        self.closed.append(attempt_id)

    async def forget_all(self) -> None:
        await trio.lowlevel.checkpoint()

    async def move(self, branch: str, old: str, new: str) -> None:
        self._fail("move")
        if self.branches.get(branch, "") == old:
            self.branches[branch] = new

    async def check(self, receipt: BoundReceipt, revision: str, number: int) -> ReceiptRun:
        self._fail("check")
        assert number > 0
        await self.may_check.wait()
        self.checked.append((receipt.name, revision))
        fails = receipt.name in self.failing and self.failing[receipt.name](revision)
        return ReceiptRun(exit_code=1 if fails else 0, output="ran", digest="sha256:r")

    async def files_at(self, revision: str) -> str:
        return f"src/retry.py\ntests/test_retry.py\n# at {revision}"

    async def diff(self, base: str, revision: str, path: str = "") -> str:
        return f"diff {base}..{revision} {path}".rstrip()

    async def source(self, context: BoundContext, directory: str) -> str:
        return f"{context.name} from {context.kind} in {directory}"


class FakeDesk:
    """A desk without a listener: tokens and their revocations."""

    def __init__(self) -> None:
        self.admitted: list[str] = []
        self.revoked: list[str] = []

    def admit(self, attempt_id: str, endpoint: Endpoint | None) -> Credentials:
        self.admitted.append(attempt_id)
        server = McpServer(name="avenor", type="http", url="http://127.0.0.1:1/mcp")
        url = "" if endpoint is None else "http://127.0.0.1:1/model"
        return Credentials(gateway_url=url, gateway_token=f"token-{attempt_id}", mcp_server=server)

    def revoke(self, attempt_id: str) -> None:
        self.revoked.append(attempt_id)


class LenientPolicy:
    """Lets everything pass and counts tool calls; `deny` names titles that it refuses."""

    def __init__(self, metering: Metering, live: LiveAttempt, journal: Journal, deny: set[str]) -> None:
        self._metering = metering
        self._live = live
        self._journal = journal
        self._deny = deny

    def answer(self, ask: PermissionAsk) -> PermissionAnswer | None:
        from avenor.protocol.manifest.events import AuthorityEvent

        is_denied = ask.tool in self._deny
        self._journal.tell(
            [
                AuthorityEvent(
                    attempt_id=self._live.attempt_id,
                    tool=ask.tool,
                    tool_kind="execute",
                    decision="deny" if is_denied else "allow",
                    permitted_by=f"{self._live.member.field}.tools",
                )
            ]
        )
        return PermissionAnswer(option_id="reject" if is_denied else "allow")

    def note(self, event: Event) -> None:
        if isinstance(event, ToolCall) and event.title in self._deny:
            self._live.violated(event.title)
        if isinstance(event, ToolCall) and (why := self._metering.used_tool(self._live.attempt_id)) is not None:
            self._live.over_budget(why)


# ---- members


class Actor:
    """One attempt's agent, as its play sees it."""

    def __init__(self, rig: "ManifestRig", session: FakeSession, text: str) -> None:
        self.rig = rig
        self.session = session
        self.text = text
        self.attempt_id = Path(session.params.cwd).name

    @property
    def revision(self) -> str:
        """The commit that it looks at."""
        return self.rig.workshop.opened[self.attempt_id]

    async def tool(self, called: str, /, **arguments: Any) -> ToolReply:
        """Calls one of avenor's tools."""
        assert self.rig.tools is not None
        return await self.rig.tools.call(self.attempt_id, called, json.dumps(arguments).encode())

    async def submit(self, subject: str = "", claim: str = "it is so", **members: Any) -> ToolReply:
        """Hands over a result with one finding."""
        finding = {"subject": subject or self.attempt_id, "claim": claim, "finding": f"{claim}, at length"}
        values = {"source_revision": self.revision, "plan_epoch": 7, "findings": [finding], **members}
        return await self.tool("submit_result", **values)

    async def judge(self, verdict: str, **members: Any) -> ToolReply:
        """Hands over a verdict on the candidate."""
        values = {"verdict": verdict, "revision": self.revision, **members}
        return await self.tool("submit_verdict", **values)

    def write(self, *files: str) -> None:
        """Changes files in its worktree."""
        self.rig.workshop.edits[self.attempt_id] = list(files)

    def use(self, title: str, result: str = "", kind: str = "read", call_id: str = "") -> None:
        """Reports a tool call that has ended."""
        identity = call_id or f"t{self.rig.next_number()}"
        self.session.sink.emit(ToolCall(toolCallId=identity, title=title, kind=kind, rawInput=msgspec.Raw(b'{"a":1}')))
        self.session.sink.emit(
            ToolCallUpdate(toolCallId=identity, status="completed", rawOutput=msgspec.Raw(msgspec.json.encode(result)))
        )


Act = Callable[[Actor], Awaitable[TurnStop | None]]


async def reads(actor: Actor) -> None:
    """Finds something."""
    await actor.submit()


async def writes(actor: Actor) -> None:
    """Changes the module, and says so."""
    actor.write("src/retry.py")
    await actor.submit()


async def accepts(actor: Actor) -> None:
    """Accepts the candidate."""
    await actor.judge("accept")


async def hangs(actor: Actor) -> TurnStop:
    """Works on until it is cancelled."""
    await actor.session.cancelled.wait()
    return TurnStop(stop_reason="cancelled")


DEFAULTS: dict[str, Act] = {
    "planner": reads,
    "implementation_reader": reads,
    "test_reader": reads,
    "writer": writes,
    "evaluator": accepts,
}


class ManifestRig:
    """One manifest run and what can be seen of it. Make it inside a test that runs in trio."""

    def __init__(self, directory: Path, declared: ResolvedManifest | None = None, **spec: Any) -> None:
        self.directory = directory
        self.log_path = directory / "events.ndjson"
        self.workshop = FakeWorkshop()
        self.desk = FakeDesk()
        self.backend = FakeBackend(self._play)
        self.acts: dict[str, list[Act]] = {name: [act] for name, act in DEFAULTS.items()}
        self.deny: set[str] = set()
        self.tools: ToolBox | None = None
        self.meter: Meter | None = None
        self.outcome: Outcome | None = None
        self._number = 0
        self._spec = spec
        self._declared = declared or seed()
        self.host = self._make_host()

    def again(self) -> None:
        """Another process goes on with the run, whose process was lost."""
        self.tools = None
        self.host = self._make_host(is_new=False)

    async def run(self) -> Outcome:
        """Runs to the end."""
        self.outcome = await live(
            self.host,
            lambda record, host: work_off(
                record, host, self.workshop, open_desk=self._open_desk, make_policy=self._make_policy
            ),
        )
        return self.outcome

    async def until(self, holds: Callable[[], bool]) -> None:
        """Returns when something holds, looking whenever nothing else can go on."""
        while not holds():
            await trio.testing.wait_all_tasks_blocked()
            await trio.sleep(0.1)

    def play(self, **acts: Act | Sequence[Act]) -> None:
        """What members do, by task; of several acts, one for each turn, the last again and again."""
        for name, act in acts.items():
            self.acts[name] = [act] if callable(act) else list(act)

    def next_number(self) -> int:
        """A number that nobody else has."""
        self._number += 1
        return self._number

    # ---- what can be seen

    @property
    def events(self) -> list[AnyEvent]:
        """The log, read back from its file."""
        from avenor.protocol.events import decode_event

        return [decode_event(line) for line in self.log_path.read_bytes().splitlines()]

    @property
    def state(self) -> ManifestState:
        """What the log comes to."""
        state = ManifestState()
        for event in self.events:
            state.apply(event)
        return state

    @property
    def end(self) -> ManifestEnd:
        """The terminal state."""
        end = self.state.end
        assert end is not None
        return end

    def only(self, kind: type[Any], **members: Any) -> list[Any]:
        """The events of one kind with these members."""
        return [
            event
            for event in self.events
            if type(event) is kind and all(getattr(event, name) == value for name, value in members.items())
        ]

    def history(self, task_id: str) -> list[str]:
        """The states that a task has gone through."""
        return [event.state for event in self.only(TaskEvent, task_id=task_id)]

    def started(self) -> list[str]:
        """The attempts in the order of their starts."""
        return [event.attempt_id for event in self.only(TaskEvent, state="started")]

    def prompts(self, member_id: str) -> Iterator[str]:
        """What a member was told first, in each attempt."""
        for session in self.backend.sessions:
            if Path(session.params.cwd).name.rpartition(".")[0] == member_id:
                yield session.prompts[0]

    def debits(self, account: str) -> list[BudgetEvent]:
        """What was charged to an account directly."""
        return self.only(BudgetEvent, op="debit", account=account)

    # ---- its own

    async def _play(self, session: FakeSession, text: str) -> TurnStop:
        actor = Actor(self, session, text)
        member_id = actor.attempt_id.rpartition(".")[0]
        acts = self.acts.setdefault(member_id, [reads])
        act = acts.pop(0) if len(acts) > 1 else acts[0]
        return await act(actor) or TurnStop(stop_reason="end_turn")

    @asynccontextmanager
    async def _open_desk(self, meter: Meter, tools: ToolBox) -> AsyncGenerator[FakeDesk, None]:
        self.meter, self.tools = meter, tools
        yield self.desk

    def _make_policy(self, journal: Journal, metering: Metering, live: LiveAttempt, _bench: Bench) -> LenientPolicy:
        return LenientPolicy(metering, live, journal, self.deny)

    def _make_host(self, *, is_new: bool = True) -> RunHost:
        from avenor.host.logfile import iter_lines
        from avenor.protocol.snapshot import Fold, Snapshot

        self.fold = Fold(Snapshot(runtime_id="rt_1", run_id="run_1"))
        self.record = make_record(self.directory, config=self._declared, **self._spec)
        past = None if is_new else read_past(iter_lines(self.log_path), self.fold)
        log = EventLog(
            journal=LineFile(str(self.log_path), truncate=is_new),
            copy=None,
            stamp=Stamp(run_id="run_1", runtime_id="rt_1"),
            publisher=Folding(self.fold),
            clock=trio.current_time,
            seq=0 if is_new else self.events[-1].seq,
        )
        return RunHost(
            self.record,
            log=log,
            fold=self.fold,
            past=past,
            surroundings=Surroundings(
                find_backend=self.backend.found,
                open_params=_params,
                scratch=str(self.directory),
                sweep=_sweep,
                sentinel=Sentinel(self.directory / "done.env", is_private=True),
                kill_all=lambda: None,
            ),
        )


def _params(spec: RunSpec, owns_process: bool) -> OpenParams:
    env = {"AVENOR_SOCKET": "s", "AVENOR_RUNTIME_ID": "rt_1", "KEPT": "1", "no_proxy": "internal"}
    return OpenParams(
        cwd=spec.dir, env=env, tag=("T", "1"), mcp_servers=spec.mcp_servers, model=spec.model, owns_process=owns_process
    )


async def _sweep(_graces: Graces) -> StopResult:
    return StopResult()
