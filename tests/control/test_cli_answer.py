"""`avenor answer`: permission files from the other side."""

import json
import os
from pathlib import Path
from typing import Any

import pytest

from avenor.cli import main

REQUEST: dict[str, Any] = {
    "request_id": "perm_3",
    "session_id": "ses_1",
    "tool": "execute",
    "question": "ls",
    "options": [
        {"optionId": "once", "kind": "allow_once", "name": "Once"},
        {"optionId": "no", "kind": "reject_once", "name": "No"},
    ],
    "payload": {},
}


@pytest.fixture
def base(tmp_path: Path) -> Path:
    """A BASE with a request."""
    (tmp_path / "run.perm.req").write_text(json.dumps(REQUEST))
    return tmp_path / "run.perm"


def response(base: Path) -> Any:
    path = Path(f"{base}.req.response")
    return json.loads(path.read_text()) if path.exists() else None


@pytest.mark.parametrize(
    ("words", "written"),
    [
        (["--option", "once"], {"outcome": "selected", "option_id": "once", "request_id": "perm_3"}),
        (
            ["--option", "no", "--message", "not now"],
            {"outcome": "selected", "option_id": "no", "request_id": "perm_3", "message": "not now"},
        ),
        (["--outcome", "cancelled"], {"outcome": "cancelled", "option_id": None, "request_id": "perm_3"}),
    ],
)
def test_an_answer_is_written_with_the_id_of_its_request(
    base: Path, capfd: pytest.CaptureFixture[str], words: list[str], written: dict[str, Any]
) -> None:
    """In one step, readable by its owner only, and nothing else is left in the folder."""
    assert main(["answer", str(base), *words]) == 0
    assert capfd.readouterr() == ("answered\n", "")
    assert response(base) == written
    assert sorted(os.listdir(base.parent)) == ["run.perm.req", "run.perm.req.response"]
    assert os.stat(f"{base}.req.response").st_mode & 0o777 == 0o600


def test_the_base_may_be_written_as_for_the_handler(base: Path) -> None:
    """`file:BASE` is what --permission-handler takes."""
    assert main(["answer", f"file:{base}", "--option", "once"]) == 0
    assert response(base) is not None


def test_without_a_request_there_is_nothing_to_answer(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """Status 2, and nothing is written."""
    assert main(["answer", str(tmp_path / "x"), "--option", "once"]) == 2
    assert f"no request at {tmp_path / 'x.req'}" in capfd.readouterr().err
    assert os.listdir(tmp_path) == []


def test_an_option_that_is_not_offered_is_refused_with_those_that_are(
    base: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """Status 2."""
    assert main(["answer", str(base), "--option", "always"]) == 2
    err = capfd.readouterr().err
    assert "option 'always' is not offered; choose one of\n  once  Once\n  no  No\n" in err
    assert response(base) is None


def test_an_answer_that_is_there_stays_unless_forced(base: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """Status 2 without --force."""
    assert main(["answer", str(base), "--option", "once"]) == 0
    assert main(["answer", str(base), "--option", "no"]) == 2
    assert "there is an answer already" in capfd.readouterr().err
    assert response(base)["option_id"] == "once"
    assert main(["answer", str(base), "--option", "no", "--force"]) == 0
    assert response(base)["option_id"] == "no"
    assert sorted(os.listdir(base.parent)) == ["run.perm.req", "run.perm.req.response"]


@pytest.mark.parametrize(
    "content",
    [
        "{",
        "[]",
        '{"request_id":"x"}',
        '{"request_id":1,"options":[]}',
        '{"request_id":"x","options":{}}',
        '{"request_id":"x","options":["once"]}',
        "[" * 100_000,
    ],
)
def test_a_request_that_cannot_be_read_is_status_1(base: Path, capfd: pytest.CaptureFixture[str], content: str) -> None:
    """It names the file."""
    Path(f"{base}.req").write_text(content)
    assert main(["answer", str(base), "--option", "once"]) == 1
    assert f"{base}.req is no permission request" in capfd.readouterr().err


def test_a_file_that_cannot_be_read_is_status_1(base: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """A named pipe in its place, for one, is not waited for."""
    Path(f"{base}.req").unlink()
    os.mkfifo(f"{base}.req")
    assert main(["answer", str(base), "--option", "once"]) == 1
    assert f"avenor answer: {base}.req: it is not a regular file" in capfd.readouterr().err


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--option", "once"], "BASE is missing"),
        (["base"], "--option ID is needed, or --outcome cancelled"),
        (["base", "--outcome", "maybe"], "--outcome: 'maybe' is none of selected, cancelled"),
    ],
)
def test_usage_errors_are_status_2(capfd: pytest.CaptureFixture[str], words: list[str], message: str) -> None:
    """With the usage below."""
    assert main(["answer", *words]) == 2
    assert capfd.readouterr().err.startswith(f"avenor answer: {message}")
