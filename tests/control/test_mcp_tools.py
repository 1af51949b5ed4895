"""The MCP tools as an agent sees them."""

import re
from pathlib import Path
from typing import Any

import msgspec
import pytest
from jsonschema import Draft202012Validator

from avenor.control.mcp.calls import Jockey
from avenor.control.mcp.tools import BY_NAME, INSTRUCTIONS, TOOLS, Tool
from avenor.control.mcp.views import Cancelled, Result, Run, Runs
from avenor.protocol.spec import SpawnParams

PAGE = Path(__file__).parents[2] / "docs/reference/mcp.md"
NAMES = [tool.name for tool in TOOLS]


@pytest.mark.parametrize("tool", TOOLS, ids=NAMES)
def test_the_schemas_of_a_tool_are_objects_of_the_current_dialect(tool: Tool) -> None:
    """MCP wants an object at the root; some hosts take no unions with null, and no references to what is not there."""
    for schema in (tool.input_schema, tool.output_schema):
        Draft202012Validator.check_schema(schema)
        assert schema["type"] == "object"
        text = msgspec.json.encode(schema).decode()
        named = set(re.findall(r'"#/\$defs/(\w+)"', text))
        assert named <= set(schema.get("$defs", {}))
    assert '"null"' not in msgspec.json.encode(tool.input_schema).decode()
    assert tool.input_schema["additionalProperties"] is False


@pytest.mark.parametrize("tool", TOOLS, ids=NAMES)
def test_a_tool_and_its_params_are_described(tool: Tool) -> None:
    """An agent has nothing else to go by."""
    assert tool.description.endswith(".")
    assert all(member.get("description") for member in tool.input_schema.get("properties", {}).values())
    assert set(re.findall(r"avenor_\w+", tool.description)) <= set(BY_NAME)
    assert not (tool.reads and (tool.destroys or tool.acts))


def test_every_tool_that_a_text_names_is_there() -> None:
    """Instructions included."""
    assert set(re.findall(r"avenor_\w+", INSTRUCTIONS)) <= set(BY_NAME)


def test_every_tool_but_the_one_that_waits_has_a_handler() -> None:
    """A tool that is listed can be called."""
    handled = set(Jockey._handlers)  # pyright: ignore[reportPrivateUsage]
    assert {tool.params for tool in TOOLS} - handled == {BY_NAME["avenor_result"].params}


def test_the_params_of_spawn_are_those_of_the_control_protocol() -> None:
    """By the same names, but for the directory."""
    known = {*SpawnParams.__struct_fields__, "repo_dir"}
    assert set(BY_NAME["avenor_spawn"].params.__struct_fields__) <= known


@pytest.mark.parametrize(
    "result",
    [
        Runs(runs=[Run(run_id="r", kind="single", status="done", state="idle", label="x", started_at=1)]),
        Result(ready=False, status="running", output=None, timed_out=True),
        Cancelled(ok=True, left=[], status="killed"),
    ],
)
def test_a_result_fits_its_schema(result: msgspec.Struct) -> None:
    """Clients check, and refuse what does not."""
    tool = next(tool for tool in TOOLS if tool.result is type(result))
    validator: Any = Draft202012Validator(tool.output_schema)
    validator.validate(msgspec.to_builtins(result))


def test_the_reference_has_every_tool_with_its_params_and_hints() -> None:
    """docs/reference/mcp.md, row by row."""
    rows = dict(re.findall(r"^\| `(avenor_\w+)` \| (.*) \|$", PAGE.read_text(), re.MULTILINE))
    assert rows == {tool.name: _row(tool) for tool in TOOLS}


def _row(tool: Tool) -> str:
    schema: dict[str, Any] = tool.input_schema
    required = schema.get("required", [])
    params = [f"`{name}`" if name in required else f"`{name}?`" for name in schema.get("properties", {})]
    hints = [
        word
        for word, has in (
            ("acts", tool.acts),
            ("reads", tool.reads),
            ("destroys", tool.destroys),
            ("repeats", tool.repeats),
        )
        if has
    ]
    results = [f"`{name}`" for name in tool.output_schema["properties"]]
    return " | ".join((" ".join(params), " ".join(results), " ".join(hints)))
