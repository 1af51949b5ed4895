"""`--http-debug` and `--http-token-file` on the command line."""

from pathlib import Path

import pytest

from avenor.cli.commands import RUN, STABLE
from avenor.cli.http_flags import check_http
from avenor.cli.parsing import UsageError, parse
from avenor.cli.stable import supervisor_options
from avenor.cli.table import Command

COMMANDS = pytest.mark.parametrize("command", [RUN, STABLE])


@COMMANDS
def test_what_was_given_is_passed_on(command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The file as an absolute path; nothing where nothing was asked for."""
    monkeypatch.chdir(tmp_path)
    assert check_http(command, parse(command, [])) == {}
    assert check_http(command, parse(command, ["--http-debug", ":0"])) == {"http_debug": ":0"}
    given = parse(command, ["--http-debug", ":0", "--http-token-file", "t"])
    assert check_http(command, given) == {"http_debug": ":0", "http_token_file": str(tmp_path / "t")}


@COMMANDS
@pytest.mark.parametrize(
    ("words", "problem"),
    [
        (["--http-token-file", "t"], "goes with --http-debug ADDR"),
        (["--http-debug", "192.0.2.1:80"], "--http-debug: .* is no loopback address"),
        (["--http-debug", ":0", "--http-token-file", ""], "--http-token-file: it is empty"),
    ],
)
def test_what_cannot_be_used_is_refused(command: Command, words: list[str], problem: str) -> None:
    """With the flag's name."""
    with pytest.raises(UsageError, match=problem):
        check_http(command, parse(command, words))


def test_the_token_of_a_supervisor_is_beside_its_socket(tmp_path: Path) -> None:
    """Unless another file was named."""
    words = ["--control-socket", str(tmp_path / "s"), "--http-debug", ":0"]
    assert supervisor_options(parse(STABLE, words)).token_path == str(tmp_path / "s.token")
    own = [*words, "--http-token-file", str(tmp_path / "t")]
    assert supervisor_options(parse(STABLE, own)).token_path == str(tmp_path / "t")
