"""The adapter against a recorded `opencode serve`: what it asks is what the recorded client asked, and what the server
said becomes the events and the ends that it meant.
"""

import json
from pathlib import Path
from typing import Any

import msgspec
import trio

from avenor.protocol import events
from avenor.runtimes.backends.base import TurnStop
from tests.helpers import eventually
from tests.runtimes.agent_kit import TURN_SECONDS, RecordingSink, make_params, opened, picks
from tests.runtimes.fake_opencode import FakeOpencode
from tests.runtimes.opencode_kit import fake_backend

_RECORDING = Path(__file__).parent.parent / "data" / "http" / "opencode-serve.ndjson"
# A prompt that the recorded client sent into a busy session, to see what becomes of it; avenor sends none.
_NOT_OURS = "[[slow: 300 x 0.1]]"


class Recorded(FakeOpencode):
    """Plays a recording: says what the server said, and waits for each request that the client made.

    Args:
        records: The recording.
    """

    def __init__(self, records: list[dict[str, Any]]) -> None:
        super().__init__()
        made = next(i for i, record in enumerate(records) if _is_post(record))
        died = next(i for i, record in enumerate(records) if i > made and record["dir"] == "stdout")
        self._played, after = _in_order(records[made:died]), records[died:]
        self._session = next(r["msg"]["body"] for r in self._played if r["dir"] == "agent->client")
        answers = [r["msg"] for r in after if r["dir"] == "agent->client"]
        self._after_death = next(answer["body"] for answer in answers if answer["path"].endswith("/message"))
        self._history: list[Any] = []
        self._made, self._heard = trio.open_memory_channel[tuple[str, Any]](8)

    async def _route(self, method: str, path: str, body: Any) -> tuple[int, Any]:
        if method == "POST":
            await self._made.send((path, body))
            if path == "/session":
                return 200, self._session
            return (204, None) if path.endswith("/prompt_async") else (200, True)
        if path.endswith("/message"):
            return 200, self._history
        return (200, []) if path.endswith("/children") else await super()._route(method, path, body)

    async def play(self) -> None:
        """The recording up to the server's death, as whose end the stream breaks off."""
        for record in self._played:
            if record["dir"] == "sse":
                for stream in self.streams:
                    await stream.send_all(f"data: {json.dumps(record['msg'])}\n\n".encode())
            elif _is_post(record):
                await self._wait_asked(record["msg"])
        self._history = self._after_death
        await self.break_streams()

    async def _wait_asked(self, recorded: dict[str, Any]) -> None:
        """Waits for a request of ours, and holds it against the recorded one."""
        body = recorded["body"]
        with trio.fail_after(TURN_SECONDS):
            path, ours = await self._heard.receive()
        # The recorded client waited for one answer where ours listens.
        assert path == recorded["path"].replace("/message", "/prompt_async")
        if body and "parts" in body:
            assert ours["parts"] == body["parts"]
            assert ours.keys() <= {"parts", "model", "agent"}
        elif path.endswith("/reply"):
            assert ours == body


def _in_order(records: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The records, with each prompt behind the end of the turn before, for which the recorded client did not listen."""
    ordered: list[dict[str, Any]] = []
    late: list[dict[str, Any]] = []
    is_busy = False
    for record in records:
        if _is_post(record) and "parts" in (record["msg"]["body"] or {}):
            if _text_of(record["msg"]["body"]) != _NOT_OURS:
                (late if is_busy else ordered).append(record)
                is_busy = True
            continue
        ordered.append(record)
        if record["dir"] == "sse" and record["msg"]["type"] == "session.idle":
            ordered += late
            is_busy = bool(late)
            late.clear()
    return ordered


def _text_of(body: Any) -> str:
    return str(body["parts"][0]["text"])


def _is_post(record: dict[str, Any]) -> bool:
    return bool(record["dir"] == "client->agent" and record["msg"]["method"] == "POST")


async def test_the_recorded_server_is_understood(tmp_path: Path) -> None:
    """Text, a tool and its question, an abort, a model that fails and recovers, and a death in mid-tool."""
    records = [json.loads(line) for line in _RECORDING.read_text(encoding="utf-8").splitlines()]
    server, sink = Recorded(records), RecordingSink(picks("allow_once"))
    async with trio.open_nursery() as nursery:
        await nursery.start(server.serve)
        nursery.start_soon(server.play)
        params = make_params(tmp_path, server_url=server.url)
        async with opened(fake_backend(), params, sink) as session:
            stop = await session.prompt("[[reason: thinking]] [[text: hello over http]]")
            assert (stop.stop_reason, sink.text()) == ("end_turn", "hello over http")
            assert stop.usage is not None
            assert (stop.usage.input_tokens, stop.usage.output_tokens) == (7841, 20)
            assert msgspec.json.decode(sink.of(events.ThoughtChunk)[0].content)["text"] == "thinking"

            stops: list[TurnStop] = []

            async def run() -> None:
                stops.append(await session.prompt("[[shell: echo hi > f.txt]] [[text: done with it]]"))

            nursery.start_soon(run)
            await sink.wait_text("tick5")
            await session.cancel()
            await eventually(lambda: stops, seconds=TURN_SECONDS)
            assert (stops[0].stop_reason, stops[0].error) == ("cancelled", None)
            assert [ask.question for ask in sink.asks] == ["echo hi > f.txt"]
            assert [event.status for event in sink.of(events.ToolCallUpdate)][-1] == "completed"

            stop = await session.prompt("[[error: 500 x2]] [[text: recovered]]")
            assert (stop.stop_reason, sink.text()[-9:]) == ("end_turn", "recovered")
            assert [b"fake error 500" in bytes(told.update) for told in sink.of(events.SessionUpdate)] == [True, True]

            stop = await session.prompt("[[shell: sleep 96]] [[text: x]]")
            assert stop.stop_reason == "error"
            assert stop.error is not None
            assert stop.error.failure_class == "crash"
        nursery.cancel_scope.cancel()
