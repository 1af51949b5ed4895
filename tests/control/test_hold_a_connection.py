"""The examples of docs/how-to/hold-a-connection.md do what the page says."""

import contextlib
import io
import re
from pathlib import Path

import pytest
import trio

from avenor.control.hub import SingleHub
from avenor.protocol.errors import NoSuchRuntime
from avenor.protocol.events import TurnEnd
from tests.control.served import Writer, serving

PAGE = Path(__file__).parents[2] / "docs/how-to/hold-a-connection.md"
EXAMPLES = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
EXPECTED = ["1\nNone idle 3", "idle None", "ended: end_turn", "1\n2\n3", "unknown: there is no rt_404 []"]


def test_every_example_has_its_expectation() -> None:
    """A new one needs one."""
    assert len(EXAMPLES) == len(EXPECTED)


@pytest.mark.parametrize(("example", "expected"), list(zip(EXAMPLES, EXPECTED, strict=False)))
async def test_an_example_runs_and_prints_what_it_should(example: str, expected: str, tmp_path: Path) -> None:
    """In a thread of its own, as a program would."""
    writer = Writer(tmp_path)
    writer.say(2)
    writer.emit(TurnEnd(stop_reason="end_turn", final_output="x"))
    printed = io.StringIO()

    def run(path: str) -> None:
        with contextlib.redirect_stdout(printed):
            exec(compile(example, str(PAGE), "exec"), {"SOCKET": path})

    def no_such(name: str) -> Exception:
        return NoSuchRuntime(f"there is no {name}", data={"candidates": []})

    async with serving(tmp_path, SingleHub(writer.hub, no_such)) as served:
        await trio.to_thread.run_sync(run, str(served.path))
    assert printed.getvalue().strip().endswith(expected)
