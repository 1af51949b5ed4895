"""The scripted agent as ACP sees it: its methods, its sessions, and what goes wrong in its handshake."""

import os
import sys
import time
from collections.abc import Callable
from typing import Any

import msgspec

from avenor.protocol.durations import parse_duration
from avenor.protocol.errors import (
    INTERNAL_ERROR,
    INVALID_PARAMS,
    INVALID_REQUEST,
    METHOD_NOT_FOUND,
    ErrorObject,
)
from avenor.protocol.peer import IncomingNotification, IncomingRequest
from avenor.protocol.script import Script, Step
from avenor.runtimes.scripted import acp
from avenor.runtimes.scripted.agent_info import AGENT_INFO
from avenor.runtimes.scripted.connection import Connection, make_error
from avenor.runtimes.scripted.loop import Cancelled, Loop, Task, pause
from avenor.runtimes.scripted.play import die, failure, play_steps, write_stderr
from avenor.runtimes.scripted.rules import RuleBook
from avenor.runtimes.scripted.session import Session
from avenor.runtimes.scripted.state import Chosen, Opened, Prompted, StateDirectory, new_session_id
from avenor.runtimes.scripted.text import excerpt
from avenor.runtimes.scripted.turn import Turn, TurnEnded, TurnFailed

# ACP's error for what is not there (schema 1.19, ErrorCode).
RESOURCE_NOT_FOUND = -32002


class Refusal(Exception):
    """A request that is answered with an error."""

    def __init__(self, error: ErrorObject) -> None:
        self.error = error


class Agent:
    """Everything between the connection and the steps.

    Args:
        script: What it plays.
        rules: The script's rules, and its counts.
    """

    def __init__(self, script: Script, rules: RuleBook, state: StateDirectory) -> None:
        self.loop = Loop(self._receive, script.ignores)
        self._connection = Connection(self.loop.send)
        self._connection.on_request = self._on_request
        self._connection.on_notification = self._on_notification
        self._script = script
        self._rules = rules
        self._state = state
        self._sessions: dict[str, Session] = {}
        self._is_initialized = False
        self._has_faults: bool | None = None
        self._methods = self._build_methods()

    def play_start(self) -> None:
        """Plays the handshake's faults at the start, before stdin is read. May never return."""
        if not self._has_fault_at("start"):
            return
        handshake = self._script.handshake
        assert handshake is not None
        self._make_noise()
        time.sleep(parse_duration(handshake.delay))
        if handshake.fault == "die":
            die(self.loop, handshake.exit_code)
        while handshake.fault == "hang":
            time.sleep(3600)

    # --- requests ---------------------------------------------------------------------------------------------------

    def _receive(self, line: Any) -> None:
        self._connection.receive(line)

    def _build_methods(self) -> dict[str, tuple[type[msgspec.Struct], Callable[[Any], dict[str, Any]]]]:
        """The methods that are answered at once; a prompt is not."""
        can = self._script.capabilities
        methods: dict[str, tuple[bool, type[msgspec.Struct], Callable[[Any], dict[str, Any]]]] = {
            "initialize": (True, acp.InitializeParams, self._initialize),
            "session/new": (True, acp.NewParams, self._new),
            "session/load": (can.load, acp.RestoreParams, self._load),
            "session/resume": (can.resume, acp.RestoreParams, self._resume),
            "session/list": (can.list, acp.ListParams, self._list),
            "session/close": (can.close, acp.SessionParams, self._close),
            "session/set_config_option": (can.config_options, acp.SetConfigParams, self._set_config),
            "session/set_mode": (can.modes, acp.SetModeParams, self._set_mode),
            "session/set_model": (can.set_model, acp.SetModelParams, self._set_model),
        }
        return {name: (params, handler) for name, (is_offered, params, handler) in methods.items() if is_offered}

    def _on_request(self, request: IncomingRequest) -> None:
        stage = "initialize" if request.method == "initialize" else "session"
        is_opening = request.method in ("initialize", "session/new", "session/load", "session/resume")
        if is_opening and self._has_fault_at(stage):
            self.loop.start(self._answer_badly(request))
        else:
            self._answer(request)

    def _answer(self, request: IncomingRequest) -> None:
        try:
            if request.method == "session/prompt":
                self._start_prompt(request)
                return
            if request.method not in self._methods:
                message = f"there is no method {request.method!r} here"
                raise Refusal(make_error(METHOD_NOT_FOUND, message, method=request.method))
            params_type, handler = self._methods[request.method]
            result = handler(self._decode(request, params_type))
        except Refusal as refusal:
            self._connection.reply_error(request.id, refusal.error)
        else:
            self._connection.reply(request.id, result)

    def _decode(self, request: IncomingRequest, params_type: type[msgspec.Struct]) -> Any:
        if request.method != "initialize" and not self._is_initialized:
            raise Refusal(make_error(INVALID_REQUEST, "initialize comes first"))
        try:
            return msgspec.json.decode(request.params, type=params_type)
        except (msgspec.DecodeError, RecursionError) as error:
            raise Refusal(make_error(INVALID_PARAMS, f"{request.method}: {error}")) from error

    def _on_notification(self, notification: IncomingNotification) -> None:
        if notification.method != "session/cancel" or "cancel" in self._script.ignores:
            return
        try:
            params = msgspec.json.decode(notification.params, type=acp.SessionParams)
        except (msgspec.DecodeError, RecursionError):
            return
        session = self._sessions.get(params.session_id)
        if session is not None and session.job is not None:
            session.job.cancel()

    # --- handshake --------------------------------------------------------------------------------------------------

    def _has_fault_at(self, stage: str) -> bool:
        """Whether the handshake goes wrong at this stage of this start."""
        handshake = self._script.handshake
        if handshake is None or handshake.at != stage:
            return False
        if self._has_faults is None:
            self._has_faults = handshake.times is None or self._rules.count("handshake", handshake.times)
        return self._has_faults

    def _make_noise(self) -> None:
        assert self._script.handshake is not None
        self.loop.send(self._script.handshake.noise.encode())
        write_stderr(self._script.handshake.stderr)

    def _answer_badly(self, request: IncomingRequest) -> Task:
        handshake = self._script.handshake
        assert handshake is not None
        self._make_noise()
        yield from pause(parse_duration(handshake.delay))
        match handshake.fault:
            case "hang":
                return
            case "die":
                die(self.loop, handshake.exit_code)
            case "error":
                self._connection.reply_error(request.id, failure(handshake.error, handshake.error.message))
            case "none":
                self._answer(request)

    def _initialize(self, params: acp.InitializeParams) -> dict[str, Any]:
        self._is_initialized = True
        can, handshake = self._script.capabilities, self._script.handshake
        offered = {"list": can.list, "resume": can.resume, "close": can.close}
        is_wrong = handshake is not None and self._has_fault_at("initialize")
        return {
            "protocolVersion": handshake.protocol_version if handshake is not None and is_wrong else 1,
            "agentCapabilities": {
                "loadSession": can.load,
                "promptCapabilities": {"image": False, "audio": False, "embeddedContext": True},
                "mcpCapabilities": {"http": True, "sse": False},
                "sessionCapabilities": {name: {} for name, is_offered in offered.items() if is_offered},
            },
            "authMethods": [],
            "agentInfo": AGENT_INFO,
        }

    # --- sessions ---------------------------------------------------------------------------------------------------

    def _new(self, params: acp.NewParams) -> dict[str, Any]:
        _check_directory(params.cwd)
        session = Session(new_session_id(), params.cwd, self._script, params.mcp_servers)
        self._state.append(session.session_id, Opened(session_id=session.session_id, cwd=params.cwd))
        self._sessions[session.session_id] = session
        return {"sessionId": session.session_id, **session.setup()}

    def _load(self, params: acp.RestoreParams) -> dict[str, Any]:
        session, replay = self._restore(params)
        for update in replay:
            self._connection.notify("session/update", {"sessionId": session.session_id, "update": update})
        return session.setup()

    def _resume(self, params: acp.RestoreParams) -> dict[str, Any]:
        session, _ = self._restore(params)
        return session.setup()

    def _restore(self, params: acp.RestoreParams) -> tuple[Session, list[dict[str, Any]]]:
        """The session from its file, which the one in memory, if there is one, must not be using now."""
        _check_directory(params.cwd)
        records = self._state.read(params.session_id)
        if not records:
            raise _no_session(params.session_id)
        running = self._sessions.get(params.session_id)
        if running is not None and running.job is not None:
            raise _busy(params.session_id)
        session = Session(params.session_id, params.cwd, self._script, params.mcp_servers)
        replay = session.restore(records)
        self._sessions[session.session_id] = session
        return session, replay

    def _list(self, params: acp.ListParams) -> dict[str, Any]:
        listed = [self._describe(session_id, changed_at) for session_id, changed_at in self._state.session_ids()]
        return {"sessions": [found for found in listed if found and params.cwd in (None, found["cwd"])]}

    def _describe(self, session_id: str, changed_at: float) -> dict[str, Any] | None:
        records = self._state.read(session_id)
        if not records or not isinstance(records[0], Opened):
            return None
        described: dict[str, Any] = {
            "sessionId": session_id,
            "cwd": records[0].cwd,
            "updatedAt": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(changed_at)),
        }
        first = next((record for record in records if isinstance(record, Prompted)), None)
        return described if first is None else {**described, "title": excerpt(first.text)}

    def _close(self, params: acp.SessionParams) -> dict[str, Any]:
        session = self._session(params.session_id)
        if session.job is not None:
            session.job.ignores_cancel = False
            session.job.cancel()
        del self._sessions[params.session_id]
        return {}

    def _session(self, session_id: str) -> Session:
        session = self._sessions.get(session_id)
        if session is None:
            raise _no_session(session_id)
        return session

    # --- options ----------------------------------------------------------------------------------------------------

    def _set_config(self, params: acp.SetConfigParams) -> dict[str, Any]:
        session = self._session(params.session_id)
        self._choose(session, params.config_id, params.value)
        if params.config_id == "mode":
            self._tell(session, [update for update in session.change_updates("mode") if "currentModeId" in update])
        return {"configOptions": session.config_options()}

    def _set_mode(self, params: acp.SetModeParams) -> dict[str, Any]:
        return self._set_plainly(params.session_id, "mode", params.mode_id)

    def _set_model(self, params: acp.SetModelParams) -> dict[str, Any]:
        return self._set_plainly(params.session_id, "model", params.model_id)

    def _set_plainly(self, session_id: str, option: str, value: str) -> dict[str, Any]:
        session = self._session(session_id)
        self._choose(session, option, value)
        self._tell(session, [update for update in session.change_updates(option) if "configOptions" in update])
        return {}

    def _choose(self, session: Session, option: str, value: str) -> None:
        if option not in session.chosen:
            message = f"there is no option {option!r}; there are {', '.join(session.chosen) or 'none'}"
            raise Refusal(make_error(INVALID_PARAMS, message, configId=option))
        if not session.offers(option, value):
            offered = session.value_ids(option)
            message = f"{option} {value!r} is not on offer; there are {', '.join(offered)}"
            raise Refusal(make_error(INVALID_PARAMS, message, value=value, offered=offered))
        session.chosen[option] = value
        self._state.append(session.session_id, Chosen(option=option, value=value))

    def _tell(self, session: Session, updates: list[dict[str, Any]]) -> None:
        for update in updates:
            self._connection.notify("session/update", {"sessionId": session.session_id, "update": update})

    # --- prompts ----------------------------------------------------------------------------------------------------

    def _start_prompt(self, request: IncomingRequest) -> None:
        params = self._decode(request, acp.PromptParams)
        session = self._session(params.session_id)
        if session.job is not None:
            raise _busy(params.session_id)
        text = acp.prompt_text(params.prompt)
        rule, steps = self._rules.find(session, text)
        prompted = Prompted(text=text, message_id=f"msg_{len(session.prompts) + 1}_0", rule=rule)
        self._state.append(session.session_id, prompted)
        session.prompts.append(prompted)
        turn = Turn(
            session,
            text,
            connection=self._connection,
            loop=self.loop,
            state=self._state,
            shows_usage=self._script.capabilities.usage,
        )
        session.job = self.loop.start(self._play_turn(turn, request, steps))

    def _play_turn(self, turn: Turn, request: IncomingRequest, steps: list[Step]) -> Task:
        """Plays a turn and answers its prompt, whatever happens."""
        error: ErrorObject | None = None
        stop_reason = "end_turn"
        try:
            yield from pause(0)
            yield from play_steps(turn, steps)
        except TurnEnded as ended:
            stop_reason = ended.stop_reason
        except TurnFailed as failed:
            error = failed.error
        except Cancelled:
            stop_reason = "cancelled"
        except Exception as problem:  # one turn's fault is not the others' end
            sys.excepthook(type(problem), problem, problem.__traceback__)
            error = make_error(INTERNAL_ERROR, f"the script could not be played: {problem}")
        turn.session.job = None
        turn.save()
        if error is None:
            self._connection.reply(request.id, turn.result(stop_reason))
        else:
            self._connection.reply_error(request.id, error)


def _check_directory(cwd: str) -> None:
    if not os.path.isabs(cwd) or not os.path.isdir(cwd):
        raise Refusal(make_error(INVALID_PARAMS, f"cwd {cwd!r} is no absolute path of a directory", cwd=cwd))


def _no_session(session_id: str) -> Refusal:
    message = f"there is no session {session_id!r} in this agent's state directory"
    return Refusal(make_error(RESOURCE_NOT_FOUND, message, sessionId=session_id))


def _busy(session_id: str) -> Refusal:
    message = f"session {session_id!r} is busy with a prompt; wait for its answer, or cancel it"
    return Refusal(make_error(INVALID_REQUEST, message, sessionId=session_id))
