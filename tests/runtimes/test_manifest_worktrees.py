"""The worktrees of a run: made, compared and committed beside a user's repository that notices nothing of it."""

import os
import shutil
import socket
from collections.abc import Callable
from pathlib import Path

import pytest
import trio

from avenor.protocol.errors import ConfigError, LocalProtocolError
from avenor.runtimes.git import GitFailed
from avenor.runtimes.manifest import walking
from avenor.runtimes.manifest.candidate import check
from avenor.runtimes.manifest.worktrees import Worktrees
from avenor.runtimes.manifest.writable import frozen_paths, writable_paths
from tests.runtimes.worktree_kit import Repo, reasons, told


@pytest.fixture
def repo(tmp_path: Path) -> Repo:
    """A repository."""
    return Repo(tmp_path)


async def made(repo: Repo, attempt: str = "w.1") -> tuple[Worktrees, Path]:
    """A worktree at the first commit."""
    trees = await repo.worktrees()
    return trees, Path(await trees.add(attempt, repo.first))


async def test_a_fresh_worktree_is_the_revision_and_has_no_changes(repo: Repo) -> None:
    """Files, modes and links are those of the pinned commit, HEAD is detached there, and git works inside."""
    repo.put("README", "later\n")
    repo.commit("second")
    trees, top = await made(repo)
    assert (top / "README").read_text(encoding="utf-8") == "read\n"
    assert os.access(top / "run.sh", os.X_OK)
    assert os.readlink(top / "link") == "README"
    assert repo.git("rev-parse", "HEAD", cwd=top) == repo.first
    assert repo.git("status", "--porcelain", cwd=top) == ""
    assert repo.git("branch", "--show-current", cwd=top) == ""
    assert (await trees.diff("w.1")).is_clean


async def test_every_way_to_change_something_is_seen(repo: Repo) -> None:
    """Committed, staged, unstaged, untracked; deleted, renamed, another mode, another type; binary; odd names."""
    trees, top = await made(repo)
    repo.put("src/committed.py", "x\n", top)
    repo.git("add", "-A", cwd=top)
    repo.git("commit", "-qm", "mine", cwd=top)
    repo.put("src/staged.py", "x\n", top)
    repo.git("add", "src/staged.py", cwd=top)
    repo.put("src/untracked.py", "x\n", top)
    repo.put("src/retry.py", "one\nthree\n", top)
    repo.put("src/big.bin", "\0other\n", top)
    (top / "run.sh").chmod(0o644)
    (top / "link").unlink()
    repo.put("link", "a file now\n", top)
    (top / "README").rename(top / "MOVED")
    (top / os.fsdecode(b'src/\xff\n"name')).write_bytes(b"x\n")
    changes = await trees.diff("w.1")
    assert told(changes) == {
        "src/committed.py": "A",
        "src/staged.py": "A",
        "src/untracked.py": "A",
        "src/retry.py": "M",
        "src/big.bin": "M",
        "run.sh": "M",
        "link": "T",
        "README": "D",
        "MOVED": "A",
        'src/\\xff\n"name': "A",
    }
    by_path = {change.path: change for change in changes.files}
    assert (by_path["src/retry.py"].added, by_path["src/retry.py"].removed) == (1, 1)
    assert by_path["src/big.bin"].added is None
    assert (by_path["run.sh"].old_mode, by_path["run.sh"].mode) == ("100755", "100644")
    assert not changes.problems


async def test_where_the_attempt_has_moved_head_makes_no_difference(repo: Repo) -> None:
    """Reset, another branch, a rewritten history, an index that lies: only the files count."""
    repo.put("README", "later\n")
    second = repo.commit("second")
    trees, top = await made(repo)
    for words in (
        ["reset", "--hard", "-q", second],
        ["update-index", "--assume-unchanged", "README"],
        ["update-index", "--skip-worktree", "src/retry.py"],
        ["rm", "-q", "--cached", "src/big.bin"],
    ):
        repo.git(*words, cwd=top)
    repo.put("src/retry.py", "changed\n", top)
    assert told(await trees.diff("w.1")) == {"README": "M", "src/retry.py": "M"}


async def test_a_change_that_keeps_size_and_time_is_seen(repo: Repo) -> None:
    """The time of modification can be set back; that of the change of the entry cannot."""
    trees, top = await made(repo)
    path = top / "src/retry.py"
    before = path.stat()
    path.write_text("ONE\nTWO\n", encoding="utf-8")
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert told(await trees.diff("w.1")) == {"src/retry.py": "M"}


async def test_nothing_of_the_users_runs_and_nothing_of_his_counts(repo: Repo) -> None:
    """With every trap set, a worktree is the same, its changes are the same, and its commit is the same."""
    plain, top = await made(repo)
    repo.put("src/new.py", "x $Id$\n", top)
    expected = await plain.diff("w.1")
    repo.set_traps()
    before = repo.state()
    trees = await repo.worktrees()
    top = Path(await trees.add("w.2", repo.first))
    assert (top / "src/retry.py").read_bytes() == b"one\ntwo\n"
    repo.put("src/new.py", "x $Id$\n", top)
    changes = await trees.diff("w.2")
    assert (changes.tree, changes.digest, changes.files) == (expected.tree, expected.digest, expected.files)
    commit = await trees.commit("w.2", "avenor/rt_1/candidate", "A candidate")
    assert repo.git("-c", "core.hooksPath=/dev/null", "cat-file", "blob", f"{commit}:src/new.py") == "x $Id$"
    await trees.remove("w.2")
    assert not repo.log.exists()
    after = repo.state()
    assert (after[0], *after[2:]) == (before[0], *before[2:])
    assert after[1].split() == ["avenor/rt_1/candidate", *before[1].split()]


async def test_what_an_attempt_sets_up_for_git_has_no_influence(repo: Repo) -> None:
    """Attributes, ignore files and settings that it writes itself hide nothing, and change no content."""
    trees, top = await made(repo)
    repo.git("config", "filter.shout.clean", f"touch {repo.log}", cwd=top)
    repo.put(".gitattributes", "* filter=shout text eol=crlf ident working-tree-encoding=UTF-16\n", top)
    repo.put(".gitignore", "*\n", top)
    repo.put("src/.gitignore", "*\n", top)
    repo.put("src/hidden.py", "x\r\n", top)
    changes = await trees.diff("w.1")
    assert told(changes) == {".gitattributes": "A", ".gitignore": "M", "src/.gitignore": "A", "src/hidden.py": "A"}
    commit = await trees.commit("w.1", "avenor/c", "c")
    assert repo.git("cat-file", "-s", f"{commit}:src/hidden.py") == "3"
    assert not repo.log.exists()


async def test_what_the_pinned_revision_ignores_is_left_out_and_named(repo: Repo) -> None:
    """Caches that tests leave are no part of a candidate; tracked files are, whatever the rules say."""
    repo.put("src/.gitignore", "cache/\n!keep.pyc\n")
    repo.put("src/odd.pyc", "tracked\n")
    repo.git("add", "-f", "src/odd.pyc")
    first = repo.commit("rules")
    trees = await repo.worktrees()
    top = Path(await trees.add("w.1", first))
    for path in ("src/a.pyc", "build/x", "src/cache/deep/x", "src/keep.pyc", "src/odd.pyc", "other/build/x"):
        repo.put(path, "made\n", top)
    changes = await trees.diff("w.1")
    assert changes.ignored == ["build/x", "src/a.pyc", "src/cache/deep/x"]
    assert told(changes) == {"src/keep.pyc": "A", "src/odd.pyc": "M", "other/build/x": "A"}


def break_link(top: Path, repo: Repo) -> None:
    """The link to the repository is another one's."""
    (top / ".git").write_text(f"gitdir: {repo.folder}/elsewhere\n", encoding="utf-8")


def replace_link(top: Path, repo: Repo) -> None:
    """The link is a repository of its own, with the files in it."""
    (top / ".git").unlink()
    repo.git("init", "-q", cwd=top)
    repo.git("add", "-A", cwd=top)


def drop_link(top: Path, repo: Repo) -> None:
    """There is no link."""
    (top / ".git").unlink()


@pytest.mark.parametrize("spoil", [break_link, replace_link, drop_link])
async def test_a_spoiled_link_to_the_repository_hides_nothing(repo: Repo, spoil: Callable[[Path, Repo], None]) -> None:
    """The comparison, the commit and the removal do without it."""
    trees, top = await made(repo)
    spoil(top, repo)
    repo.put("src/retry.py", "x\n", top)
    assert told(await trees.diff("w.1")) == {"src/retry.py": "M"}
    commit = await trees.commit("w.1", "avenor/c", "c")
    assert repo.git("show", f"{commit}:src/retry.py") == "x"
    await trees.remove("w.1")
    assert not top.exists()
    assert repo.git("worktree", "list").count("\n") == 0


async def test_what_cannot_be_in_a_commit_is_told_and_nothing_is_made_of_the_rest(
    repo: Repo, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Repositories inside, special files, links that lead out, files without end: each is named with its reason."""
    monkeypatch.setattr(walking, "MAX_FILE_BYTES", 1000)
    trees, top = await made(repo)
    repo.put("src/nested/file", "x\n", top)
    repo.git("init", "-q", cwd=top / "src/nested")
    os.mkfifo(top / "src/pipe")
    with socket.socket(socket.AF_UNIX) as bound:
        here = os.getcwd()
        os.chdir(top / "src")
        bound.bind("socket")
        os.chdir(here)
    for name, target in (("abs", "/etc/passwd"), ("up", "../../x"), ("in", "../.git/config"), ("fine", "../README")):
        (top / "src" / name).symlink_to(target)
    with (top / "src/huge").open("wb") as huge:
        huge.truncate(1 << 40)
    changes = await trees.diff("w.1")
    found = reasons(changes)
    assert set(found) == {"src/nested/.git", "src/pipe", "src/socket", "src/abs", "src/up", "src/in", "src/huge"}
    assert "leads out" in found["src/abs"]
    assert "bytes" in found["src/huge"]
    assert changes.files == []
    assert [problem.path for problem in check(changes, ["src/**"])] == sorted(found)
    with pytest.raises(LocalProtocolError):
        await trees.commit("w.1", "avenor/c", "c")


async def test_names_that_git_refuses_are_a_problem_and_no_crash(repo: Repo) -> None:
    """A path that other systems would take for git's own is no candidate's."""
    trees, top = await made(repo)
    repo.put("src/GIT~1/config", "x\n", top)
    repo.put("src/.git ./config", "x\n", top)
    repo.put("src/.git::$INDEX_ALLOCATION/x", "x\n", top)
    found = reasons(await trees.diff("w.1"))
    assert len(found) >= 2


async def test_too_many_files_are_a_problem(repo: Repo, monkeypatch: pytest.MonkeyPatch) -> None:
    """The look at a worktree ends."""
    monkeypatch.setattr(walking, "MAX_PATHS", 10)
    trees, top = await made(repo)
    for number in range(20):
        repo.put(f"many/{number}", "x\n", top)
    assert "more than 10 files" in str(reasons(await trees.diff("w.1")).values())


async def test_directories_and_files_may_change_places(repo: Repo) -> None:
    """A file where a directory was, a directory where a file was, a link where a directory was."""
    trees, top = await made(repo)
    shutil.rmtree(top / "src")
    (top / "README").unlink()
    repo.put("README/inside", "x\n", top)
    (top / "src").symlink_to("README")
    expected = {"README": "D", "README/inside": "A", "src": "A", "src/retry.py": "D", "src/big.bin": "D"}
    assert told(await trees.diff("w.1")) == expected


async def test_a_submodule_is_nobodys_to_change(repo: Repo) -> None:
    """Its directory is empty; what appears in there, and another commit of it, is a violation."""
    inner = repo.folder / "inner"
    inner.mkdir()
    repo.git("init", "-q", ".", cwd=inner)
    repo.git("commit", "-qm", "x", "--allow-empty", cwd=inner)
    repo.git("-c", "protocol.file.allow=always", "submodule", "add", "-q", str(inner), "module")
    first = repo.commit("with a submodule")
    trees = await repo.worktrees()
    top = Path(await trees.add("w.1", first))
    assert list((top / "module").iterdir()) == []
    assert (await trees.diff("w.1")).is_clean
    repo.put("module/file", "x\n", top)
    assert reasons(await trees.diff("w.1")) == {"module/file": "it is in another repository (submodule)"}
    shutil.rmtree(top / "module")
    repo.put("module", "a file\n", top)
    assert [each.path for each in check(await trees.diff("w.1"), ["**"])] == ["module"]


async def test_only_what_the_globs_mean_may_be_changed(repo: Repo) -> None:
    """Each path outside is a violation, both names of a renamed file included."""
    trees, top = await made(repo)
    repo.put("src/retry.py", "x\n", top)
    (top / "README").rename(top / "src/README")
    changes = await trees.diff("w.1")
    assert check(changes, ["src/**", "README"]) == []
    assert [each.path for each in check(changes, ["src/retry.py"])] == ["README", "src/README"]
    assert [each.path for each in check(changes, [])] == ["README", "src/README", "src/retry.py"]


async def test_a_placeholder_is_no_change_until_it_is_written(repo: Repo) -> None:
    """A file that was made to be bound counts once somebody has written to it, also if nothing is in it."""
    trees, top = await made(repo)
    globs = ["src/new.py", "made/deep/new.py", "folder/", "src/retry.py", "docs/**"]
    paths = [path.removeprefix(f"{top}/") for path in writable_paths(str(top), globs)]
    assert paths == ["docs", "folder", "made/deep/new.py", "src/new.py", "src/retry.py"]
    assert (await trees.diff("w.1")).is_clean
    with (top / "src/new.py").open("w", encoding="utf-8"):
        pass
    assert told(await trees.diff("w.1")) == {"src/new.py": "A"}
    assert writable_paths(str(top), globs) == [str(top / path) for path in paths]


def test_a_glob_opens_its_directory_and_freezes_the_rest(tmp_path: Path) -> None:
    """Wildcards stand for the directory before them; what is in there and not meant is shut, links aside."""
    for path in (
        "src/a.py",
        "src/b.txt",
        "src/sub/a.py",
        "src/sub/deep/c.txt",
        "lib/x/test_a.py",
        "lib/x/a.py",
        "lib/y/z",
    ):
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).touch()
    (tmp_path / "src/link").symlink_to("b.txt")

    def frozen(*globs: str) -> list[str]:
        return sorted(os.path.relpath(path, tmp_path) for path in frozen_paths(str(tmp_path), globs))

    def opened(*globs: str) -> list[str]:
        return [os.path.relpath(path, tmp_path) for path in writable_paths(str(tmp_path), globs)]

    assert (opened("src/*.py"), frozen("src/*.py")) == (["src"], ["src/b.txt", "src/sub"])
    assert (opened("src/**"), frozen("src/**")) == (["src"], [])
    assert frozen("lib/**/test_*.py") == ["lib/x/a.py", "lib/y/z"]
    assert frozen("src/*.py", "src/sub/**") == ["src/b.txt"]
    assert opened("*.md", "src/a.py") == ["."]
    assert frozen("*.md", "src/a.py") == ["lib", "src/b.txt", "src/sub"]


async def test_a_commit_is_what_the_diff_saw_on_top_of_the_pinned_revision(repo: Repo) -> None:
    """By avenor, under its branch only; what was written after the diff is not in it."""
    repo.put("README", "later\n")
    repo.commit("second")
    before = repo.state()
    trees, top = await made(repo)
    repo.put("src/retry.py", "seen\n", top)
    await trees.diff("w.1")
    repo.put("src/retry.py", "not seen\n", top)
    commit = await trees.commit("w.1", "avenor/rt_1/candidate", "Fix it\n\nFor good.")
    assert repo.git("show", f"{commit}:src/retry.py") == "seen"
    assert repo.git("log", "-1", "--format=%an <%ae>|%P|%B", commit) == (
        f"avenor <avenor@localhost>|{repo.first}|Fix it\n\nFor good."
    )
    assert repo.git("rev-parse", "avenor/rt_1/candidate") == commit
    assert repo.git("fsck", "--strict") == ""
    again = repo.state()
    assert (again[0], *again[2:]) == (before[0], *before[2:])


async def test_a_candidate_can_be_the_next_ones_base(repo: Repo) -> None:
    """A repair starts from the candidate before it, and the branch moves on; differences and files can be asked for."""
    trees, top = await made(repo)
    repo.put("src/retry.py", "first try\n", top)
    await trees.diff("w.1")
    first = await trees.commit("w.1", "avenor/c", "one")
    top = Path(await trees.add("w.2", first))
    assert (top / "src/retry.py").read_text(encoding="utf-8") == "first try\n"
    repo.put("src/new.py", "x\n", top)
    await trees.diff("w.2")
    second = await trees.commit("w.2", "avenor/c", "two")
    assert repo.git("rev-parse", "avenor/c", "avenor/c~1") == f"{second}\n{first}"
    difference = await trees.show_diff(repo.first, second)
    assert "+first try" in difference
    assert "src/new.py" in difference
    assert "first try" not in await trees.show_diff(repo.first, second, "src/new.py")
    assert (await trees.files_at(second)).split() == [
        ".gitignore", "README", "link", "run.sh", "src/big.bin", "src/new.py", "src/retry.py"
    ]  # fmt: skip
    with pytest.raises(GitFailed):
        await trees.show_diff(repo.first, "0" * 40)


async def test_what_a_lost_attempt_left_is_kept_for_people(repo: Repo) -> None:
    """Under a branch of its own, if there is anything; a new process finds it as the old one would have."""
    trees, top = await made(repo)
    assert await trees.keep_partial("w.1", "avenor/rt_1/lost/w.1") == ""
    repo.put("src/retry.py", "half\n", top)
    after_crash = await repo.worktrees()
    assert await after_crash.keep_partial("w.1", "avenor/rt_1/lost/w.1") == "refs/heads/avenor/rt_1/lost/w.1"
    assert repo.git("show", "avenor/rt_1/lost/w.1:src/retry.py") == "half"


async def test_a_branch_is_moved_from_where_it_was_left_and_from_nowhere_else(repo: Repo) -> None:
    """Where there is none it is made; one that somebody else has moved or made stays."""
    trees = await repo.worktrees()
    second = repo.commit("second")
    await trees.move("avenor/rt_1/candidate", "", repo.first)
    await trees.move("avenor/rt_1/candidate", "", second)
    assert repo.git("rev-parse", "avenor/rt_1/candidate") == repo.first
    await trees.move("avenor/rt_1/candidate", repo.first, second)
    await trees.move("avenor/rt_1/candidate", repo.first, repo.first)
    assert repo.git("rev-parse", "avenor/rt_1/candidate") == second


async def test_removing_leaves_nothing_and_is_harmless_twice(repo: Repo) -> None:
    """Neither the files, also in directories closed by the attempt, nor the repository's entry; nor what links mean."""
    trees, top = await made(repo)
    outside = repo.folder / "outside"
    repo.put("kept", "x\n", outside)
    (top / "out").symlink_to(outside)
    repo.put("closed/x", "x\n", top)
    (top / "closed").chmod(0)
    await trees.remove("w.1")
    await trees.remove("w.1")
    await trees.remove("never.1")
    assert not top.exists()
    assert (outside / "kept").exists()
    # Not even the last to go takes the folder with it: git makes another's entry in two steps, and would have failed.
    assert list((repo.top / ".git/worktrees").iterdir()) == []
    with pytest.raises(LocalProtocolError):
        await trees.diff("w.1")


async def test_what_a_killed_run_left_is_pruned(repo: Repo) -> None:
    """Of the same run all but what is kept; of other runs the entries whose worktree is gone; of the user nothing."""
    trees, top = await made(repo)
    await trees.add("keep.1", repo.first)
    gone = await Worktrees.open(str(repo.top), str(repo.folder / "gone"), repo.env)
    await gone.add("x.1", repo.first)
    shutil.rmtree(repo.folder / "gone")
    repo.git("worktree", "add", "-q", "--detach", str(repo.folder / "users"))
    shutil.rmtree(repo.folder / "users")  # perhaps on a disk that is not there now
    (repo.run / "half.1").mkdir()
    after_crash = await repo.worktrees()
    await after_crash.prune(keep=["keep.1"])
    assert sorted(path.name for path in repo.run.iterdir()) == [".proof", "keep.1"]
    assert sorted(path.name for path in (repo.top / ".git/worktrees").iterdir()) == ["keep.1", "users"]
    assert not top.exists()
    assert (await after_crash.diff("keep.1")).is_clean


async def test_git_leaves_the_worktrees_of_a_run_alone(repo: Repo) -> None:
    """Also when the user prunes his worktrees, or collects garbage, and the run's candidate is not yet a branch."""
    trees, top = await made(repo)
    repo.put("src/retry.py", "x\n", top)
    await trees.diff("w.1")
    repo.git("worktree", "prune", "--expire=now")
    repo.git("gc", "-q", "--prune=now")
    assert (top / "src/retry.py").exists()
    commit = await trees.commit("w.1", "avenor/c", "c")
    assert repo.git("show", f"{commit}:src/retry.py") == "x"


async def test_an_attempt_is_made_anew_over_what_a_crash_left(repo: Repo) -> None:
    """The same attempt's half-made worktree does not stand in the way."""
    trees, top = await made(repo)
    repo.put("src/retry.py", "x\n", top)
    await trees.add("w.1", repo.first)
    assert (await trees.diff("w.1")).is_clean


async def test_many_are_made_at_once(repo: Repo) -> None:
    """As members start side by side."""
    trees = await repo.worktrees()
    async with trio.open_nursery() as nursery:
        for number in range(6):
            nursery.start_soon(trees.add, f"w-{number}.1", repo.first)
    async with trio.open_nursery() as nursery:
        for number in range(6):
            nursery.start_soon(trees.diff, f"w-{number}.1")
    assert repo.git("worktree", "list").count("detached") == 6


async def test_a_run_may_work_in_a_folder_of_the_repository(repo: Repo) -> None:
    """Then an attempt works in the same folder of its worktree; one that the revision lacks is refused."""
    trees = await repo.worktrees("src")
    top = await trees.add("w.1", repo.first)
    assert (trees.prefix, trees.cwd("w.1")) == ("src", os.path.join(top, "src"))
    (repo.top / "later").mkdir()
    late = await repo.worktrees("later")
    with pytest.raises(ConfigError, match="later is not there"):
        await late.add("w.2", repo.first)


async def test_a_run_may_work_in_a_worktree_and_in_a_linked_place(repo: Repo) -> None:
    """The user's own worktrees are checkouts like any other, and a path may lead there over a link."""
    repo.git("worktree", "add", "-q", "--detach", str(repo.folder / "users"))
    (repo.folder / "way").symlink_to(repo.folder / "users" / "src")
    trees = await Worktrees.open(str(repo.folder / "way"), str(repo.run), repo.env)
    assert trees.prefix == "src"
    await trees.add("w.1", repo.first)
    assert (await trees.diff("w.1")).is_clean
    assert trees.readable == [str(repo.top / ".git")]


async def test_a_repository_with_other_object_ids_works_as_well(tmp_path: Path) -> None:
    """SHA-256."""
    repo = Repo(tmp_path, object_format="sha256")
    trees, top = await made(repo)
    repo.put("src/retry.py", "x\n", top)
    await trees.diff("w.1")
    assert len(await trees.commit("w.1", "avenor/c", "c")) == 64


async def test_a_shallow_clone_works_as_well(repo: Repo) -> None:
    """Its oldest commit has parents that are not there."""
    repo.put("README", "later\n")
    repo.commit("second")
    clone = repo.folder / "clone"
    repo.git("clone", "-q", "--depth", "1", f"file://{repo.top}", str(clone))
    trees = await Worktrees.open(str(clone), str(repo.run), repo.env)
    top = Path(await trees.add("w.1", await trees.resolve("HEAD")))
    repo.put("src/retry.py", "x\n", top)
    await trees.diff("w.1")
    commit = await trees.commit("w.1", "avenor/c", "c")
    assert repo.git("show", f"{commit}:src/retry.py", cwd=clone) == "x"


async def test_a_replaced_commit_is_not_what_is_pinned(repo: Repo) -> None:
    """`git replace` shows the user other files; a run works on what the revision is."""
    repo.put("README", "other\n")
    other = repo.commit("other")
    repo.git("replace", repo.first, other)
    _, top = await made(repo)
    assert (top / "README").read_text(encoding="utf-8") == "read\n"


@pytest.mark.parametrize("revision", ["HEAD", "main", "v1", "HEAD~0"])
async def test_a_revision_may_be_named_in_any_way(repo: Repo, revision: str) -> None:
    """What git understands is resolved to the commit, tags to what they mean."""
    repo.git("tag", "-a", "-m", "x", "v1")
    assert await (await repo.worktrees()).resolve(revision) == repo.first


@pytest.mark.parametrize("revision", ["nowhere", "HEAD:README", "--all", "", "HEAD..HEAD", "f" * 40])
async def test_what_is_no_commit_is_refused_by_name(repo: Repo, revision: str) -> None:
    """The error names the field and the revision."""
    with pytest.raises(ConfigError, match=r"run\.source_revision: git:"):
        await (await repo.worktrees()).resolve(revision)


async def test_without_a_repository_a_manifest_is_refused(repo: Repo) -> None:
    """Neither outside of one, nor in git's own directory, nor in a bare one, nor without commits."""
    bare = repo.folder / "bare"
    repo.git("init", "-q", "--bare", str(bare))
    for directory in (repo.home, repo.top / ".git", bare, repo.folder / "missing"):
        with pytest.raises(ConfigError, match="needs a git repository"):
            await Worktrees.open(str(directory), str(repo.run), repo.env)
    empty = repo.folder / "empty"
    repo.git("init", "-q", str(empty))
    with pytest.raises(ConfigError, match="no commit"):
        await (await Worktrees.open(str(empty), str(repo.run), repo.env)).resolve("HEAD")


@pytest.mark.parametrize("attempt", ["", ".", "..", "../x", "a/b", ".proof", "a\n"])
async def test_an_attempt_is_called_like_a_directory(repo: Repo, attempt: str) -> None:
    """Nothing else gets to be a path."""
    trees = await repo.worktrees()
    with pytest.raises(LocalProtocolError):
        await trees.add(attempt, repo.first)


@pytest.mark.parametrize("run_id", ["a b", "x..y", "foo.lock", ".hid", "a/../b", "ü~1"])
async def test_a_run_id_that_no_branch_can_have_is_refused(repo: Repo, run_id: str) -> None:
    """Before anything has begun: a candidate could not be kept."""
    trees = await repo.worktrees()
    with pytest.raises(ConfigError, match="git has no branches avenor/"):
        await trees.check_branches(f"avenor/{run_id}")


@pytest.mark.parametrize("branch", ["avenor", "avenor/n1", "avenor/n1/candidate", "avenor/n1/lost/w.1"])
async def test_branches_that_are_there_are_never_a_runs(repo: Repo, branch: str) -> None:
    """Neither those of a run with the same id, nor those that leave git no room for more; others do not matter."""
    repo.git("branch", "avenor-n1")
    trees = await repo.worktrees()
    await trees.check_branches("avenor/n1")
    repo.git("branch", branch)
    with pytest.raises(ConfigError, match=f"there is a branch {branch};"):
        await trees.check_branches("avenor/n1")
    if branch != "avenor":
        await trees.check_branches("avenor/n")


async def test_a_commit_of_the_users_stays_on_the_branch(repo: Repo) -> None:
    """A run sets its branch on, also where a process of it was killed in between, and not over what others made."""
    trees, top = await made(repo)
    repo.put("src/retry.py", "one\n", top)
    await trees.diff("w.1")
    first = await trees.commit("w.1", "avenor/n1/candidate", "m")
    after_crash = await repo.worktrees()
    repo.put("src/retry.py", "two\n", top)
    await after_crash.diff("w.1")
    second = await after_crash.commit("w.1", "avenor/n1/candidate", "m")
    assert repo.git("rev-parse", "avenor/n1/candidate") == second != first
    mine = repo.git("commit-tree", f"{second}^{{tree}}", "-p", second, "-m", "mine")
    repo.git("update-ref", "refs/heads/avenor/n1/candidate", mine)
    with pytest.raises(GitFailed, match=f"is at {mine}, which this run has not made"):
        await after_crash.commit("w.1", "avenor/n1/candidate", "m")
    assert repo.git("rev-parse", "avenor/n1/candidate") == mine


async def test_files_that_are_left_are_plain_ones(repo: Repo) -> None:
    """What git did not take is moved out of the way of what removes worktrees, and the repository knows none of it."""
    trees, top = await made(repo)
    repo.put("src/retry.py", "work\n", top)
    place = Path(await trees.leave("w.1", str(repo.folder / "left")))
    await trees.remove("w.1")
    await trees.prune()
    assert (place / "src/retry.py").read_text(encoding="utf-8") == "work\n"
    assert not (place / ".git").exists()
    assert not trees.has("w.1")
    assert list((repo.top / ".git/worktrees").iterdir()) == []
