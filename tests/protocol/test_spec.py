"""What a run may be asked, and what is refused with the field's name."""

from typing import Any

import msgspec
import pytest

from avenor.protocol.errors import InvalidParams
from avenor.protocol.mcp import McpServer
from avenor.protocol.spec import Record, RunSpec, SpawnParams, has_phases, permission_base, phase_spec, resolve_spec
from tests.protocol.manifest_changes import check, roster


def test_paths_resolve_against_dir_and_durations_become_seconds() -> None:
    """Whoever reads a resolved spec needs neither the caller's folder nor a duration parser."""
    spec = resolve_spec(
        RunSpec(prompt="go", dir="/home//me/repo", on_event="e.ndjson", sentinel_file="../run.done", timeout="1m30s")
    )

    assert spec.dir == "/home/me/repo"
    assert spec.on_event == "/home/me/repo/e.ndjson"
    assert spec.sentinel_file == "/home/me/run.done"
    assert spec.timeout == 90.0
    assert spec.handshake_timeout == 60.0
    assert spec.permission_claim_timeout == 30.0


@pytest.mark.parametrize(
    ("name", "value"),
    [("dir", "/d\udcff"), ("prompt", "caf\udce9"), ("label", "\ud800"), ("env", {"A": "\udcff"}), ("script", "\udcff")],
)
def test_what_utf8_cannot_say_is_refused(name: str, value: object) -> None:
    """As a command line has it whose words, or whose directory's name, are other bytes."""
    spec = msgspec.convert({"prompt": "go", "dir": "/d", "backend": "scripted", name: value}, RunSpec)
    with pytest.raises(InvalidParams, match=f"^{name}: it is not UTF-8$") as caught:
        resolve_spec(spec)
    assert caught.value.data["field"] == name


@pytest.mark.parametrize(
    ("given", "handler"),
    [
        ({"sentinel_file": "run.done"}, "file:/d/run.perm"),
        ({"sentinel_file": "run.env"}, "file:/d/run.env.perm"),
        ({"sentinel_file": "run.done", "permission_handler": "file:asks/x"}, "file:/d/asks/x"),
        ({}, None),
    ],
)
def test_the_permission_file_is_derived_from_the_sentinel(given: dict[str, Any], handler: str | None) -> None:
    """A trailing .done becomes .perm, else .perm is appended; an explicit handler wins."""
    assert handler == resolve_spec(RunSpec(prompt="go", dir="/d", **given)).permission_handler


@pytest.mark.parametrize(("handler", "base"), [("file:/d/x", "/d/x"), (None, None)])
def test_the_base_of_a_file_handler_is_its_path(handler: str | None, base: str | None) -> None:
    """`file:` is taken off."""
    assert base == permission_base(handler)


@pytest.mark.parametrize(
    ("backend", "asked", "seconds"),
    [("opencode-acp", None, 900.0), ("scripted", None, 0.0), ("opencode-acp", "0", 0.0), ("scripted", "5m", 300.0)],
)
def test_agents_known_to_go_silent_have_a_progress_timeout(backend: str, asked: str | None, seconds: float) -> None:
    """The default is 15 minutes where it is needed and off elsewhere; what was asked for wins."""
    spec = resolve_spec(RunSpec(prompt="go", dir="/d", backend=backend, progress_timeout=asked))

    assert seconds == spec.progress_timeout


@pytest.mark.parametrize(
    ("given", "field"),
    [
        ({}, "prompt"),
        ({"prompt": " \n"}, "prompt"),
        ({"prompt": "a\0b"}, "prompt"),
        ({"prompt": "go", "prompt_file": "p"}, "prompt_file"),
        ({"prompt": "go", "backend": "opencode"}, "backend"),
        ({"prompt": "go", "backend": "acp"}, "agent_command"),
        ({"prompt": "go", "agent_command": "x"}, "agent_command"),
        ({"prompt": "go", "script": "s.json"}, "script"),
        ({"prompt": "go", "max_retries": -1}, "max_retries"),
        ({"prompt": "go", "env": {"A=B": "c"}}, "env"),
        ({"prompt": "go", "env": {"": "c"}}, "env"),
        ({"prompt": "go", "env": {"A": "\0"}}, "env"),
        ({"prompt": "go", "model": ""}, "model"),
        ({"prompt_file": ""}, "prompt_file"),
        ({"prompt": "go", "timeout": "-1s"}, "timeout"),
        ({"prompt": "go", "handshake_timeout": "soon"}, "handshake_timeout"),
        ({"prompt": "go", "permission_handler": "http:x"}, "permission_handler"),
        ({"prompt": "go", "permission_handler": "file:"}, "permission_handler"),
        ({"prompt": "go", "permission_handler": "file:a\0b"}, "permission_handler"),
        ({"prompt": "go", "dir": "relative"}, "dir"),
        ({"loop_file": "l.json", "team_file": "t.json"}, "team_file"),
        ({"loop_file": "l.json", "resume": "ses_1"}, "resume"),
        ({"team_file": "t.json", "resume": "ses_1"}, "resume"),
        ({"team_file": ""}, "team_file"),
        ({"team_file": "t.json", "backend": "acp"}, "agent_command"),
        ({"prompt": "go", "fail_on_max_iterations": True}, "fail_on_max_iterations"),
    ],
)
def test_what_cannot_be_used_is_refused_with_the_name_of_its_field(given: dict[str, Any], field: str) -> None:
    """The message starts with the field, and `data.field` says it to programs."""
    fields: dict[str, Any] = {"dir": "/d", **given}

    with pytest.raises(InvalidParams) as caught:
        resolve_spec(RunSpec(**fields))

    assert field == caught.value.data["field"]


MANIFEST: dict[str, Any] = {"manifest": "m.yaml", "roster": "r.yaml", "dir": "/d"}


def test_a_manifest_needs_no_prompt_and_its_files_are_relative_to_dir() -> None:
    """Both of them."""
    spec = resolve_spec(RunSpec(**MANIFEST, max_parallel=2, unsandboxed=True))
    assert (spec.manifest, spec.roster, spec.max_parallel, spec.unsandboxed) == ("/d/m.yaml", "/d/r.yaml", 2, True)
    assert not has_phases(spec)


@pytest.mark.parametrize(
    ("change", "field", "reason"),
    [
        ({"roster": None}, "roster", "a manifest needs one"),
        ({"roster": ""}, "roster", "give it some text"),
        ({"manifest": ""}, "manifest", "give it some text"),
        ({"max_parallel": 0}, "max_parallel", "it must be 1 or more"),
        ({"prompt": "go"}, "prompt", "the manifest has the contract"),
        ({"prompt_file": "p"}, "prompt_file", "the manifest has the contract"),
        ({"loop_file": "l"}, "loop_file", "not both"),
        ({"team_file": "t"}, "team_file", "not both"),
        ({"resume": "s"}, "resume", "every member has a session of its own"),
        ({"auto_approve": True}, "auto_approve", "the manifest says what each member may do"),
        ({"mcp_config": "m.json"}, "mcp_config", "only the tools that it declares"),
        ({"mcp_servers": [McpServer(name="a", command="a")]}, "mcp_servers", "only the tools that it declares"),
        ({"agent": "a"}, "agent", "the profiles of the roster say it"),
        ({"model": "m"}, "model", "the profiles of the roster say it"),
        ({"thinking": "t"}, "thinking", "the profiles of the roster say it"),
        ({"backend": "acp", "agent_command": "x"}, "agent_command", "the profiles of the roster say it"),
        ({"backend": "scripted", "script": "s"}, "script", "the profiles of the roster say it"),
        (
            {"backend": "opencode-http", "server_url": "http://x"},
            "server_url",
            "the profiles of the roster say it",
        ),
        ({"manifest": None, "prompt": "go"}, "roster", "it is for manifests"),
        ({"manifest": None, "roster": None, "prompt": "go", "max_parallel": 1}, "max_parallel", "it is for manifests"),
        ({"manifest": None, "roster": None, "prompt": "go", "unsandboxed": True}, "unsandboxed", "it is for manifests"),
    ],
)
def test_with_a_manifest_only_what_it_leaves_open_can_be_given(change: dict[str, Any], field: str, reason: str) -> None:
    """What members do and use is in the manifest and its roster, and nowhere else."""
    with pytest.raises(InvalidParams, match=reason) as caught:
        resolve_spec(RunSpec(**{**MANIFEST, **change}))
    assert caught.value.data["field"] == field


def test_a_record_with_a_manifest_is_one_of_a_manifest() -> None:
    """Also when it was read from a file."""
    manifest = check().manifest
    record = Record(runtime_id="", run_id="r", spec=resolve_spec(RunSpec(**MANIFEST)), prompt="", config=manifest)
    again = msgspec.json.decode(msgspec.json.encode(record), type=Record)
    assert (again, again.kind) == (record, "manifest")


def test_a_run_is_said_to_be_on_the_backends_that_it_uses() -> None:
    """Nobody in a manifest has the one that the run would have without."""
    names = roster()
    names["profiles"]["analysis-small"] = {"backend": "pi", "enforces_tools": ["execute", "fetch"]}
    spec = resolve_spec(RunSpec(**MANIFEST))

    manifest = Record(runtime_id="", run_id="r", spec=spec, prompt="", config=check(names=names).manifest)

    assert manifest.backend == "pi, scripted"
    assert msgspec.structs.replace(manifest, config=None).backend == "opencode-acp"


def test_a_loop_or_team_needs_no_prompt_and_its_members_may_use_what_the_run_does_not() -> None:
    """The program of backend acp, say: which members use it is known only when the config has been read."""
    spec = resolve_spec(RunSpec(team_file="t.json", dir="/d", agent_command="x", script="s.json"))

    assert (spec.team_file, spec.script, has_phases(spec)) == ("/d/t.json", "/d/s.json", True)
    assert not has_phases(resolve_spec(RunSpec(prompt="go", dir="/d")))


@pytest.mark.parametrize(
    ("asked", "backend", "seconds"),
    [(None, None, 900.0), (None, "scripted", 0.0), ("5m", "scripted", 300.0), ("5m", None, 300.0)],
)
def test_a_member_keeps_what_it_does_not_override(asked: str | None, backend: str | None, seconds: float) -> None:
    """With another backend it gets that one's progress timeout, unless the run asked for one."""
    spec = resolve_spec(RunSpec(team_file="t.json", dir="/d", model="m", progress_timeout=asked))

    changed = phase_spec(spec, "planner", None, backend)

    assert (changed.agent, changed.model, changed.backend) == ("planner", "m", backend or "opencode-acp")
    assert changed.progress_timeout == seconds


def test_spawn_params_are_strict_about_names() -> None:
    """A misspelt member is refused, not ignored."""
    with pytest.raises(msgspec.ValidationError, match="promt"):
        msgspec.json.decode(b'{"promt":"go"}', type=SpawnParams)


def test_spawn_params_hold_the_run_that_the_runtime_acts_on() -> None:
    """What is for the supervisor alone does not reach the runtime."""
    params = SpawnParams(prompt="go", dir="/d", key="k", wait="started", label="x")

    assert RunSpec(prompt="go", dir="/d", label="x") == params.run_spec()


def test_a_record_tells_the_spawn_that_would_make_the_same_run() -> None:
    """All that was asked for, and what the supervisor has decided of it, but not its key."""
    spec = RunSpec(prompt="go", dir="/d", env={"A": "b"}, timeout=60.0)
    record = Record(runtime_id="rt_2", run_id="r", spec=spec, prompt="go", key="k", parent_id="rt_1", on_crash="resume")

    params = record.spawn_params

    assert params.run_spec() == spec
    assert (params.key, params.parent_id, params.on_crash) == (None, "rt_1", "resume")


def test_a_record_of_a_newer_version_loads() -> None:
    """Unknown members of a record are ignored, so that an older supervisor can read it."""
    record = msgspec.json.decode(
        b'{"runtime_id":"rt_1","run_id":"r","spec":{"prompt":"go"},"prompt":"go","from_the_future":1}', type=Record
    )

    assert record.runtime_id == "rt_1"
