"""What a spawn asks for, and how it is refused."""

import json
import os
from pathlib import Path
from typing import Any

import msgspec
import pytest

from avenor.host.rundir import RunDir
from avenor.protocol.errors import AvenorError
from avenor.protocol.manifest.binding import ResolvedManifest
from avenor.protocol.outcomes import parse_sentinel
from avenor.stable.records import Surroundings, make_record
from avenor.stable.requests import read_request, tell_refusal


def raw(**params: Any) -> bytes:
    """Params that can be carried out, but for what is given."""
    return msgspec.json.encode({"prompt": "x", "dir": "/", "backend": "scripted", **params})


def test_a_prompt_file_is_read_at_once(tmp_path: Path) -> None:
    """Relative to dir; the text counts as it was when the spawn was accepted."""
    (tmp_path / "p.txt").write_text("from a file")
    request = read_request(raw(prompt=None, prompt_file="p.txt", dir=str(tmp_path)), claim_seconds=30)
    assert request.prompt == "from a file"


@pytest.mark.parametrize(
    ("params", "field"),
    [
        ({"dir": "relative"}, "dir"),
        ({"dir": "/nowhere/at/all"}, "dir"),
        ({"prompt": None}, "prompt"),
        ({"prompt": None, "prompt_file": "/nowhere/p.txt"}, "prompt_file"),
        ({"prompt": None, "prompt_file": "/dev/null"}, "prompt_file"),
        ({"backend": "nope"}, "backend"),
        ({"script": "/nowhere/s.json"}, "script"),
        ({"script": "/dev/null"}, "script"),
        ({"timeout": "soon"}, "timeout"),
        ({"wait": "for ever"}, "wait"),
        ({"zap": 1}, "zap"),
    ],
)
def test_a_refusal_names_the_field(params: dict[str, Any], field: str) -> None:
    """−32602 with `data.field` and all mistakes in `data.errors`."""
    with pytest.raises(AvenorError) as refused:
        read_request(raw(**params), claim_seconds=30)
    assert refused.value.code == -32602
    assert refused.value.data["field"] == field
    assert refused.value.data["errors"][0]["message"]


@pytest.mark.parametrize("field", ["prompt_file", "script"])
def test_a_file_that_could_make_us_wait_is_refused(tmp_path: Path, field: str) -> None:
    """A FIFO that nobody writes to would stop the whole supervisor."""
    os.mkfifo(tmp_path / "pipe")
    given = {"prompt": None} if field == "prompt_file" else {}
    with pytest.raises(AvenorError, match="not a regular file") as refused:
        read_request(raw(**given, **{field: str(tmp_path / "pipe")}), claim_seconds=30)
    assert refused.value.data["field"] == field


def test_all_mistakes_are_listed() -> None:
    """A client mends them in one go."""
    with pytest.raises(AvenorError) as refused:
        read_request(raw(prompt=1, max_retries="2", zap=1), claim_seconds=30)
    assert {each["path"] for each in refused.value.data["errors"]} == {"$.prompt", "$.max_retries", "$.zap"}


def test_the_supervisors_claim_timeout_is_the_default() -> None:
    """A spawn that says so has its own."""
    assert read_request(raw(), claim_seconds=7).spec.permission_claim_timeout == 7
    assert read_request(raw(permission_claim_timeout="1m"), claim_seconds=7).spec.permission_claim_timeout == 60


def test_the_servers_of_the_file_are_in_the_request(tmp_path: Path) -> None:
    """Read when the spawn is accepted, like the prompt; a mistake names its field."""
    (tmp_path / "mcp.json").write_text('{"mcpServers": {"b": {"command": "x"}}}')
    given = {"dir": str(tmp_path), "mcp_config": "mcp.json", "mcp_servers": [{"name": "a", "command": "y"}]}
    request = read_request(raw(**given), claim_seconds=30)
    assert [server.name for server in request.spec.mcp_servers] == ["a", "b"]
    (tmp_path / "mcp.json").write_text('{"mcpServers": {"b": {}, "c": 1}}')
    with pytest.raises(AvenorError) as refused:
        read_request(raw(**given), claim_seconds=30)
    assert refused.value.data["field"] == "mcp_config"
    assert [found["path"] for found in refused.value.data["errors"]] == ["$.mcpServers.b", "$.mcpServers.c"]


AROUND = Surroundings(socket="s", environ={}, umask=0o077, parked_timeout=0, on_crash="fail", version="1")
MANIFESTS = Path(__file__).parents[1] / "data" / "manifests"


def test_a_manifest_is_loaded_and_checked_by_the_supervisor(tmp_path: Path) -> None:
    """As loops and teams are; both files are relative to dir."""
    given: dict[str, Any] = {"dir": str(MANIFESTS), "prompt": None, "manifest": "seed.yaml"}
    request = read_request(raw(**given, roster="roster-scripted.yaml", max_parallel=2), claim_seconds=30)
    assert isinstance(request.config, ResolvedManifest)
    assert (request.spec.max_parallel, request.spec.roster) == (2, str(MANIFESTS / "roster-scripted.yaml"))
    record = make_record(request, RunDir(tmp_path / "rt_1"), AROUND)
    assert (record.kind, record.parks) == ("manifest", False)


def test_every_mistake_in_a_manifest_is_in_the_refusal(tmp_path: Path) -> None:
    """With file, path, line and column, and the sentinel that was named."""
    (tmp_path / "m.yaml").write_text("schema_version: team.v1\nteam_id: 7\nextra: 1\n")
    params = raw(
        dir=str(tmp_path),
        prompt=None,
        manifest="m.yaml",
        roster=str(MANIFESTS / "roster-scripted.yaml"),
        sentinel_file="end",
    )
    with pytest.raises(AvenorError) as refused:
        read_request(params, claim_seconds=30)
    assert (refused.value.code, refused.value.data["field"]) == (-32602, "manifest")
    places = [(each["path"], each["line"], each["column"]) for each in refused.value.data["errors"]]
    assert {("$.team_id", 2, 1), ("$.extra", 3, 1)} < set(places)
    tell_refusal(params, refused.value)
    assert (tmp_path / "end").read_text().startswith("FAILED\n")


def test_a_backend_of_the_users_is_one_if_the_supervisor_knows_it(tmp_path: Path) -> None:
    """For the run, and for the members of a team."""
    names = ("scripted", "mine")
    team = {"team": [{"name": "a", "prompt": "a", "backend": "mine"}]}
    (tmp_path / "t.json").write_text(json.dumps(team))
    given = {"dir": str(tmp_path), "prompt": None, "team_file": "t.json"}
    assert read_request(raw(backend="mine"), claim_seconds=30, backends=names).spec.backend == "mine"
    assert read_request(raw(**given), claim_seconds=30, backends=names).config is not None
    with pytest.raises(AvenorError, match="'mine' is no backend"):
        read_request(raw(**given), claim_seconds=30)


@pytest.mark.parametrize("sentinel", ["run.done", None])
def test_a_refusal_is_told_in_the_sentinel_that_was_named(tmp_path: Path, sentinel: str | None) -> None:
    """Relative to dir; where none was named, or it cannot be found, nothing is written."""
    error = AvenorError("no")
    tell_refusal(raw(dir=str(tmp_path), sentinel_file=sentinel, run_id="r1"), error)
    tell_refusal(raw(dir="relative", sentinel_file="run.done"), error)
    tell_refusal(raw(dir=str(tmp_path), sentinel_file="a\0b"), error)
    tell_refusal(b"[]", error)
    tell_refusal(b"{", error)
    written = [path.name for path in tmp_path.iterdir()]
    assert written == ([sentinel] if sentinel else [])
    if sentinel:
        outcome = parse_sentinel((tmp_path / sentinel).read_text())
        assert (outcome.status, outcome.stop_reason, outcome.run_id) == ("FAILED", "invalid_params", "r1")
