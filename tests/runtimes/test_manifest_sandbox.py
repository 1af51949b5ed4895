"""What the sandbox of an attempt lets a program do, and what it does not: tried with programs that try to get out."""

import os
import socket
import stat
from pathlib import Path

import pytest
import trio

from avenor.protocol.errors import ConfigError
from avenor.runtimes.backends.profiles import StatePlace
from avenor.runtimes.manifest import sandbox
from avenor.runtimes.manifest.private import make_private
from avenor.runtimes.manifest.sandbox import HIDDEN, Cage, agent_places, probe_sandbox, sandbox_prefix, state_copy
from tests.runtimes.sandbox_kit import Place, needs_sandbox

pytestmark = needs_sandbox()


@pytest.fixture
def place(tmp_path: Path) -> Place:
    """A worktree in a run's directory, and things around it."""
    return Place(tmp_path)


async def test_what_is_allowed_can_be_written_and_the_rest_of_the_worktree_cannot(place: Place) -> None:
    """A directory is open as a whole, a file by itself; each other write fails at once."""
    cage = place.cage("src/retry", "src/b.py")
    done = await place.shell(
        cage,
        "echo new > src/retry/new.py && echo new > src/retry/a.py && echo new > src/b.py && echo written;"
        "for path in src/c.py top.py .git .git/config; do echo x > $path && echo out $path; done;"
        "rm src/b.py && echo out; mv src/retry/a.py src/b.py && echo out; mkdir docs && echo out",
    )
    assert done.words == ["written"]
    assert "Read-only file system" in done.stderr
    assert (place.worktree / "src/b.py").read_text(encoding="utf-8") == "new\n"
    assert not (place.worktree / "src/c.py").exists()


async def test_a_reader_writes_nothing_anywhere(place: Place) -> None:
    """Without writable paths the worktree, the home and all else are read-only; /tmp is its own."""
    done = await place.shell(
        place.cage(),
        "for path in $PWD/x src/b.py $OUTSIDE/secret $OUTSIDE/x $HOME/x /etc/x /x /usr/x /run/x /sys/x; do"
        " echo x > $path && echo out $path; done; cat src/b.py; echo mine > /tmp/mine && cat /tmp/mine",
    )
    assert done.stdout == "as it was\nmine\n"
    assert place.untouched()
    assert not await trio.Path("/tmp/mine").exists()


@pytest.mark.parametrize(
    "target",
    [
        "{outside}/secret",
        "../../../../outside/secret",
        "src/retry/../../../../../outside/secret",
        "/proc/self/root{outside}/secret",
        "/proc/1/root{outside}/secret",
        "/proc/self/cwd/../../../outside/secret",
        "src/retry/link",
        "src/retry/dirlink/secret",
    ],
)
async def test_no_name_of_a_file_outside_can_be_written(place: Place, target: str) -> None:
    """By path, by dots, through /proc and through links that were there before: the mount is what counts."""
    (place.worktree / "src/retry/link").symlink_to(place.outside / "secret")
    (place.worktree / "src/retry/dirlink").symlink_to(place.outside)
    path = target.format(outside=place.outside)
    done = await place.shell(place.cage("src/retry"), f"cat {path}; echo x > {path} && echo out")
    assert "out" not in done.words[3:]
    assert "Read-only file system" in done.stderr or "No such file" in done.stderr
    assert place.untouched()


@pytest.mark.parametrize(
    "line",
    [
        "ln -s $OUTSIDE/secret src/retry/made && echo x > src/retry/made",
        "ln $OUTSIDE/secret src/retry/made && echo x > src/retry/made",
        "ln src/b.py src/retry/made && echo x > src/retry/made",
        "ln -s $OUTSIDE src/retry/made && touch src/retry/made/new",
        "rmdir src/retry; mv src/retry src/elsewhere",
        "mount -o remount,rw,bind $PWD",
        "mount -o remount,rw /",
        "mount --bind src/retry src",
        "mount -t tmpfs none $OUTSIDE",
        "umount $PWD",
        "umount -l $PWD/..",
        "unshare -Urm sh -c 'mount -o remount,rw,bind / && touch $OUTSIDE/new'",
        "unshare -Urm sh -c 'umount $PWD && touch src/new'",
        "chroot / sh -c 'touch $OUTSIDE/new'",
        "mknod src/retry/disk b 8 0",
        "mknod /tmp/disk b 254 0",
        "chown 12345 src/retry/a.py",
        # The same value as it has: were it written, nothing would be changed on the machine of whoever runs this.
        "cat /proc/sys/vm/swappiness > /tmp/now; cat /tmp/now > /proc/sys/vm/swappiness",
        "nsenter -t 1 -m touch $OUTSIDE/new",
        "cp /bin/sh src/retry/sh && chmod u+s src/retry/sh && src/retry/sh -c 'touch $OUTSIDE/new'",
    ],
)
async def test_no_way_out_that_we_know_of_works(place: Place, line: str) -> None:
    """Links, mounts, namespaces, devices, system settings, ownership, set-user-id programs."""
    done = await place.shell(place.cage("src/retry"), line)
    assert done.status != 0, done
    (place.worktree / "src/retry/sh").unlink(missing_ok=True)
    assert place.untouched()


async def test_no_control_of_the_machine_can_be_written(place: Place) -> None:
    """Root may write many of them by their mode alone, without any capability: none may be left open."""
    source = (
        "import os, stat\n"
        "for top in ('/proc', '/sys/kernel', '/sys/fs/cgroup'):\n"
        "    for folder, folders, names in os.walk(top):\n"
        "        if folder == '/proc': folders[:] = [name for name in folders if not name.isdigit()]\n"
        "        folders[:] = [name for name in folders if name not in ('self', 'thread-self')]\n"
        "        for name in names:\n"
        "            path = os.path.join(folder, name)\n"
        "            if os.access(path, os.W_OK) and stat.S_ISREG(os.lstat(path).st_mode): print('out', path)\n"
    )
    done = await place.python(place.cage(), source)
    assert (done.status, done.stdout) == (0, "")


async def test_git_cannot_be_made_to_run_or_keep_anything(place: Place) -> None:
    """Neither the link to the repository nor its configuration and hooks can be written, also with all else open."""
    repository = place.folder / "repo.git"
    (repository / "hooks").mkdir(parents=True)
    done = await place.shell(
        place.cage("."),
        f"echo x > {repository}/hooks/post-commit && echo out; echo x > {repository}/config && echo out;"
        " echo 'gitdir: /tmp' > .git && echo out; mv .git .old && echo out; rm .git && echo out; touch top && echo in",
    )
    assert done.words == ["in"]
    assert list(repository.rglob("*")) == [repository / "hooks"]
    assert (place.worktree / ".git").read_text(encoding="utf-8") == "as it was\n"


async def test_the_run_and_other_attempts_cannot_be_seen(place: Place) -> None:
    """Of the run's directory there is only the worktree's own path, and nobody can put anything there."""
    done = await place.shell(
        place.cage("src/retry"),
        "ls ../..; ls ..; cat ../b.1/secret ../../log; touch ../new ../../new && echo out; echo end",
    )
    assert done.words == ["worktrees", "a.1", "end"]
    assert place.untouched()


async def test_a_socket_cannot_be_reached_though_its_path_is_known(place: Place) -> None:
    """Sockets in masked directories, masked themselves, in hidden places and in links to them: connecting fails."""
    with socket.socket(socket.AF_UNIX) as listener, socket.socket(socket.AF_UNIX) as named:
        inside, alone = place.folder / "run" / "s", place.outside / "s"
        for each, path in ((listener, inside), (named, alone)):
            each.bind(str(path))
            each.listen()
        (place.outside / "link").symlink_to(inside)
        cage = place.cage(masked=[str(place.folder / "run"), str(alone)])
        source = (
            "import socket, sys\n"
            "for path in sys.argv[1:]:\n"
            "    try: socket.socket(socket.AF_UNIX).connect(path); print('out', path)\n"
            "    except OSError as error: print(type(error).__name__)\n"
        )
        paths = [str(inside), str(alone), str(place.outside / "link"), f"/proc/1/root{inside}"]
        done = await place.python(cage, source, *paths)
        assert "out" not in done.words, done
        assert len(done.words) == 4
        reachable = await place.python(place.cage(masked=[]), source, str(alone))
    assert reachable.words[0] == "out"  # the test can fail: unmasked, it is reached


async def test_no_other_process_can_be_seen_or_touched(place: Place) -> None:
    """Not by its number, not by ptrace, not by a signal: its numbers are not ours."""
    source = (
        "import ctypes, os, sys\n"
        "pid = int(sys.argv[1])\n"
        "print(os.path.exists(f'/proc/{pid}'), ctypes.CDLL(None).ptrace(16, pid, 0, 0))\n"
        "try: os.kill(pid, 0); print('out')\n"
        "except ProcessLookupError: print('none')\n"
    )
    done = await place.python(place.cage(), source, str(os.getpid()))
    assert done.words == ["False", "-1", "none"]


async def test_it_has_no_privileges_and_gets_none(place: Place) -> None:
    """No capability, also not by a program that would have some, and no terminal to type into."""
    done = await place.shell(place.cage(), "grep -E '^(Cap|NoNew)' /proc/self/status; tty; ps -o sid= -p $$ || true")
    facts = dict(line.split(":\t") for line in done.stdout.splitlines() if ":\t" in line)
    assert set(facts.values()) == {"0" * 16, "1"}
    assert facts["NoNewPrivs"] == "1"


async def test_a_file_that_is_open_outside_is_not_handed_in(place: Place) -> None:
    """An agent gets its three pipes and nothing else that we have open."""
    with (place.outside / "secret").open("a", encoding="utf-8") as opened:
        os.set_inheritable(opened.fileno(), True)
        done = await place.shell(place.cage(), f"ls /proc/self/fd; echo x >&{opened.fileno()} && echo out")
    assert "out" not in done.words
    assert place.untouched()


async def test_variables_that_lead_to_the_users_sockets_are_gone(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """The ssh agent and the run's own socket are not told, the tag by which it is found is."""
    env = {"SSH_AUTH_SOCK": "/x", "AVENOR_SOCKET": "/x", "AVENOR_RUNTIME_ID": "rt_1", "XDG_RUNTIME_DIR": "/x"}
    monkeypatch.setattr(Place, "env", {**place.env, **env, "AVENOR_TREE": "tag", "TMPDIR": "/var/tmp/elsewhere"})
    done = await place.run(place.cage(), "env")
    told = dict(line.split("=", 1) for line in done.stdout.splitlines() if "=" in line)
    assert not told.keys() & env.keys()
    assert (told["AVENOR_TREE"], told["TMPDIR"]) == ("tag", "/tmp")


async def test_the_agents_state_is_a_copy_of_its_own(place: Place) -> None:
    """It has what the profile keeps, can be written and outlives a restart; the user's stays as it was."""
    login = place.home / ".agent"
    (login / "sub").mkdir(parents=True)
    for name in ("login.json", "sub/settings", "sessions.db"):
        (login / name).write_text("the user's\n", encoding="utf-8")
    places = [StatePlace(path=str(login), keep=["login.json", "sub", "missing", "sub/../../../outside/secret"])]
    cage = place.cage(home_state=[str(login)])
    make_private(cage.private, places)
    line = "cd $HOME/.agent; ls; cat login.json sub/settings; echo new > login.json; echo x > new; touch $HOME/x"
    done = await place.shell(cage, line)
    assert done.words == ["login.json", "sub", "the", "user's", "the", "user's"]
    make_private(cage.private, places)
    again = await place.shell(cage, "cat $HOME/.agent/login.json $HOME/.agent/new")
    assert again.words == ["new", "x"]
    assert (login / "login.json").read_text(encoding="utf-8") == "the user's\n"
    assert not (place.home / "x").exists()


async def test_state_that_is_not_there_yet_is_not_made_in_the_users_home(place: Place) -> None:
    """The nearest directory that is there is shown with all that it has, read-only, and with room for the new one."""
    (place.home / ".local").mkdir()
    for name in (".local/file", "plain"):
        (place.home / name).write_text("the user's\n", encoding="utf-8")
    (place.home / "link").symlink_to("plain")
    states = [str(place.home / ".local/share/agent"), str(place.home / ".agent"), str(place.home / "plain/agent")]
    cage = place.cage(home_state=states)
    make_private(cage.private, [StatePlace(path=path) for path in states])
    done = await place.shell(
        cage,
        "cd $HOME; cat .local/file link; for path in x .local/x .local/share/x plain .local/file; do"
        " echo x > $path && echo out; done; echo new > .local/share/agent/a && echo new > .agent/a && echo kept",
    )
    assert done.words == ["the", "user's", "the", "user's", "kept"]
    assert (Path(state_copy(cage.private, 0)) / "a").read_text(encoding="utf-8") == "new\n"
    assert sorted(path.name for path in place.home.rglob("*")) == [".local", "file", "link", "plain"]


async def test_a_writable_path_that_leads_over_a_link_is_refused(place: Place) -> None:
    """bubblewrap would bind what the link leads to, so nothing is started."""
    (place.worktree / "out").symlink_to(place.outside)
    (place.worktree / "up").symlink_to("src")
    for path in ("out", "out/secret", "up", "up/b.py", "..", "../b.1"):
        with pytest.raises(ConfigError, match="out of the worktree"):
            sandbox_prefix(place.cage(path))


async def test_a_frozen_path_stays_read_only_in_a_writable_directory(place: Place) -> None:
    """What a glob does not mean is shut although its directory is open."""
    cage = place.cage("src", frozen=[str(place.worktree / "src/b.py")])
    done = await place.shell(
        cage, "echo x > src/b.py && echo out; mv src/b.py src/c.py && echo out; echo x > src/new.py"
    )
    assert done.status == 0
    assert done.words == []
    assert (place.worktree / "src/b.py").read_text(encoding="utf-8") == "as it was\n"


async def test_it_starts_where_it_is_told(place: Place) -> None:
    """The working directory may be below the top of the worktree."""
    done = await place.run(place.cage(cwd=str(place.worktree / "src")), "pwd")
    assert done.stdout == f"{place.worktree}/src\n"


def test_a_private_place_is_nobody_elses(tmp_path: Path) -> None:
    """The private directory is closed to other users, and holds a place for each hidden one that can be written."""
    make_private(str(tmp_path / "p"), [])
    assert stat.S_IMODE((tmp_path / "p").stat().st_mode) == 0o700
    assert sorted(path.name for path in (tmp_path / "p").iterdir()) == ["tmp", "var-tmp"]


def test_what_is_too_big_or_no_file_is_not_copied(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A database that somebody left among the settings does not fill the disk, a pipe does not hang us."""
    monkeypatch.setattr("avenor.runtimes.manifest.private.FILE_LIMIT_BYTES", 10)
    monkeypatch.setattr("avenor.runtimes.manifest.private.PLACE_LIMIT_BYTES", 15)
    home = tmp_path / "home"
    home.mkdir()
    for name, size in (("a", 9), ("b", 9), ("c", 11), ("d", 5)):
        (home / name).write_bytes(b"x" * size)
    os.mkfifo(home / "pipe")
    (home / "gone").symlink_to("nowhere")
    make_private(str(tmp_path / "p"), [StatePlace(path=str(home), keep=["*"])])
    assert sorted(path.name for path in Path(state_copy(str(tmp_path / "p"), 0)).iterdir()) == ["a", "d"]


def test_only_what_is_needed_of_hidden_places_is_shown_again() -> None:
    """Programs bring the folder that they are in, but never a hidden place as a whole."""
    env = {"PATH": "/usr/bin:/tmp/tools/bin:/tmp/bin:relative:/run/sw/bin", "HOME": "/root"}
    places = agent_places(env)
    assert {"/tmp/tools/bin", "/tmp/tools", "/tmp/bin", "/run/sw", "/run/sw/bin"} <= set(places)
    assert not set(places) & {*HIDDEN, "/usr", "/usr/bin", "/root", "/"}


def test_without_a_sandbox_the_reason_and_the_remedy_are_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A missing program is told with how to get it, one that fails with what it said; both refuse to start anything."""
    for source, reason in (
        (None, "not installed"),
        ("echo no permission >&2; exit 1", "no permission"),
        ("exit 7", "7"),
    ):
        monkeypatch.setenv("PATH", str(tmp_path))
        if source is not None:
            program = tmp_path / "bwrap"
            program.write_text(f"#!/bin/sh\n{source}\n", encoding="utf-8")
            program.chmod(0o755)
        sandbox._start_words.cache_clear()  # pyright: ignore[reportPrivateUsage]
        try:
            fault = probe_sandbox()
            assert fault is not None
            assert reason in fault.reason
            assert fault.remedy
            with pytest.raises(ConfigError, match="sandbox unavailable"):
                sandbox_prefix(Cage(worktree=str(tmp_path), private=str(tmp_path)))
        finally:
            sandbox._start_words.cache_clear()  # pyright: ignore[reportPrivateUsage]
