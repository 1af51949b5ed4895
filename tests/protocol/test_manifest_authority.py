"""What a member may do is decided by what it was granted, and each decision names the field that it rests on."""

import pytest

from avenor.protocol.manifest.authority import (
    Capabilities,
    Grant,
    ToolUse,
    WriteGrant,
    decide,
    may_write,
    own_tool_name,
)

WRITER = Capabilities(
    field="members[3]",
    grants=[
        Grant(tool="read_file", field="members[3].tools[0]", kinds=["read"]),
        Grant(tool="apply_patch", field="members[3].tools[1]", kinds=["edit", "delete", "move"]),
        Grant(
            tool="run_focused_test",
            field="members[3].tools[2]",
            kinds=["execute"],
            commands=["python -m pytest -q tests/test_retry.py*", "ruff check *"],
        ),
        Grant(tool="ask_wiki", field="members[3].tools[3]", kinds=["other"], names=["wiki/find_*", "lookup"]),
    ],
    writes=[WriteGrant(target="code", field="members[3].allowed_writes[0]", globs=["src/retry.py", "tests/**"])],
    own_tools={"submit_result": "members[3]", "create_task": "members[3].tools[4]"},
)
READER = Capabilities(
    field="members[1]",
    grants=[
        Grant(tool="search_code", field="members[1].tools[0]", kinds=["search", "read"]),
        Grant(tool="apply_patch", field="members[1].tools[1]", kinds=["edit"]),
    ],
)


@pytest.mark.parametrize(
    ("use", "field"),
    [
        (ToolUse(kind="read", paths=["/etc/passwd"]), "members[3].tools[0]"),
        (ToolUse(kind="edit", paths=["src/retry.py", "tests/a/b.py"]), "members[3].tools[1]"),
        (ToolUse(kind="delete", paths=["tests/old.py"]), "members[3].tools[1]"),
        (ToolUse(kind="edit"), "members[3].tools[1]"),
        (ToolUse(kind="execute", command="ruff check"), "members[3].tools[2]"),
        (ToolUse(command=["ruff", "check", "src; true"]), "members[3].tools[2]"),
        (ToolUse(mcp=("wiki", "find_page")), "members[3].tools[3]"),
        (ToolUse(tool="lookup"), "members[3].tools[3]"),
        (ToolUse(kind="telepathy", title="lookup"), "members[3].tools[3]"),
        (ToolUse(kind="other", tool="mcp__avenor__create_task"), "members[3].tools[4]"),
        (ToolUse(mcp=("avenor", "submit_result")), "members[3]"),
    ],
)
def test_what_is_granted_is_allowed_by_the_field_that_grants_it(use: ToolUse, field: str) -> None:
    """The declared tool, not the name that the agent has for it."""
    decision = decide(WRITER, use)
    assert (decision.allow, decision.field) == (True, field)


@pytest.mark.parametrize(
    ("use", "field", "reason"),
    [
        (ToolUse(kind="fetch"), "members[3].tools", "none of its tools is of kind fetch"),
        (ToolUse(kind="think"), "members[3].tools", "none of its tools is of kind think"),
        (ToolUse(kind="switch_mode"), "members[3].tools", "none of its tools is of kind switch_mode"),
        (ToolUse(), "members[3].tools", "the agent does not tell which tool it is"),
        (ToolUse(tool="hammer"), "members[3].tools", "no declared tool allows 'hammer'"),
        (ToolUse(mcp=("wiki", "drop_page")), "members[3].tools", "no declared tool allows 'wiki/drop_page'"),
        (ToolUse(mcp=("other", "lookup")), "members[3].tools", "no declared tool allows 'other/lookup'"),
        (ToolUse(kind="edit", paths=["src/other.py"]), "members[3].allowed_writes", "'src/other.py' is in none of"),
        (ToolUse(kind="edit", paths=["tests/../src/x"]), "members[3].allowed_writes", "'tests/../src/x' is in none"),
        (ToolUse(kind="move", paths=["tests/a", "/tests/b"]), "members[3].allowed_writes", "'/tests/b' is in none of"),
        (ToolUse(kind="execute", title="ruff check"), "members[3].tools", "the agent does not tell which command"),
        (ToolUse(kind="read", command="cat x"), "members[3].tools[2]", "run_focused_test does not allow the command"),
        (ToolUse(kind="other", title="avenor_replan"), "members[3].tools", "it does not declare replan"),
    ],
)
def test_what_is_not_granted_is_denied_with_the_field_and_the_reason(use: ToolUse, field: str, reason: str) -> None:
    """An unknown kind counts as `other`, a command as executing whatever kind it is said to be."""
    decision = decide(WRITER, use)
    assert (decision.allow, decision.field, decision.tool) == (False, field, None)
    assert decision.reason.startswith(reason)


def test_a_tool_that_writes_gives_nothing_without_a_target() -> None:
    """Even if the agent tells no path."""
    decision = decide(READER, ToolUse(kind="edit"))
    assert (decision.allow, decision.field) == (False, "members[1].allowed_writes")
    assert not decide(READER, ToolUse(command="ls")).allow


@pytest.mark.parametrize(
    "text",
    [
        "mcp__avenor__create_task",
        "avenor_create_task",
        "avenor__create_task",
        "avenor.create_task",
        "avenor/create_task",
        "avenor:create_task",
        "create_task (avenor MCP Server)",
        "create_task (avenor)",
    ],
)
def test_avenor_s_own_tools_are_known_by_every_agent_s_name_for_them(text: str) -> None:
    """As the tool's name or as its title."""
    assert own_tool_name(ToolUse(tool=text)) == "create_task"
    assert own_tool_name(ToolUse(title=text)) == "create_task"


@pytest.mark.parametrize(
    "use",
    [
        ToolUse(title="avenor_create_task", command="rm -rf ."),
        ToolUse(title="avenor_create_task", paths=["src/x"]),
        ToolUse(title="avenor_create_task", mcp=("wiki", "create_task")),
        ToolUse(title="Run avenor_create_task"),
        ToolUse(title="create_task"),
        ToolUse(title="avenor_create_task\nrm"),
    ],
)
def test_what_only_looks_like_one_of_avenor_s_tools_is_none(use: ToolUse) -> None:
    """With a command, a path, another server, or more words."""
    assert own_tool_name(use) is None


def test_a_path_may_be_written_inside_the_write_targets_only() -> None:
    """As the diff is checked afterwards."""
    assert may_write(WRITER, "tests/deep/er.py")
    assert not may_write(WRITER, "src/retry2.py")
