"""`avenor report`: logs to a page, and to figures."""

import json
import os
from pathlib import Path

import pytest

from avenor.cli import main

LOG = (
    '{"event":"run.start","seq":1,"ts":1000,"run_id":"run_a","run_label":"nightly"}\n'
    '{"event":"run.end","seq":2,"ts":3000,"status":"DONE","exit_code":0,"stop_reason":"end_turn"}\n'
)


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working directory with two logs."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a").write_text(LOG)
    (tmp_path / "b").write_text(LOG.replace("nightly", "daily"))
    return tmp_path


@pytest.mark.parametrize("words", [["-o", "r.html"], ["-o=r.html"], ["--output", "r.html"], ["--output=r.html"]])
def test_the_page_is_written_to_a_file(folder: Path, capfd: pytest.CaptureFixture[str], words: list[str]) -> None:
    """In one step, for all to read; nothing is printed."""
    assert main(["report", "a", *words]) == 0
    assert capfd.readouterr() == ("", "")
    assert "<title>Report: nightly</title>" in (folder / "r.html").read_text()
    assert os.stat("r.html").st_mode & 0o777 == 0o644
    assert sorted(os.listdir()) == ["a", "b", "r.html"]


def test_several_logs_are_one_page_and_one_array(folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """In the order in which they were given."""
    assert main(["report", "b", "a", "-o", "r.html", "--json"]) == 0
    told = json.loads(capfd.readouterr().out)
    assert [(each["file"], each["run_label"], each["duration_ms"]) for each in told] == [
        ("b", "daily", 2000),
        ("a", "nightly", 2000),
    ]
    assert "<title>Report of 2 runs</title>" in (folder / "r.html").read_text()


def test_json_needs_no_page(capfd: pytest.CaptureFixture[str]) -> None:
    """And writes none."""
    assert main(["report", "a", "--json"]) == 0
    assert len(json.loads(capfd.readouterr().out)) == 1
    assert sorted(os.listdir()) == ["a", "b"]


def test_a_malformed_line_is_told_and_passed_over(folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """With its number; a torn last line is no line."""
    (folder / "a").write_text("x\n" + LOG + '{"event":"no')
    assert main(["report", "a", "--json"]) == 0
    out, err = capfd.readouterr()
    assert json.loads(out)[0]["events"] == 2
    assert err.startswith("avenor report: a:1: malformed line: it is no JSON")
    assert len(err.splitlines()) == 1


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        (["a", "none"], "none: No such file or directory"),
        (["."], ".: it is not a regular file"),
        (["a", "empty"], "empty holds no events"),
        (["a", "-o", "none/r.html"], "none/r.html: No such file or directory"),
        (["-o", "a", "b"], "a is there and is no page: it is left alone"),
        (["a", "-o", "."], ".: not a regular file, so it is left alone"),
    ],
)
def test_a_file_that_cannot_be_used_is_status_1(
    folder: Path, capfd: pytest.CaptureFixture[str], words: list[str], problem: str
) -> None:
    """It is named, and no page is left."""
    (folder / "empty").write_text("")
    assert main(["report", "--output", "r.html", *words]) == 1
    assert capfd.readouterr() == ("", f"avenor report: {problem}\n")
    assert not Path("r.html").exists()
    assert (folder / "a").read_text() == LOG


def test_an_older_page_is_replaced_and_an_empty_file_filled(folder: Path) -> None:
    """Whatever else is there is left alone."""
    (folder / "r.html").touch()
    for log, title in (("a", "nightly"), ("b", "daily")):
        assert main(["report", log, "-o", "r.html"]) == 0
        assert f"<title>Report: {title}</title>" in (folder / "r.html").read_text()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([], "LOG… is missing"),
        (["a"], "-o FILE is needed, or --json"),
        (["a", "-o"], "--output FILE: the value is missing"),
        (["a", "-o", ""], "--output: it is empty"),
    ],
)
def test_usage_errors_are_status_2(capfd: pytest.CaptureFixture[str], words: list[str], message: str) -> None:
    """Before any file is read."""
    assert main(["report", *words]) == 2
    assert capfd.readouterr().err.startswith(f"avenor report: {message}")
