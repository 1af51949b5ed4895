"""`avenor run` and `avenor stable`: flags to what they start."""

import shlex
import sys
from pathlib import Path
from signal import SIG_BLOCK, pthread_sigmask
from types import ModuleType
from typing import Any

import pytest

from avenor.cli import main
from avenor.cli.commands import RUN, STABLE
from avenor.cli.parsing import UsageError, parse
from avenor.cli.run import run_spec
from avenor.cli.stable import supervisor_options
from avenor.host.endsignals import END_SIGNALS
from avenor.protocol.outcomes import parse_sentinel
from avenor.protocol.spec import RunSpec
from avenor.stable.options import Options


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[tuple[RunSpec, dict[str, Any]]]:
    """What `avenor run` would have run; nothing is."""
    calls: list[tuple[RunSpec, dict[str, Any]]] = []

    def run_once(spec: RunSpec, **options: Any) -> int:
        calls.append((spec, options))
        return 5

    fake = ModuleType("avenor.runtimes.main")
    fake.__dict__["run_once"] = run_once
    monkeypatch.setitem(sys.modules, "avenor.runtimes.main", fake)
    return calls


@pytest.mark.parametrize("word", [[], ["run"]])
def test_run_runs_what_its_flags_say(
    started: list[tuple[RunSpec, dict[str, Any]]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, word: list[str]
) -> None:
    """With and without the word `run`; its exit status is that of the run."""
    monkeypatch.chdir(tmp_path)
    words = "--backend scripted --prompt hi --timeout 1m --env A=b --quiet --control-socket c.sock --on-event e"
    assert main([*word, *words.split()]) == 5
    [(spec, options)] = started
    assert spec.prompt == "hi"
    assert spec.backend == "scripted"
    assert spec.timeout == 60.0
    assert spec.handshake_timeout == 60.0
    assert spec.env == {"A": "b"}
    assert spec.dir == str(tmp_path)
    assert spec.on_event == str(tmp_path / "e")
    assert options == {"control_socket": str(tmp_path / "c.sock"), "quiet": True}


@pytest.mark.parametrize("words", ["--prompt hi", "--prompt ''", "--help"])
def test_the_signals_that_end_a_run_are_held_for_it_alone(
    started: list[tuple[RunSpec, dict[str, Any]]], monkeypatch: pytest.MonkeyPatch, words: str
) -> None:
    """From before it is imported to its end, however it ends."""
    held: list[set[int]] = []
    monkeypatch.setattr("avenor.cli.run.open_missing_streams", lambda: held.append(pthread_sigmask(SIG_BLOCK, ())))
    before = pthread_sigmask(SIG_BLOCK, ())
    main(["run", *shlex.split(words)])
    assert held == [before | set(END_SIGNALS)]
    assert pthread_sigmask(SIG_BLOCK, ()) == before


def test_without_a_socket_there_is_none(started: list[tuple[RunSpec, dict[str, Any]]]) -> None:
    """A run has a control socket only when asked."""
    main(["--prompt", "hi"])
    assert started[0][1] == {"control_socket": None, "quiet": False}


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("", "--prompt TEXT, --prompt-file FILE, --loop-file FILE, --team-file FILE or --manifest FILE is needed"),
        ("--prompt x --prompt-file y", "give --prompt or --prompt-file, not both"),
        ("--prompt ' '", "--prompt ' ': give it some text"),
        ("--prompt x --backend nope", "--backend 'nope': choose one of opencode-acp"),
        ("--prompt x --backend acp", "--agent-command: backend acp needs it"),
        ("--prompt x --permission-handler BASE", "--permission-handler 'BASE': write it as file:PATH"),
        ("--prompt x --dir /no/such/folder", "--dir: /no/such/folder is no directory"),
        ("--prompt x --dir ''", "--dir: it is empty"),
    ],
)
def test_what_cannot_be_run_is_refused_with_the_name_of_the_flag(line: str, message: str) -> None:
    """Not that of a field."""
    with pytest.raises(UsageError) as caught:
        run_spec(parse(RUN, shlex.split(line)), {})
    assert caught.value.message.startswith(message)


@pytest.mark.parametrize(
    "line",
    [
        "--prompt x --timeout -1s --sentinel-file s.done --run-id r7",
        "--sentinel-file=s.done --run-id=r7 --no-such-flag",
        "run --run-id r7 --prompt --sentinel-file --sentinel-file s.done word",
    ],
)
def test_usage_errors_of_run_are_failures_with_a_sentinel(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], line: str
) -> None:
    """Status 1, and FAILED in the sentinel where its flag could be read, over one of an earlier run."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "s.done").write_text("DONE\n")
    assert main(line.split()) == 1
    assert capfd.readouterr().err.startswith("avenor run: ")
    outcome = parse_sentinel((tmp_path / "s.done").read_text())
    assert (outcome.status, outcome.exit_code, outcome.run_id) == ("FAILED", 1, "r7")


def test_the_sentinel_of_a_usage_error_is_relative_to_dir(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """As that of a run would be."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "sub").mkdir()
    assert main(["--sentinel-file", "s.done", "--dir", "sub"]) == 1
    assert (tmp_path / "sub" / "s.done").read_text().startswith("FAILED\n")


def test_a_sentinel_that_cannot_be_written_is_told(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """The usage error comes first all the same."""
    assert main(["--sentinel-file", f"{tmp_path}/no/s.done"]) == 1
    err = capfd.readouterr().err
    assert err.startswith("avenor run: --prompt TEXT, ")
    assert f"avenor run: the sentinel {tmp_path}/no/s.done cannot be written: No such file" in err


@pytest.fixture(params=["deleted", "no text"])
def nowhere(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """Makes the working directory one that nothing can be relative to; what is said of it."""
    here = tmp_path / ("d" if request.param == "deleted" else "d\udcff")
    here.mkdir()
    monkeypatch.chdir(here)
    if request.param != "deleted":
        return "it is not UTF-8"
    here.rmdir()
    return "the working directory is gone; give an absolute path"


def test_a_run_needs_no_usable_working_directory_of_its_own(
    started: list[tuple[RunSpec, dict[str, Any]]], nowhere: str, tmp_path: Path
) -> None:
    """Where every path is absolute."""
    words = ["--prompt", "hi", "--dir", str(tmp_path), "--control-socket", str(tmp_path / "c.sock"), "--on-event", "e"]
    assert main(words) == 5
    assert (started[0][0].on_event, started[0][1]["control_socket"]) == (str(tmp_path / "e"), str(tmp_path / "c.sock"))


@pytest.mark.parametrize(
    ("line", "flag"),
    [
        ("run --prompt hi --sentinel-file {here}/s.done", "--dir"),
        ("run --prompt hi --dir {here} --sentinel-file s.done --control-socket c", "--control-socket"),
        (
            "run --prompt hi --dir {here} --sentinel-file s.done --http-debug :0 --http-token-file t",
            "--http-token-file",
        ),
        ("control --socket {here}/c spawn --prompt hi", "--dir"),
        ("control --socket c spawn --dir / --prompt hi", "--socket"),
        ("stable --control-socket c", "--control-socket"),
        ("stable --control-socket {here}/c --state-dir s", "--state-dir"),
        ("board --socket c", "--socket"),
        ("board --socket {here}/c --token-file t", "--token-file"),
        ("mcp --supervisor-socket c", "--supervisor-socket"),
        ("mcp --control-socket c", "--control-socket"),
        ("doctor", "--dir"),
        ("doctor --dir / --transcript t", "--transcript"),
    ],
)
def test_what_is_relative_to_a_directory_that_cannot_be_named_is_refused(
    nowhere: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
    line: str,
    flag: str,
) -> None:
    """With the name of the flag, and of a run with a sentinel."""
    monkeypatch.setenv("AVENOR_SOCKET", "/elsewhere")
    monkeypatch.setenv("AVENOR_RUNTIME_ID", "rt_1")
    assert main(line.format(here=tmp_path).split()) == (1 if line.startswith("run") else 2)
    message = capfd.readouterr().err.splitlines()[0]
    assert (f": {flag}" in message, message.endswith(nowhere)) == (True, True)
    assert (tmp_path / "s.done").exists() == line.startswith("run")


def test_a_relative_sentinel_in_a_deleted_directory_is_not_looked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """The usage error is told all the same."""
    here = tmp_path / "d"
    here.mkdir()
    monkeypatch.chdir(here)
    here.rmdir()
    assert main(["--prompt", "hi", "--sentinel-file", "s.done"]) == 1
    assert "--dir: . is relative" in capfd.readouterr().err


def test_a_variable_that_is_not_utf8_is_refused_where_it_is_asked_for() -> None:
    """What nobody asked for stays in the environment."""
    with pytest.raises(UsageError, match=r"^--env X: it is not UTF-8$"):
        run_spec(parse(RUN, ["--prompt", "x", "--env", "X"]), {"X": "\udcff"})
    run_spec(parse(RUN, ["--prompt", "x"]), {"X": "\udcff"})


def test_usage_errors_without_a_sentinel_are_only_told(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """Status 1, and the usage."""
    assert main(["--prompt"]) == 1
    assert "usage: avenor [run]" in capfd.readouterr().err


# ---- stable


def options_of(line: str) -> Options:
    return supervisor_options(parse(STABLE, line.split()))


def test_stable_without_flags_has_the_documented_defaults(monkeypatch: pytest.MonkeyPatch) -> None:
    """And the default socket."""
    monkeypatch.setenv("XDG_RUNTIME_DIR", "/run/x")
    monkeypatch.setenv("AVENOR_SOCKET", "/not/this/one")
    assert options_of("") == Options(control_socket="/run/x/avenor/stable.sock")


def test_the_flags_of_stable_become_its_options(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Durations as seconds, paths absolute."""
    monkeypatch.chdir(tmp_path)
    line = (
        "--control-socket s.sock --state-dir state --max-runtimes 2 --queue 0 --max-tree 3 --max-parked 0 "
        "--idle-timeout 1h --parked-timeout 0 --shutdown-timeout 250ms --on-sigterm detach "
        "--permission-claim-timeout 5 --keep 7d --log-level debug --log-format json"
    )
    assert options_of(line) == Options(
        control_socket=str(tmp_path / "s.sock"),
        state_dir=str(tmp_path / "state"),
        max_runtimes=2,
        queue=0,
        max_tree=3,
        max_parked=0,
        idle_timeout=3600.0,
        parked_timeout=0.0,
        shutdown_timeout=0.25,
        on_sigterm="detach",
        permission_claim_timeout=5.0,
        keep=604800.0,
        log_level="debug",
        log_format="json",
    )


def test_an_idle_timeout_of_zero_is_none() -> None:
    """0 switches a timeout off."""
    assert options_of("--idle-timeout 0").idle_timeout is None


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("--max-runtimes 0", "--max-runtimes: it must be 1 or more"),
        ("--max-tree 0", "--max-tree: it must be 1 or more"),
        ("--keep 0", "--keep: it must be more than 0; without it everything is kept"),
        ("--state-dir=", "--state-dir: it is empty"),
        ("--parked-timeout soon", "--parked-timeout: "),
        ("--on-sigterm kill", "--on-sigterm: 'kill' is none of graceful, detach"),
    ],
)
def test_options_that_make_no_sense_are_usage(capfd: pytest.CaptureFixture[str], line: str, message: str) -> None:
    """Status 2, with the flag's name."""
    assert main(["stable", *line.split()]) == 2
    assert capfd.readouterr().err.startswith(f"avenor stable: {message}")


def test_stable_runs_a_supervisor_with_its_options(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The exit status is the supervisor's."""
    seen: list[Options] = []

    def run_supervisor(options: Options) -> int:
        seen.append(options)
        return 7

    fake = ModuleType("avenor.stable.supervisor")
    fake.__dict__["run_supervisor"] = run_supervisor
    monkeypatch.setitem(sys.modules, "avenor.stable.supervisor", fake)
    assert main(["stable", "--control-socket", f"{tmp_path}/s"]) == 7
    assert [options.control_socket for options in seen] == [f"{tmp_path}/s"]
