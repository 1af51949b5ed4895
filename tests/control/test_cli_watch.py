"""`avenor watch`: the digest of a log, at once and while it is written."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from avenor.cli import main
from tests.helpers import eventually_sync

WATCH = [sys.executable, "-m", "avenor.cli", "watch"]


def line(name: str, **members: Any) -> str:
    return json.dumps({"event": name, "seq": 1, "ts": 0, **members}) + "\n"


def says(text: str) -> str:
    return line("agent.message_chunk", session_id="ses_1", content={"type": "text", "text": text})


START = line("run.start", run_id="run_a", kind="single", backend="scripted", dir="/d")
END = line("run.end", status="DONE", stop_reason="end_turn", exit_code=0)


@pytest.fixture
def log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The log's path, in the working directory; there is no such file."""
    monkeypatch.chdir(tmp_path)
    return tmp_path / "log"


def add(log: Path, text: str) -> None:
    with log.open("a", encoding="utf-8") as file:
        file.write(text)


def test_each_event_is_one_line(log: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """EVENT, its name, its session and an excerpt."""
    log.write_text(
        START
        + says("one\n  two\tthree")
        + line("tool.call", session_id="ses 1", toolCallId="t", title="ls", kind="execute", status="pending")
        + line("tool.call_update", session_id="ses 1", toolCallId="t", status="completed")
        + line("permission.request", request_id="p1", question="ls?", options=[{"optionId": "once"}], tool="execute")
        + line("some.event", a=1)
        + line("odd", session_id="")
        + END
    )
    assert main(["watch", "log"]) == 0
    assert capfd.readouterr() == (
        "EVENT run.start - run_a: scripted in /d\n"
        "EVENT agent.message_chunk ses_1 one two three\n"
        "EVENT tool.call ses_1 ls [execute] pending\n"
        "EVENT tool.call_update ses_1 ls: completed\n"
        "EVENT permission.request - p1 ls? [once]\n"
        "EVENT some.event - a=1\n"
        "EVENT odd -\n"
        "EVENT run.end - DONE end_turn\n",
        "",
    )


@pytest.mark.parametrize(("count", "shown"), [(120, "x" * 120), (121, "x" * 119 + "…")])
def test_an_excerpt_has_at_most_120_characters(
    log: Path, capfd: pytest.CaptureFixture[str], count: int, shown: str
) -> None:
    """The cut is marked."""
    log.write_text(says("x" * count))
    assert main(["watch", "log"]) == 0
    assert capfd.readouterr().out == f"EVENT agent.message_chunk ses_1 {shown}\n"


def test_what_an_agent_says_does_not_act_on_the_terminal(log: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """Nor can it begin a line of its own."""
    log.write_text(says("\x1b[2Ja\nEVENT\x07b\ud800") + line("e\n\x1bx", session_id="s\x07\n1"))
    assert main(["watch", "log"]) == 0
    assert capfd.readouterr().out == "EVENT agent.message_chunk ses_1 a EVENT b\nEVENT e_x s_1\n"


def test_classify_puts_the_class_first(log: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """In words as the first word, in JSON as the last member."""
    log.write_text(START + says("[finding]") + line("session.end", stop_reason="end_turn"))
    assert main(["watch", "--classify", "log"]) == 0
    assert [words.split()[:3] for words in capfd.readouterr().out.splitlines()] == [
        ["ACTIVITY", "EVENT", "run.start"],
        ["FINDING", "EVENT", "agent.message_chunk"],
        ["MILESTONE", "EVENT", "session.end"],
    ]
    assert main(["watch", "--classify", "--format", "json", "log"]) == 0
    told = [json.loads(each) for each in capfd.readouterr().out.splitlines()]
    assert [each.pop("classify") for each in told] == ["ACTIVITY", "FINDING", "MILESTONE"]
    assert told == [json.loads(each) for each in log.read_text().splitlines()]


def test_json_is_the_log_as_it_stands(log: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """Byte for byte, whatever the numbers are."""
    log.write_text('{"event":"x","a":1e999,"b":1.10,"c":"\\ud800ä"}\n' + START)
    assert main(["watch", "--format", "json", "log"]) == 0
    assert capfd.readouterr().out == log.read_text()


def test_accumulate_makes_one_line_of_a_message(log: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """Classified as a whole; what is still open at the end of the log is shown as far as it came."""
    log.write_text(says("confidence: ") + says("75") + says("%") + line("turn.end", session_id="ses_1") + says("b"))
    assert main(["watch", "--accumulate", "--classify", "log"]) == 0
    assert capfd.readouterr().out.splitlines() == [
        "FINDING EVENT agent.message_chunk ses_1 confidence: 75%",
        "ACTIVITY EVENT turn.end ses_1",
        "ACTIVITY EVENT agent.message_chunk ses_1 b",
    ]
    assert main(["watch", "--accumulate", "--format", "json", "log"]) == 0
    assert json.loads(capfd.readouterr().out.splitlines()[0])["content"] == {"type": "text", "text": "confidence: 75%"}


@pytest.mark.parametrize(
    ("malformed", "problem"),
    [
        ("{", "it is no JSON ("),
        ("[1]", "it is no object with an event"),
        ('{"event":1}', "it is no object with an event"),
        ('{"event":"x","a":NaN}', "it is no JSON (NaN is no value)"),
        ('{"event":"x"}{"event":"y"}', "it is no JSON ("),
        ("[" * 100_000, "it is no JSON ("),
        ("\udcff", "it is no JSON ("),
    ],
)
def test_a_malformed_line_is_told_with_its_number(
    log: Path, capfd: pytest.CaptureFixture[str], malformed: str, problem: str
) -> None:
    """On stderr, and the others are shown; blank lines are nothing."""
    text = f"{START}\n{malformed}\n{END}"
    log.write_bytes(text.encode(errors="surrogateescape"))
    assert main(["watch", "log"]) == 0
    out, err = capfd.readouterr()
    assert len(out.splitlines()) == 2
    assert err.startswith(f"avenor watch: log:3: malformed line: {problem}")
    assert len(err.splitlines()) == 1


def test_a_last_line_without_its_newline_is_left_out(log: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """It is not complete, and the cursor stays before it."""
    log.write_text(START + END[:-1])
    assert main(["watch", "--since-cursor", "cursor", "log"]) == 0
    out, err = capfd.readouterr()
    assert out == "EVENT run.start - run_a: scripted in /d\n"
    assert err == "avenor watch: log: the last line is not complete yet, and is left out\n"
    assert Path("cursor").read_text() == f"{len(START)}\n"


def test_the_cursor_keeps_what_has_been_seen(log: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """A byte offset, replaced in one step; the numbers of lines are those of the file."""
    log.write_text(START)
    watch = ["watch", "--since-cursor", "cursor", "log"]
    assert main(watch) == 0
    assert capfd.readouterr().out == "EVENT run.start - run_a: scripted in /d\n"
    before = os.stat("cursor").st_ino
    add(log, says("ä") + "x\n")
    assert main(watch) == 0
    out, err = capfd.readouterr()
    assert out == "EVENT agent.message_chunk ses_1 ä\n"
    assert err.startswith("avenor watch: log:3: ")
    assert Path("cursor").read_text() == f"{log.stat().st_size}\n"
    assert os.stat("cursor").st_ino != before
    assert main(watch) == 0
    assert capfd.readouterr() == ("", "")
    assert sorted(os.listdir()) == ["cursor", "log"]


def test_a_cursor_of_another_log_begins_anew(log: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """As after a rotation; and an empty cursor file is a new one."""
    log.write_text(START)
    for content, told in (("9999", True), ("3\n", True), ("", False)):
        Path("cursor").write_text(content)
        assert main(["watch", "--since-cursor", "cursor", "log"]) == 0
        out, err = capfd.readouterr()
        assert out == "EVENT run.start - run_a: scripted in /d\n"
        assert ("it is read from its beginning" in err) is told


@pytest.mark.parametrize("content", ["x", "-1", "1 2", START])
def test_a_file_that_is_no_cursor_is_left_alone(log: Path, capfd: pytest.CaptureFixture[str], content: str) -> None:
    """Or the log would be gone where both were taken for each other."""
    log.write_text(START)
    Path("cursor").write_text(content)
    assert main(["watch", "--since-cursor", "cursor", "log"]) == 1
    out, err = capfd.readouterr()
    assert out == ""
    assert err == "avenor watch: cursor holds no offset: it is no cursor file, and is left alone\n"
    assert Path("cursor").read_text() == content


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        (["none"], "none: No such file or directory"),
        (["."], ".: it is not a regular file"),
        (["--follow", "none/log"], "none/log: No such file or directory"),
        (["--since-cursor", "none/cursor", "log"], "none/cursor: No such file or directory"),
        (["--since-cursor", ".", "log"], ".: Is a directory"),
    ],
)
def test_a_file_that_cannot_be_used_is_status_1(
    log: Path, capfd: pytest.CaptureFixture[str], words: list[str], problem: str
) -> None:
    """It is named."""
    log.write_text(START)
    assert main(["watch", *words]) == 1
    assert capfd.readouterr().err == f"avenor watch: {problem}\n"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([], "LOG is missing"),
        (["a", "b"], "'b' is one argument too many"),
        (["--format", "xml", "a"], "--format: 'xml' is none of plain, json"),
    ],
)
def test_usage_errors_are_status_2(capfd: pytest.CaptureFixture[str], words: list[str], message: str) -> None:
    """With the usage below."""
    assert main(["watch", *words]) == 2
    assert capfd.readouterr().err.startswith(f"avenor watch: {message}")


class Following:
    """A `watch --follow` in a process of its own, whose stdout is a pipe."""

    def __init__(self, *flags: str) -> None:
        self.process = subprocess.Popen(
            [*WATCH, "--follow", *flags, "log"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, bufsize=1
        )

    def line(self) -> str:
        assert self.process.stdout is not None
        return self.process.stdout.readline()

    def complaint(self) -> str:
        assert self.process.stderr is not None
        return self.process.stderr.readline()

    def finish(self) -> tuple[str, str, int]:
        out, err = self.process.communicate(timeout=60)
        return out, err, self.process.returncode


Follow = Callable[..., Following]


@pytest.fixture
def follow(log: Path) -> Iterator[Follow]:
    """Starts them; what a test leaves running is killed."""
    started: list[Following] = []

    def start(*flags: str) -> Following:
        started.append(Following(*flags))
        return started[-1]

    yield start
    for each in started:
        each.process.kill()
        each.process.communicate()


def test_follow_shows_each_event_at_once_and_ends_with_the_run(log: Path, follow: Follow) -> None:
    """Into a pipe, too: each line is there before the next event is written, a torn one when its rest is."""
    log.write_text(START)
    watch = follow()
    assert watch.line() == "EVENT run.start - run_a: scripted in /d\n"
    add(log, says("a")[:20])
    add(log, says("a")[20:])
    assert watch.line() == "EVENT agent.message_chunk ses_1 a\n"
    add(log, END)
    assert watch.finish() == ("EVENT run.end - DONE end_turn\n", "", 0)


def test_follow_ends_at_once_where_the_run_had_ended(log: Path, follow: Follow) -> None:
    """Also behind the end, where a cursor has brought it."""
    log.write_text(START + END)
    assert len(follow("--since-cursor", "cursor").finish()[0].splitlines()) == 2
    assert follow("--since-cursor", "cursor").finish() == ("", "", 0)


def test_follow_waits_for_a_log_that_is_not_there(log: Path, follow: Follow) -> None:
    """Who watches may be quicker than the run."""
    watch = follow()
    assert watch.complaint() == "avenor watch: log is not there yet; waiting for it\n"
    log.write_text(START + END)
    assert len(watch.finish()[0].splitlines()) == 2


def test_follow_goes_on_with_a_log_that_is_truncated_or_replaced(log: Path, follow: Follow) -> None:
    """A new run on the same path is shown from its beginning, and the messages before it are not lost."""
    log.write_text(START + says("of "))
    watch = follow("--accumulate", "--since-cursor", "cursor")
    assert watch.line().startswith("EVENT run.start")
    add(log, says("one"))
    eventually_sync(lambda: Path("cursor").exists() and Path("cursor").read_text() == f"{len(START)}\n")
    add(log, line("session.info"))
    assert watch.line() == "EVENT session.info -\n"
    log.write_text(START)
    assert "was truncated" in watch.complaint()
    assert [watch.line(), watch.line()] == [
        "EVENT agent.message_chunk ses_1 of one\n",
        "EVENT run.start - run_a: scripted in /d\n",
    ]
    log.rename("log.1")
    log.write_text(END)
    assert "was replaced" in watch.complaint()
    assert watch.finish() == ("EVENT run.end - DONE end_turn\n", "", 0)
    assert Path("cursor").read_text() == f"{len(END)}\n"


def test_an_interrupt_ends_it_with_what_it_has(log: Path, follow: Follow) -> None:
    """Status 130, the open message shown, the cursor behind it."""
    log.write_text(START + says("a") + says("b"))
    watch = follow("--accumulate", "--since-cursor", "cursor")
    assert watch.line().startswith("EVENT run.start")
    eventually_sync(lambda: Path("cursor").exists())
    watch.process.send_signal(signal.SIGINT)
    assert watch.finish() == ("EVENT agent.message_chunk ses_1 ab\n", "", 130)
    assert Path("cursor").read_text() == f"{log.stat().st_size}\n"


def test_a_reader_that_leaves_ends_it_before_more_comes(log: Path, follow: Follow) -> None:
    """As in `watch --follow | head -1`; status 141."""
    log.write_text(START)
    watch = follow()
    assert watch.line().startswith("EVENT run.start")
    assert watch.process.stdout is not None
    watch.process.stdout.close()
    assert watch.process.wait(60) == 141


def test_what_could_not_be_printed_is_read_again(log: Path) -> None:
    """The cursor stays before it."""
    if not os.path.exists("/dev/full"):
        pytest.skip("there is no /dev/full")
    log.write_text(START)
    with open("/dev/full", "wb") as full:
        words = [*WATCH, "--since-cursor", "cursor", "log"]
        done = subprocess.run(words, stdout=full, stderr=subprocess.PIPE, check=False)
    assert done.returncode == 1
    assert done.stderr.decode().startswith("avenor: cannot write the output: ")
    assert not Path("cursor").exists()
