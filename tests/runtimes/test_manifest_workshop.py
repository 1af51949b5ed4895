"""The workshop of a run: real worktrees, in the real sandbox, for members, checks and contexts."""

import os
import subprocess
from collections.abc import Sequence
from pathlib import Path

import msgspec
import pytest
import trio

from avenor.protocol.errors import ConfigError
from avenor.protocol.manifest.authority import Capabilities
from avenor.protocol.manifest.binding import BoundContext, BoundMember, BoundProfile, BoundReceipt
from avenor.protocol.manifest.model import MemberBudget
from avenor.protocol.spec import Record, RunSpec
from avenor.runtimes.manifest import sandbox, workshop
from avenor.runtimes.manifest.sandbox import SandboxFault
from avenor.runtimes.manifest.workshop import GitWorkshop, WorktreeFailed, open_workshop
from tests.helpers import eventually
from tests.runtimes.sandbox_kit import needs_sandbox
from tests.runtimes.worktree_kit import Repo

SECONDS = 60.0


@pytest.fixture
def repo(tmp_path: Path) -> Repo:
    """A repository."""
    return Repo(tmp_path)


def make_record(repo: Repo, **spec: object) -> Record:
    """A record of a manifest run; its supervisor's socket is beside the run's directory."""
    return Record(
        runtime_id="rt_1",
        run_id="run_1",
        spec=msgspec.convert({"dir": str(repo.top), "backend": "scripted", **spec}, RunSpec),
        prompt="",
        supervisor_socket=str(repo.folder / "state/stable.sock"),
        version="1",
    )


def make_member(*writes: str, backend: str = "scripted", **env: str) -> BoundMember:
    """A member that may write this."""
    return BoundMember(
        id="w",
        field="members[0]",
        role="r",
        profile=BoundProfile(name="p", backend=backend, env=env),
        capabilities=Capabilities(field="members[0]"),
        own_tools=[],
        contexts=[],
        writes=list(writes),
        budget=MemberBudget(model_calls=1, tool_calls=1, tokens=1, seconds=1),
        depends_on=[],
    )


async def make(repo: Repo, **spec: object) -> GitWorkshop:
    """The workshop of a run in a supervisor's state directory, with another run beside it."""
    scratch = repo.folder / "state" / "rt_1"
    scratch.mkdir(parents=True, exist_ok=True)
    repo.put("state/rt_2/record.json", "secret\n", repo.folder)
    repo.put("state/stable.sock", "", repo.folder)
    # With a program folder there, all that lies beside it would be seen, were it not masked.
    path = f"{repo.put('bin/tool', '', repo.folder).parent}:{repo.env['PATH']}"
    environ = {**repo.env, "PATH": path, "AVENOR_SOCKET": "x", "AVENOR_RUNTIME_ID": "rt_1"}
    return await open_workshop(make_record(repo, **spec), str(scratch), environ)


def shell(prefix: Sequence[str], directory: str, line: str, env: dict[str, str]) -> str:
    """What a shell line says where an agent would run."""
    done = subprocess.run(
        [*prefix, "sh", "-c", line],
        cwd=directory,
        env=env,
        capture_output=True,
        text=True,
        timeout=SECONDS,
        check=False,
    )
    return done.stdout


@needs_sandbox()
async def test_a_members_bench_lets_it_write_what_it_may_and_hides_the_runs(repo: Repo) -> None:
    """Only its paths, and nothing of the supervisor, of other runs or of other attempts; git works inside."""
    shop = await make(repo)
    other = await shop.open("o.1", make_member(), repo.first)
    bench = await shop.open("w.1", make_member("src/retry.py", "docs/*.md"), repo.first)
    state = repo.folder / "state"
    line = (
        "for path in src/retry.py src/other.py docs/a.md README .git; do echo x > $path && echo $path; done;"
        f"ls {state} {state}/rt_1 {other.directory} {state}/rt_2; cat {state}/rt_2/record.json;"
        "git log --format=%s; git status --porcelain"
    )
    said = shell(bench.prefix, bench.directory, line, repo.env).split()
    assert said[:2] == ["src/retry.py", "docs/a.md"]
    assert "README" not in said[:4]
    assert "secret" not in said
    assert "first" in said
    change = await shop.changes("w.1", ["src/retry.py", "docs/*.md"])
    assert (change.files, change.outside) == (["docs/a.md", "src/retry.py"], [])
    assert (await shop.changes("w.1", ["docs/*.md"])).outside == ["src/retry.py: it is in none of the write targets"]
    commit = await shop.commit("w.1", "avenor/run_1/candidate", "m")
    assert (await shop.files_at(commit)).split()[2] == "docs/a.md"
    assert "+x" in await shop.diff(repo.first, commit)
    assert not (await shop.changes("o.1", [])).files
    await shop.forget_all()
    assert not await trio.Path(bench.directory).exists()
    assert (await shop.changes("w.1", [])).files == []
    assert await shop.keep("w.1", "avenor/run_1/lost/w.1") == ""


@needs_sandbox()
async def test_a_bench_has_what_makes_its_agent_ask(repo: Repo) -> None:
    """Unless the roster's profile sets it up itself; a copy of the agent's state is in the home's place meanwhile."""
    repo.put(".local/share/opencode/auth.json", "login\n", repo.home)
    shop = await make(repo)
    bench = await shop.open("w.1", make_member(backend="opencode-acp"), repo.first)
    assert list(bench.environ) == ["OPENCODE_PERMISSION"]
    line = "cat ~/.local/share/opencode/auth.json; echo x > ~/.local/share/opencode/new && ls ~/.local/share/opencode"
    assert shell(bench.prefix, bench.directory, line, repo.env).split() == ["login", "auth.json", "new"]
    assert not (repo.home / ".local/share/opencode/new").exists()
    own = await shop.open("w.2", make_member(backend="opencode-acp", OPENCODE_PERMISSION="{}"), repo.first)
    assert own.environ == {}
    copies = repo.folder / "state" / "rt_1" / "private"
    await shop.close("w.1")
    assert [each.name for each in copies.iterdir()] == ["w.2"]
    await shop.forget_all()
    assert not copies.exists()


@needs_sandbox()
async def test_what_could_not_be_committed_stays_beside_the_worktrees(repo: Repo) -> None:
    """In the run's directory, whatever is tidied up afterwards."""
    shop = await make(repo)
    await shop.check_branches("avenor/run_1")
    bench = await shop.open("w.1", make_member("src/retry.py"), repo.first)
    repo.put("src/retry.py", "x", Path(bench.directory))
    place = Path(await shop.leave("w.1"))
    await shop.close("w.1")
    await shop.forget_all()
    assert place == repo.folder / "state/rt_1/left/w.1"
    assert (place / "src/retry.py").read_text(encoding="utf-8") == "x"
    assert await shop.leave("w.1") == ""


@needs_sandbox()
async def test_a_check_runs_on_exactly_the_revision_and_leaves_nothing(repo: Repo) -> None:
    """In a fresh worktree, which it may write; what it says is kept, its end is told, and its place is gone."""
    shop = await make(repo)
    line = (
        "cat src/retry.py; echo x > src/retry.py; touch new; (setsid sleep 300 &); echo $AVENOR_SOCKET end >&2; exit 3"
    )
    receipt = BoundReceipt(name="r", command=["sh", "-c", line], timeout=SECONDS)
    ran = await shop.check(receipt, repo.first, 1)
    assert (ran.exit_code, ran.output) == (3, "one\ntwo\nend\n")
    assert ran.digest.startswith("sha256:")
    passed = await shop.check(
        BoundReceipt(name="r", command=["grep", "-q", "one", "src/retry.py"], timeout=9), repo.first, 2
    )
    assert passed.exit_code == 0
    assert not list((repo.folder / "state/rt_1/worktrees").glob("receipt*"))


@pytest.mark.parametrize("unsandboxed", [pytest.param(False, marks=needs_sandbox()), True])
async def test_a_check_that_takes_too_long_is_ended_with_all_that_it_started(repo: Repo, unsandboxed: bool) -> None:
    """It has no exit status then."""
    shop = await make(repo, unsandboxed=unsandboxed)
    seconds = f"30{os.getpid()}"
    line = f"sleep {seconds} & echo begun; sleep {seconds}"
    # Enough for a shell to begin on a busy machine.
    ran = await shop.check(BoundReceipt(name="r", command=["sh", "-c", line], timeout=3.0), repo.first, 1)
    assert ran.exit_code is None
    assert ran.output == "it took longer than 3 s\nbegun\n"
    await eventually(lambda: subprocess.run(["pgrep", "-f", f"sleep {seconds}"], check=False).returncode == 1)


async def test_a_check_that_cannot_start_says_so(repo: Repo) -> None:
    """Its worktree is removed all the same."""
    shop = await make(repo, unsandboxed=True)
    with pytest.raises(WorktreeFailed, match="cannot start no-such-program"):
        await shop.check(BoundReceipt(name="r", command=["no-such-program"], timeout=9), repo.first, 1)
    assert not list((repo.folder / "state/rt_1/worktrees").glob("receipt*"))


@needs_sandbox()
async def test_contexts_are_read_where_the_member_works(repo: Repo) -> None:
    """A command runs in its worktree and can change nothing; a file is the user's, a text is itself."""
    shop = await make(repo)
    bench = await shop.open("w.1", make_member("**"), repo.first)

    async def source(kind: str, **more: object) -> str:
        return await shop.source(msgspec.convert({"name": "c", "kind": kind, **more}, BoundContext), bench.directory)

    assert await source("text", value="so") == "so"
    assert await source("file", value=str(repo.top / "README")) == "read\n"
    assert await source("command", command=["git", "ls-files", "src"]) == "src/big.bin\nsrc/retry.py\n"
    with pytest.raises(ConfigError, match="context c: touch new has ended with status 1"):
        await source("command", command=["touch", "new"])
    with pytest.raises(WorktreeFailed, match="cannot read the context c"):
        await source("file", value=str(repo.top / "none"))


async def test_without_a_sandbox_everything_works_and_says_so(repo: Repo) -> None:
    """Only when it was asked for."""
    shop = await make(repo, unsandboxed=True)
    assert not shop.is_sandboxed
    bench = await shop.open("w.1", make_member("src/**"), repo.first)
    assert list(bench.prefix) == []
    repo.put("README", "x\n", Path(bench.directory))
    assert (await shop.changes("w.1", ["src/**"])).outside == ["README: it is in none of the write targets"]
    assert await shop.keep("w.1", "avenor/run_1/lost/w.1") == "refs/heads/avenor/run_1/lost/w.1"


async def test_a_manifest_is_refused_where_there_is_no_sandbox(repo: Repo, monkeypatch: pytest.MonkeyPatch) -> None:
    """With what is wrong, what helps, and how to do without."""
    fault = SandboxFault(reason="it is not there", remedy="get it")
    monkeypatch.setattr(workshop, "probe_sandbox", lambda: fault)
    with pytest.raises(
        ConfigError, match=r"authority: sandbox unavailable: it is not there; get it, or .*--unsandboxed"
    ):
        await make(repo)
    assert not (await make(repo, unsandboxed=True)).is_sandboxed
    assert sandbox.PROGRAM == "bwrap"


async def test_what_git_cannot_do_is_told_as_a_failure_of_the_run(repo: Repo) -> None:
    """Not as ours."""
    shop = await make(repo, unsandboxed=True)
    assert await shop.resolve("HEAD") == repo.first
    for failing in (
        lambda: shop.open("w.1", make_member(), "0" * 40),
        lambda: shop.files_at("0" * 40),
        lambda: shop.diff(repo.first, "0" * 40),
        lambda: shop.move("avenor/rt_1/candidate", "", "1" * 40),
    ):
        with trio.fail_after(SECONDS), pytest.raises(WorktreeFailed, match="cannot "):
            await failing()


async def test_a_run_in_a_folder_of_the_repository_works_there(repo: Repo) -> None:
    """The bench is the same folder of the worktree, contexts and checks too."""
    record = make_record(repo, unsandboxed=True)
    record = msgspec.structs.replace(record, spec=msgspec.structs.replace(record.spec, dir=str(repo.top / "src")))
    shop = await open_workshop(record, str(repo.folder / "run"), repo.env)
    bench = await shop.open("w.1", make_member("src/**"), repo.first)
    assert bench.directory == f"{bench.top}/src"
    listing = BoundContext(name="c", kind="command", command=["ls"])
    assert await shop.source(listing, bench.directory) == "big.bin\nretry.py\n"
    assert (
        await shop.check(BoundReceipt(name="r", command=["cat", "retry.py"], timeout=9), repo.first, 1)
    ).exit_code == 0
