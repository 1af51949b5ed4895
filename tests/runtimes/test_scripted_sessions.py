"""Sessions of the scripted agent: kept on disk, restored, listed, closed, and their options."""

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.runtimes.acp_client import open_client, play

TALKING = {
    "rules": [
        {"match": "recall", "steps": [{"do": "recall"}]},
        {"match": "hang", "steps": [{"do": "say", "text": "half of it"}, {"do": "hang"}]},
        {
            "steps": [
                {"do": "think", "text": "hm", "chunks": 2},
                {"do": "run", "command": "echo hi"},
                {"do": "say", "text": "answer to {prompt}", "chunks": 3},
            ]
        },
    ]
}


def session_file(directory: Path, session_id: str) -> Path:
    return directory / "state" / "sessions" / f"{session_id}.ndjson"


def test_a_session_of_a_killed_agent_is_loaded_with_a_replay(tmp_path: Path) -> None:
    """Messages come whole; the interrupted turn keeps its prompt and loses what it was saying."""
    with open_client(tmp_path, TALKING) as client:
        session_id = client.open().session_id
        client.prompt("one")
        client.start_prompt("hang on")
        client.wait_method("session/update")
        client.process.send_signal(signal.SIGKILL)
        assert client.wait_exit() == -signal.SIGKILL
    with open_client(tmp_path, TALKING) as client:
        client.initialize()
        turn = client.restore("session/load", session_id)
        assert [update["sessionUpdate"] for update in turn.updates] == [
            "user_message_chunk",
            "agent_thought_chunk",
            "tool_call",
            "tool_call_update",
            "agent_message_chunk",
            "user_message_chunk",
        ]
        assert turn.text == "answer to one"
        assert [chunk["content"]["text"] for chunk in turn.of_kind("user_message_chunk")] == ["one", "hang on"]
        assert "1. one\n2. hang on" in client.prompt("recall").text


def test_a_session_is_resumed_without_a_replay(tmp_path: Path) -> None:
    """Same memory, no updates."""
    with open_client(tmp_path, TALKING) as client:
        session_id = client.open().session_id
        client.prompt("one")
    with open_client(tmp_path, TALKING) as client:
        client.initialize()
        turn = client.restore("session/resume", session_id)
        assert turn.messages == []
        assert "configOptions" in turn.answer["result"]
        assert "1. one" in client.prompt("recall").text


def test_a_first_prompt_recalls_nothing(tmp_path: Path) -> None:
    """A fresh session says so, which shows a resume that silently was none."""
    with open_client(tmp_path, TALKING) as client:
        assert client.open().prompt("recall").text == "This is the first prompt of this session."


@pytest.mark.parametrize("method", ["session/load", "session/resume"])
@pytest.mark.parametrize("session_id", ["scr_0", "", "../sessions/x", "a/b", "x" * 300, "é"])
def test_an_unknown_session_is_an_error(tmp_path: Path, method: str, session_id: str) -> None:
    """Never a new session, and never a path elsewhere."""
    with open_client(tmp_path, TALKING) as client:
        client.open()
        assert client.restore(method, session_id).answer["error"]["code"] == -32002


def test_methods_on_a_session_that_is_not_open_are_refused(tmp_path: Path) -> None:
    """A session on disk must be loaded first."""
    with open_client(tmp_path, TALKING) as client:
        client.open()
        client.session_id = "scr_nobody"
        assert client.prompt("x").answer["error"]["code"] == -32002
        assert client.call("session/close", {"sessionId": "scr_nobody"})["error"]["code"] == -32002


def test_a_torn_or_foreign_line_in_a_session_costs_only_itself(tmp_path: Path) -> None:
    """What a kill left half-written does not swallow the next prompt."""
    with open_client(tmp_path, TALKING) as client:
        session_id = client.open().session_id
        client.prompt("one")
    with session_file(tmp_path, session_id).open("ab") as file:
        file.write(b'\nnonsense\n{"record":"from the future"}\n{"record":"prompted","te')
    with open_client(tmp_path, TALKING) as client:
        client.initialize()
        client.restore("session/resume", session_id)
        client.prompt("two")
    with open_client(tmp_path, TALKING) as client:
        client.initialize()
        client.restore("session/resume", session_id)
        assert client.prompt("recall").text.endswith("1. one\n2. two")


def test_a_session_whose_first_line_is_lost_is_unknown(tmp_path: Path) -> None:
    """Without it there is no session, and the list leaves it out."""
    with open_client(tmp_path, TALKING) as client:
        session_id = client.open().session_id
        session_file(tmp_path, session_id).write_bytes(b'{"record":"prompted","text":"x","message_id":"m"}')
        assert client.restore("session/load", session_id).answer["error"]["code"] == -32002
        assert client.call("session/list", {})["result"]["sessions"] == []


def test_sessions_are_listed_for_a_directory(tmp_path: Path) -> None:
    """With their first prompt as title, the latest first, other directories left out on demand."""
    other = tmp_path / "other"
    other.mkdir()
    with open_client(tmp_path, TALKING) as client:
        client.initialize()
        assert client.call("session/list", {})["result"]["sessions"] == []
        client.open().prompt("\nthe first line\nthe second")
        elsewhere = client.call("session/new", {"cwd": str(other), "mcpServers": []})["result"]["sessionId"]
        here = client.call("session/list", {"cwd": str(tmp_path)})["result"]["sessions"]
        everywhere = client.call("session/list", {})["result"]["sessions"]
    assert [(found["sessionId"], found["title"]) for found in here] == [(client.session_id, "the first line")]
    assert {found["sessionId"] for found in everywhere} == {client.session_id, elsewhere}


def test_a_busy_session_is_not_loaded_again(tmp_path: Path) -> None:
    """Its turn goes on."""
    script = play({"do": "wait_for", "path": "go"})
    with open_client(tmp_path, script) as client:
        request_id = client.open().start_prompt("x")
        assert client.restore("session/load", client.session_id).answer["error"]["code"] == -32600
        (tmp_path / "go").touch()
        assert client.wait_answer(request_id).stop_reason == "end_turn"


def test_closing_a_session_ends_its_turn(tmp_path: Path) -> None:
    """Even one that ignores cancels; the session can be loaded again."""
    with open_client(tmp_path, play({"do": "ignore_cancel"}, {"do": "hang"})) as client:
        request_id = client.open().start_prompt("x")
        close_id = client.start("session/close", {"sessionId": client.session_id})
        answers = {client.read()["id"] for _ in range(2)}
        assert answers == {request_id, close_id}
        assert client.prompt("y").answer["error"]["code"] == -32002
        assert "result" in client.restore("session/load", client.session_id).answer


@pytest.mark.parametrize("cwd", ["relative", "", "/nowhere/at/all"])
def test_a_working_directory_that_is_none_is_refused(tmp_path: Path, cwd: str) -> None:
    """Absolute, and there."""
    with open_client(tmp_path, TALKING) as client:
        session_id = client.open().session_id
        assert client.call("session/new", {"cwd": cwd, "mcpServers": []})["error"]["code"] == -32602
        params: dict[str, object] = {"cwd": cwd, "mcpServers": [], "sessionId": session_id}
        assert client.call("session/load", params)["error"]["code"] == -32602


# --- options --------------------------------------------------------------------------------------------------------


def test_options_are_set_in_three_ways_and_kept(tmp_path: Path) -> None:
    """As config option, mode and model; each tells of the change in the forms that were not used."""
    with open_client(tmp_path, play({"do": "say", "text": "{model} {mode} {thought_level}"})) as client:
        session_id = client.open().session_id
        params = {"sessionId": session_id, "configId": "thought_level", "value": "high"}
        answered = client.wait_answer(client.start("session/set_config_option", params))
        assert answered.messages == []
        assert answered.answer["result"]["configOptions"][2]["currentValue"] == "high"
        params = {"sessionId": session_id, "configId": "mode", "value": "plan"}
        answered = client.wait_answer(client.start("session/set_config_option", params))
        assert answered.updates == [{"sessionUpdate": "current_mode_update", "currentModeId": "plan"}]
        answered = client.wait_answer(client.start("session/set_mode", {"sessionId": session_id, "modeId": "build"}))
        assert [update["sessionUpdate"] for update in answered.updates] == ["config_option_update"]
        answered = client.wait_answer(client.start("session/set_model", {"sessionId": session_id, "modelId": "large"}))
        assert [update["sessionUpdate"] for update in answered.updates] == ["config_option_update"]
        assert client.prompt("x").text == "large build high"
    with open_client(tmp_path, play({"do": "say", "text": "{model} {mode} {thought_level}"})) as client:
        client.initialize()
        client.restore("session/load", session_id)
        assert client.prompt("x").text == "large build high"


def test_a_choice_that_is_no_longer_offered_is_dropped_at_a_load(tmp_path: Path) -> None:
    """The session goes on with what there is."""
    with open_client(tmp_path, {}) as client:
        session_id = client.open().session_id
        client.call("session/set_model", {"sessionId": session_id, "modelId": "large"})
    with open_client(tmp_path, play({"do": "say", "text": "{model}"}, models=["tiny"])) as client:
        client.initialize()
        client.restore("session/load", session_id)
        assert client.prompt("x").text == "tiny"


@pytest.mark.parametrize(
    ("method", "params"),
    [
        ("set_config_option", {"configId": "model", "value": "huge"}),
        ("set_config_option", {"configId": "colour", "value": "red"}),
        ("set_config_option", {"configId": "model", "value": 3}),
        ("set_config_option", {"configId": "model"}),
        ("set_mode", {"modeId": "yolo"}),
        ("set_model", {"modelId": "huge"}),
    ],
)
def test_an_unknown_value_is_refused(tmp_path: Path, method: str, params: dict[str, object]) -> None:
    """−32602, and what is on offer is named."""
    with open_client(tmp_path, {}) as client:
        client.open()
        error = client.call(f"session/{method}", {"sessionId": client.session_id, **params})["error"]
        assert error["code"] == -32602
        if "huge" in params.values():
            assert error["data"] == {"value": "huge", "offered": ["small", "large"]}


def test_options_have_names_and_can_be_left_out(tmp_path: Path) -> None:
    """An empty list offers none, in either form."""
    models = [{"id": "m", "name": "Model M", "description": "the one"}]
    script = play({"do": "say", "text": "{model}{mode}"}, models=models, modes=[], thought_levels=[])
    with open_client(tmp_path, script) as client:
        client.initialize()
        setup = client.call("session/new", {"cwd": str(tmp_path), "mcpServers": []})["result"]
        assert [option["id"] for option in setup["configOptions"]] == ["model"]
        shown = {"value": "m", "name": "Model M", "description": "the one"}
        assert setup["configOptions"][0]["options"] == [shown]
        assert "modes" not in setup
        client.session_id = setup["sessionId"]
        assert client.prompt("x").text == "m"
        params = {"sessionId": client.session_id, "modeId": "build"}
        assert client.call("session/set_mode", params)["error"]["code"] == -32602


def test_members_of_a_team_count_together(tmp_path: Path) -> None:
    """Processes that count at the same moment never exceed the limit."""
    code = (
        "import sys; from avenor.runtimes.scripted.state import StateDirectory\n"
        "print(sum(StateDirectory(sys.argv[1]).take_turn('r', 'rule', 50) for _ in range(30)))"
    )
    command = [sys.executable, "-c", code, str(tmp_path)]
    processes = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(3)]
    assert sum(int(process.communicate(timeout=60)[0]) for process in processes) == 50
