"""Opening a thread of codex: what is asked for, what is checked, and what goes wrong."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec
import pytest
import trio

from avenor.host import tree
from avenor.protocol.errors import AgentExited, SpawnError
from avenor.protocol.mcp import McpServer
from avenor.runtimes.backends.base import BackendRefused, Capabilities
from avenor.runtimes.backends.codex import CodexBackend
from avenor.runtimes.backends.registry import get_backend
from tests.runtimes.agent_kit import TAG_NAME, RecordingSink, make_params, opened, python_agent
from tests.runtimes.codex_checks import check_call
from tests.runtimes.codex_kit import codex_in_place, heard, small_codex, thread

_READ_ONLY = {"type": "readOnly"}


async def _refusal(folder: Path, replies: Mapping[str, object], **wanted: object) -> BackendRefused:
    backend, params = small_codex(folder, **replies)
    params = msgspec.structs.replace(params, **wanted)
    async with trio.open_nursery() as nursery:
        with pytest.raises(BackendRefused) as caught:
            await backend.open(params, RecordingSink(), nursery)
    assert tree.tagged(*params.tag) == []
    return caught.value


def _opening(folder: Path, method: str = "thread/start") -> dict[str, Any]:
    """The params with which the thread was opened; all calls are as codex's schemas say."""
    calls = heard(folder)
    for call in calls:
        check_call(call)
    (params,) = [call["params"] for call in calls if call["method"] == method]
    return dict(params)


def test_the_registry_knows_it() -> None:
    """By the name of its profile."""
    backend = get_backend("codex-app-server")
    assert isinstance(backend, CodexBackend)
    assert backend.name == "codex-app-server"


async def test_codex_is_made_to_ask_as_it_comes(tmp_path: Path) -> None:
    """With nothing asked for, it works in the sandbox of the working directory and asks us to leave it."""
    backend, params = small_codex(tmp_path)
    async with opened(backend, params, RecordingSink()) as session:
        assert (session.session_id, session.resumed) == ("thread-1", False)
        assert (session.agent, session.model, session.agent_version) == ("workspace-write", "small", "codex 9.9.9")
        assert session.capabilities == Capabilities(
            resume="resume",
            agents=["workspace-write", "read-only", "untrusted", "untrusted-full-access", "danger-full-access"],
            models=["small", "large"],
            thinking=["low", "high"],
        )
    assert _opening(tmp_path) == {
        "cwd": str(tmp_path),
        "approvalPolicy": "on-request",
        "approvalsReviewer": "user",
        "sandbox": "workspace-write",
    }
    assert [call["method"] for call in heard(tmp_path)] == ["initialize", "initialized", "model/list", "thread/start"]


async def test_everything_can_be_asked_for(tmp_path: Path) -> None:
    """Mode, model, thinking level and MCP servers, whose programs get the tag by which they are found again."""
    answer = thread(model="large", reasoningEffort="ultra", sandbox=_READ_ONLY)
    backend, params = small_codex(tmp_path, thread_start=answer)
    servers = [
        McpServer(name="local", command="serve", args=["-x"], env={"A": "b"}),
        McpServer(name="remote", type="http", url="http://127.0.0.1:9/mcp", headers={"X-Key": "k"}),
        McpServer(name="plain", type="http", url="http://127.0.0.1:9/"),
    ]
    params = msgspec.structs.replace(params, agent="read-only", model="large", thinking="ultra", mcp_servers=servers)
    async with opened(backend, params, RecordingSink()) as session:
        assert (session.agent, session.model) == ("read-only", "large")
        assert session.capabilities.thinking == ["ultra"]
    wanted = _opening(tmp_path)
    assert (wanted["model"], wanted["sandbox"]) == ("large", "read-only")
    assert wanted["config"] == {
        "model_reasoning_effort": "ultra",
        "mcp_servers": {
            "local": {"command": "serve", "args": ["-x"], "env": {"A": "b", TAG_NAME: params.tag[1]}},
            "remote": {"url": "http://127.0.0.1:9/mcp", "http_headers": {"X-Key": "k"}},
            "plain": {"url": "http://127.0.0.1:9/"},
        },
    }


async def test_all_pages_of_the_models_are_read(tmp_path: Path) -> None:
    """Up to a bound, for a list that never ends."""
    page = {"result": {"data": [{"model": "again"}], "nextCursor": "more"}}
    backend, params = small_codex(tmp_path, model_list=page)
    async with opened(backend, params, RecordingSink()) as session:
        assert session.capabilities.models == ["small", "again"]
    asked = [call["params"] for call in heard(tmp_path) if call["method"] == "model/list"]
    assert asked == [{}, *[{"cursor": "more"}] * 19]


async def test_a_mode_that_is_not_there_is_refused(tmp_path: Path) -> None:
    """Before codex has heard of it."""
    refusal = await _refusal(tmp_path, {}, agent="yolo")
    assert (refusal.reason_word, refusal.retryable) == ("unknown_agent", False)
    assert "read-only" in refusal.message


@pytest.mark.parametrize(
    ("wanted", "reason", "offers"),
    [
        ({"model": "huge"}, "unknown_model", ["small", "large"]),
        ({"thinking": "ultra"}, "unknown_thinking", ["low", "high"]),
    ],
)
async def test_what_codex_does_not_offer_is_refused(
    wanted: dict[str, str], reason: str, offers: list[str], tmp_path: Path
) -> None:
    """Though codex would take it, and fail later."""
    refusal = await _refusal(tmp_path, {}, **wanted)
    assert (refusal.reason_word, refusal.retryable) == (reason, False)
    assert refusal.data["offers"] == offers
    assert "model" not in _opening(tmp_path)


@pytest.mark.parametrize(
    ("wanted", "changes"),
    [
        ({"model": "large"}, {"model": "small"}),
        ({"thinking": "high"}, {"reasoningEffort": "low"}),
        ({"agent": "read-only"}, {}),
        ({}, {"approvalPolicy": "never"}),
        ({}, {"approvalPolicy": {"granular": {}}}),
    ],
)
async def test_what_codex_did_not_apply_is_refused(
    wanted: dict[str, str], changes: dict[str, object], tmp_path: Path
) -> None:
    """A policy of the machine's owner may forbid a mode; then nobody must believe that it is on."""
    refusal = await _refusal(tmp_path, {"thread_start": thread(**changes)}, **wanted)
    assert refusal.reason_word == "not_applied"


async def test_a_session_is_resumed_without_its_history(tmp_path: Path) -> None:
    """Which is not told again and may be long."""
    backend, params = small_codex(tmp_path)
    params = msgspec.structs.replace(params, resume="thread-1")
    async with opened(backend, params, RecordingSink()) as session:
        assert (session.session_id, session.resumed) == ("thread-1", True)
    wanted = _opening(tmp_path, "thread/resume")
    assert (wanted["threadId"], wanted["excludeTurns"], wanted["cwd"]) == ("thread-1", True, str(tmp_path))


@pytest.mark.parametrize(
    "answer",
    [
        {"error": {"code": -32600, "message": "no rollout found for thread id thread-1"}},
        thread(thread={"id": "thread-2"}),
    ],
)
async def test_what_was_not_restored_is_refused(answer: dict[str, object], tmp_path: Path) -> None:
    """An error of codex, or another thread than the one that was asked for."""
    refusal = await _refusal(tmp_path, {"thread_resume": answer}, resume="thread-1")
    assert (refusal.reason_word, refusal.retryable) == ("resume_failed", False)


@pytest.mark.parametrize(
    "answer", [{"error": {"code": -32603, "message": "config is broken"}}, {"result": {"thread": "config is broken"}}]
)
async def test_an_answer_that_gives_no_thread_is_told(answer: dict[str, object], tmp_path: Path) -> None:
    """With codex's words, or with what is wrong with them."""
    refusal = await _refusal(tmp_path, {"thread_start": answer})
    assert refusal.reason_word == "session_refused"
    assert "config is broken" in refusal.message or "thread" in refusal.message


async def test_an_mcp_server_of_a_kind_that_codex_does_not_take_is_refused(tmp_path: Path) -> None:
    """Nothing is started for it."""
    server = McpServer(name="old", type="sse", url="http://127.0.0.1:9/sse")
    refusal = await _refusal(tmp_path, {}, mcp_servers=[server])
    assert refusal.reason_word == "unsupported_mcp"
    assert not (tmp_path / "heard").exists()


async def test_a_missing_program_is_told_with_how_to_get_it(tmp_path: Path) -> None:
    """As for every backend."""
    params = msgspec.structs.replace(make_params(tmp_path), env={"PATH": str(tmp_path)})
    async with trio.open_nursery() as nursery:
        with pytest.raises(SpawnError, match="npm install -g @openai/codex"):
            await get_backend("codex-app-server").open(params, RecordingSink(), nursery)


async def test_a_codex_that_ends_at_once_is_told_with_its_last_words(tmp_path: Path) -> None:
    """It may be different the next time."""
    argv = python_agent(tmp_path, "import sys; sys.exit('no config today')")
    params = make_params(tmp_path)
    async with trio.open_nursery() as nursery:
        with pytest.raises(AgentExited, match="no config today") as caught:
            await codex_in_place(argv).open(params, RecordingSink(), nursery)
    assert caught.value.retryable
    assert tree.tagged(*params.tag) == []
