"""The manifest of the seed, exactly as it is printed there, with members that are real agents: from load to `accepted`.

Their models are the stand-in, behind the run's own gateway. What an agent may not do is tried by its model.
"""

import os
import signal
from collections import Counter
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

import pytest
from msgspec import UNSET

from avenor.host import tree
from avenor.host.identity import ProcessStat
from avenor.protocol.events import PhaseEnd, SessionStart
from avenor.protocol.manifest.events import (
    AuthorityEvent,
    BudgetEvent,
    CandidateEvent,
    ManifestEnd,
    ManifestStart,
    ReceiptEvent,
    TaskEvent,
)
from avenor.runtimes.manifest.gateway_log import GatewayLine, read_gateway_log
from tests.agents.acp_dialects import DialectModel
from tests.agents.harness import WAIT_SECONDS, Home, Run, ended
from tests.agents.manifest_team import (
    BUG,
    CLAUDE_MEMBER,
    CODEX_MEMBER,
    CODEX_PATCHING,
    KEY,
    MANIFEST,
    MEMBERS,
    OPENCODE_MEMBER,
    SCRIPT_NAME,
    SCRIPTED,
    Team,
    equip,
    git,
    plays,
    prefixed,
    repository,
    roster,
    script,
    submit,
)
from tests.agents.standin_model import StandInModel
from tests.e2e.manifest_kit import BROKEN, FIXED
from tests.helpers import command_of, eventually_sync

pytestmark = pytest.mark.agents

WHOLE = [
    Team("opencode-writes", (CODEX_MEMBER, OPENCODE_MEMBER, OPENCODE_MEMBER, CODEX_MEMBER)),
    Team("codex-writes", (OPENCODE_MEMBER, CODEX_MEMBER, CODEX_PATCHING, OPENCODE_MEMBER)),
    # Its adapter asks the model for a title of each session: of two calls the evaluator would have one left.
    Team("claude-writes", (SCRIPTED, CLAUDE_MEMBER, CLAUDE_MEMBER, SCRIPTED)),
]
READING = [
    Team("opencode-reads", (SCRIPTED, OPENCODE_MEMBER, SCRIPTED, SCRIPTED)),
    Team("codex-reads", (SCRIPTED, CODEX_PATCHING, SCRIPTED, SCRIPTED)),
    Team("claude-reads", (SCRIPTED, CLAUDE_MEMBER, SCRIPTED, SCRIPTED)),
]
# Whose request it is, where an agent asks for something of its own, as a title.
NOBODY = "nobody"
WRITING = Team("opencode-is-killed", (SCRIPTED, SCRIPTED, OPENCODE_MEMBER, SCRIPTED))


class Place:
    """A user with these agents, the repository, and one run of the manifest.

    Args:
        folder: An empty one.
        team: Who plays.
        model: What their models are.
    """

    def __init__(self, folder: Path, team: Team, model: StandInModel, translated: DialectModel) -> None:
        self.team = team
        self.model = model
        self.home = Home(folder, model.url)
        equip(self.home, team.columns)
        self.repository = folder / "repository"
        repository(self.repository)
        declared = folder / "roster.json"
        declared.write_text(roster(team, chat_url=model.url, translated_url=translated.url))
        (folder / SCRIPT_NAME).write_text(script())
        self._asked = len(model.seen.requests)
        self._words = ["--manifest", str(MANIFEST), "--roster", str(declared), "--dir", str(self.repository)]
        self._folder = folder / "run"
        self._folder.mkdir()
        self._gateway_log = b""

    @contextmanager
    def running(self) -> Generator[Run, None, None]:
        """The run, begun; it has ended afterwards."""
        self._run = Run(self.home, self._folder, *self._words, sentinel=str(self._folder / "run.done"))
        with ended(self._run):
            self._run.wait(ManifestStart)
            # The run's directory goes with the run; what is open stays.
            runs = self.home.path / ".local" / "state" / "avenor" / "runs"
            (found,) = eventually_sync(lambda: list(runs.glob("*/gateway.ndjson")), WAIT_SECONDS)
            with found.open("rb") as file:
                yield self._run
                self._gateway_log = file.read()

    def gateway_log(self) -> list[GatewayLine]:
        """The gateway's own account, when all is over."""
        return read_gateway_log(self._gateway_log)

    def told_to_model(self) -> Counter[str]:
        """By member and unit, what the model itself has seen."""
        found: Counter[str] = Counter()
        for request in self.model.seen.requests[self._asked :]:
            told = f"{request.earlier}{request.prompt}"
            member = next((name for name in MEMBERS if f"You are `{name}`" in told), NOBODY)
            found[f"{member} calls"] += 1
            found[f"{member} tokens"] += sum(request.usage or ())
            assert request.key == KEY
        return found

    def charged(self) -> Counter[str]:
        """By member and unit, what the ledger was charged by the gateway."""
        found: Counter[str] = Counter()
        for event in self._run.events(BudgetEvent):
            if event.op == "debit" and event.source == "gateway" and event.amounts is not UNSET:
                found[f"{event.account} calls"] += event.amounts.model_calls
                found[f"{event.account} tokens"] += event.amounts.tokens
        return found

    def passed_the_gateway(self) -> Counter[str]:
        """By member and unit, what the gateway has noted."""
        found: Counter[str] = Counter()
        for line in self.gateway_log():
            if line.end == "refused":
                continue
            member = line.attempt_id.rpartition(".")[0]
            found[f"{member} calls"] += 1
            if line.used is not None:
                found[f"{member} tokens"] += line.used.input_tokens + line.used.output_tokens
        return found

    def processes(self) -> list[ProcessStat]:
        """All that runs for this user."""
        return tree.tagged("HOME", str(self.home.path))


@pytest.fixture
def place(
    request: pytest.FixtureRequest, team: Team, model: StandInModel, tmp_path: Path
) -> Generator[Place, None, None]:
    """The place of one run; nothing may run there at the end."""
    with DialectModel(model.url) as translated:
        made = Place(tmp_path, team, model, translated)
        yield made
    assert made.processes() == []


def history(run: Run, task_id: str) -> list[str]:
    """The states that a task has gone through."""
    return [event.state for event in run.events(TaskEvent) if event.task_id == task_id]


def assert_accepted(place: Place, run: Run) -> None:
    """It has ended well: the candidate is on its branch, and nowhere else."""
    (end,) = run.events(ManifestEnd)
    assert (end.state, end.reason) == ("accepted", UNSET)
    branch = f"avenor/{run.id}/candidate"
    assert end.revision == git(place.repository, "rev-parse", branch)
    assert git(place.repository, "show", f"{branch}:src/retry.py") + "\n" == FIXED
    assert git(place.repository, "diff", "--name-only", "r1", branch) == "src/retry.py"
    assert_untouched(place)
    outcome = run.sentinel()
    assert (outcome.status, outcome.exit_code, outcome.stop_reason) == ("DONE", 0, "accepted")


def assert_untouched(place: Place) -> None:
    """The user's checkout is as it was."""
    assert git(place.repository, "rev-parse", "main") == git(place.repository, "rev-parse", "r1")
    assert git(place.repository, "status", "--porcelain") == ""
    assert (place.repository / "src" / "retry.py").read_text() == BROKEN
    assert len(git(place.repository, "worktree", "list").splitlines()) == 1


def assert_accounts_agree(place: Place) -> None:
    """Ledger, gateway and model tell the same, member by member as far as the model knows whom it has answered."""
    seen, charged, passed = place.told_to_model(), place.charged(), place.passed_the_gateway()
    assert charged == passed
    assert sum(seen.values()) == sum(charged.values()) > 0
    assert f"{NOBODY} calls" in seen or seen == charged


@pytest.mark.parametrize("team", WHOLE, ids=lambda team: team.name)
def test_the_manifest_of_the_seed_is_accepted_on_real_agents(place: Place, team: Team) -> None:
    """Each member does its part with the agent's own tools and avenor's; three accounts of the model calls agree."""
    with place.model.told(plays(team)), place.running() as run:
        status, out = run.finish()
        assert (status, run.errors().count("manifest ended accepted")) == (0, 1), run.errors()
    assert_accepted(place, run)
    assert out.startswith("accepted: ")
    assert [history(run, name)[-1] for name in MEMBERS] == ["done"] * 5
    assert [event.exit_code for event in run.events(PhaseEnd)] == [0] * 5
    assert {event.passed for event in run.events(ReceiptEvent)} == {True}
    assert [event.files for event in run.events(CandidateEvent)] == [["src/retry.py"]]
    # Readers side by side, and nobody's session is another's.
    assert len({event.session_id for event in run.events(SessionStart)}) == 5
    assert {event.decision for event in run.events(AuthorityEvent)} == {"allow"}
    assert_accounts_agree(place)


@pytest.mark.parametrize("team", READING, ids=lambda team: team.name)
def test_a_real_reader_can_neither_run_commands_nor_edit(place: Place, team: Team) -> None:
    """Both are asked for, and refused with the field that decides; what it was told to do it still does."""
    tries = ["[[shell: touch /tmp/ran; touch ran]]", submit("loop", "not run")]
    # Claude Code edits, and asks for it, only what it has read.
    first = "[[read+: src/retry.py]]" if team.members[1] is CLAUDE_MEMBER else ""
    edits = [f"{first}[[edit: src/retry.py | {BUG} | {BUG}  # here]]", submit("case", "not mended")]
    said = plays(team, implementation_reader=tries, test_reader=edits)
    late = prefixed(team.members[1], submit("case", "not done").replace("{commit}", "git:r1") + "[[text: over]]")
    with place.model.told({**said, "Your turn has ended": late}), place.running() as run:
        run.finish()
    denied = [event for event in run.events(AuthorityEvent) if event.decision == "deny"]
    assert {event.attempt_id for event in denied} == {"implementation_reader.1", "test_reader.1"}, run.errors()
    for event in denied:
        assert event.permitted_by.startswith("members["), event
    assert_accepted(place, run)
    assert_accounts_agree(place)


@pytest.mark.parametrize("team", [WRITING], ids=lambda team: team.name)
def test_a_real_writer_that_is_killed_is_reconciled_and_the_work_is_done_again(place: Place, team: Team) -> None:
    """What it had written is kept aside; the next attempt begins at the pinned revision, and that is accepted."""
    usual = plays(team)
    edit = usual["You are `writer`"].partition("[[shell")[0]
    with place.model.told({**usual, "You are `writer`": f"{edit}[[slow: 300 x 0.2]]"}), place.running() as run:
        eventually_sync(lambda: place.told_to_model()["writer calls"] == 3, WAIT_SECONDS)
        with place.model.told(usual):
            os.kill(writing_agent(place, run), signal.SIGKILL)
            status, _ = run.finish()
    assert status == 0, run.errors()
    assert history(run, "writer") == [
        "created",
        "started",
        "effect_unknown",
        "reconciled",
        "created",
        "started",
        "submitted",
        "done",
    ]
    (kept,) = git(place.repository, "branch", "--list", f"avenor/{run.id}/lost/*", "--format=%(refname:short)").split()
    assert git(place.repository, "show", f"{kept}:src/retry.py") + "\n" == FIXED
    assert_accepted(place, run)
    assert place.told_to_model()["writer calls"] == 3 + 4
    assert_accounts_agree(place)


def writing_agent(place: Place, run: Run) -> int:
    """The process of the only real agent."""
    words = {each.id.pid: command_of(each.id.pid).split(" ") for each in run.processes()}
    (pid,) = (pid for pid, line in words.items() if os.path.basename(line[0]) == "opencode")
    return pid
