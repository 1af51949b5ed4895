"""The questions of codex: reading them, which answers they take, and what each answer is on the wire. Pure.

Our options, whatever the question: `accept` (allow_once), `acceptForSession` and wider ones (allow_always), `decline`
(reject_once: the turn goes on without it), and where codex knows it `cancel` (reject_once as well, and the last one:
the turn ends). `decline` is offered although codex often leaves it out of its own list, for it takes it; so it is with
`acceptForSession` for commands.
"""

from collections.abc import Callable, Mapping
from typing import Any, Final

import msgspec
from msgspec import UNSET, Raw, UnsetType

from avenor.protocol.events import PermissionOption
from avenor.protocol.peer import IncomingRequest
from avenor.runtimes.backends.acp_permissions import trusted_options
from avenor.runtimes.backends.base import PermissionAnswer, PermissionAsk
from avenor.runtimes.backends.codex_types import Tolerant
from avenor.runtimes.backends.profiles import Profile

ENDS_TURN: Final = frozenset({"cancel", "abort"})  # Options after which codex interrupts its turn.


class KnownItem(msgspec.Struct, frozen=True, kw_only=True):
    """What codex has told of a tool before it asks; for file changes it asks with the bare id."""

    title: str
    raw_input: Raw | UnsetType = UNSET


class Choice(msgspec.Struct, frozen=True, kw_only=True):
    """One option, and the result that tells codex of it."""

    option: PermissionOption
    result: object


class Question(msgspec.Struct, frozen=True, kw_only=True):
    """A question as we ask it.

    Attributes:
        ask: For the sink.
        choices: Its options with their results.
        declined: The result of no answer while the turn goes on.
        cancelled: The result of no answer because the turn is being cancelled.
    """

    ask: PermissionAsk
    choices: list[Choice]
    declined: object
    cancelled: object

    def result(self, answer: PermissionAnswer) -> object:
        """What codex is told."""
        return next((c.result for c in self.choices if c.option.option_id == answer.option_id), self.declined)


class _About(msgspec.Struct, frozen=True, kw_only=True):
    """Which tool call a question is about; see `PermissionAsk`."""

    call_id: str | None = None
    kind: str | None = None
    server: str | None = None


class _Network(Tolerant, frozen=True, kw_only=True):
    host: str
    protocol: str = ""


class _ItemAsk(Tolerant, frozen=True, kw_only=True):
    """Of the two approvals."""

    item_id: str
    reason: str | None = None
    grant_root: str | None = None
    kind: str | None = None
    command: str | None = None
    cwd: str | None = None
    available_decisions: list[Any] | None = None
    additional_permissions: dict[str, Any] | None = None
    network_approval_context: _Network | None = None


class _OldAsk(Tolerant, frozen=True, kw_only=True):
    """Of the two approvals of the first protocol."""

    call_id: str
    reason: str | None = None
    command: list[str] = msgspec.field(default_factory=list[str])
    cwd: str | None = None
    file_changes: dict[str, Any] = msgspec.field(default_factory=dict[str, Any])


class _PermissionsAsk(Tolerant, frozen=True, kw_only=True):
    item_id: str
    permissions: Raw
    reason: str | None = None
    cwd: str = ""


class _ElicitationMeta(msgspec.Struct, frozen=True, kw_only=True):
    """Tolerant."""

    codex_approval_kind: str | None = None
    persist: list[str] = []
    tool_name: str | None = None
    tool_params: Raw | UnsetType = UNSET


class _Elicitation(Tolerant, frozen=True, kw_only=True):
    server_name: str
    message: str = ""
    mode: str = "form"
    url: str | None = None
    requested_schema: dict[str, Any] = msgspec.field(default_factory=dict[str, Any])
    meta: _ElicitationMeta | None = msgspec.field(name="_meta", default=None)


class _InputOption(Tolerant, frozen=True, kw_only=True):
    label: str
    description: str = ""


class _InputQuestion(Tolerant, frozen=True, kw_only=True):
    id: str
    question: str
    is_secret: bool = False
    options: list[_InputOption] | None = None


class _InputAsk(Tolerant, frozen=True, kw_only=True):
    questions: list[_InputQuestion]


Known = Mapping[str, KnownItem]
_Reader = Callable[[Raw, Known, Profile], Question]


def read_question(request: IncomingRequest, known: Known, profile: Profile) -> Question | None:
    """The question in a request of codex; None for a request that is none that we know.

    Args:
        request: As codex sent it.
        known: Tools of this turn by the id of their item.
        profile: Says which options may be trusted.

    Raises:
        msgspec.ValidationError: Its params are not as codex's schema says.
    """
    reader = _READERS.get(request.method)
    return None if reader is None else reader(request.params, known, profile)


def _read_command(params: Raw, known: Known, profile: Profile) -> Question:
    asked = msgspec.json.decode(params, type=_ItemAsk)
    offered = asked.available_decisions
    choices = [] if offered is not None and "accept" not in offered else [_decision("accept", "allow_once", "Run it")]
    if asked.kind in (None, "command"):
        choices.append(_decision("acceptForSession", "allow_always", "Run it, and do not ask again in this session"))
    choices += [choice for decision in offered or [] for choice in _amendment(decision)]
    return _question(
        "execute",
        _command_question(asked, known.get(asked.item_id)),
        [*choices, *_refusals()],
        params,
        profile,
        reason=asked.reason,
        raw_input=_raw({"command": asked.command, "cwd": asked.cwd}),
        about=_About(call_id=asked.item_id, kind="execute" if asked.network_approval_context is None else "fetch"),
    )


def _command_question(asked: _ItemAsk, item: KnownItem | None) -> str:
    network = asked.network_approval_context
    if network is not None:
        return f"Connect to {network.host} ({network.protocol})"
    title = (item.title if item else "") or asked.command or "a command"
    if asked.kind == "writeStdin":
        return f"Write to the running {title}"
    more = {name: value for name, value in (asked.additional_permissions or {}).items() if value is not None}
    return f"Run {title} with {msgspec.json.encode(more).decode()}" if more else f"Run {title}"


def _read_change(params: Raw, known: Known, profile: Profile) -> Question:
    asked = msgspec.json.decode(params, type=_ItemAsk)
    item = known.get(asked.item_id, KnownItem(title="Change files"))
    where = f" (and write below {asked.grant_root} from now on)" if asked.grant_root else ""
    choices = [
        _decision("accept", "allow_once", "Change them"),
        _decision("acceptForSession", "allow_always", "Change them, and do not ask again for them in this session"),
        *_refusals(),
    ]
    title = item.title + where
    about = _About(call_id=asked.item_id, kind="edit")
    return _question(
        "edit", title, choices, params, profile, reason=asked.reason, raw_input=item.raw_input, about=about
    )


def _read_old_command(params: Raw, _known: Known, profile: Profile) -> Question:
    asked = msgspec.json.decode(params, type=_OldAsk)
    raw_input = _raw({"command": asked.command, "cwd": asked.cwd})
    title = f"Run {' '.join(asked.command)}"
    about = _About(call_id=asked.call_id, kind="execute")
    return _question("execute", title, _old(), params, profile, reason=asked.reason, raw_input=raw_input, about=about)


def _read_old_change(params: Raw, _known: Known, profile: Profile) -> Question:
    asked = msgspec.json.decode(params, type=_OldAsk)
    title = "Change " + (", ".join(asked.file_changes) or "files")
    raw_input = _raw({"fileChanges": asked.file_changes})
    about = _About(call_id=asked.call_id, kind="edit")
    return _question("edit", title, _old(), params, profile, reason=asked.reason, raw_input=raw_input, about=about)


def _read_permissions(params: Raw, _known: Known, profile: Profile) -> Question:
    asked = msgspec.json.decode(params, type=_PermissionsAsk)
    wanted = asked.permissions.copy()
    nothing: dict[str, object] = {"permissions": {}}
    choices = [
        _choice("accept", "allow_once", "Grant it for this turn", _granted(wanted, "turn")),
        _choice("acceptForSession", "allow_always", "Grant it for the session", _granted(wanted, "session")),
        _choice("decline", "reject_once", "Do not grant it", nothing),
    ]
    title = f"Give more permissions in {asked.cwd}: {bytes(wanted).decode()}"
    return _question("permissions", title, choices, params, profile, reason=asked.reason, raw_input=wanted)


def _read_elicitation(params: Raw, _known: Known, profile: Profile) -> Question:
    asked = msgspec.json.decode(params, type=_Elicitation)
    meta = asked.meta or _ElicitationMeta()
    is_approval = meta.codex_approval_kind is not None
    refusals = [
        _choice("decline", "reject_once", "Decline", {"action": "decline"}),
        _choice("cancel", "reject_once", "Cancel", {"action": "cancel"}),
    ]
    allowed = [_choice("accept", "allow_once", "Accept", _accepted())]
    for scope in meta.persist:
        name = (
            "Accept, and do not ask again in this session" if scope == "session" else f"Accept, and remember: {scope}"
        )
        allowed.append(_choice(f"acceptFor{scope.capitalize()}", "allow_always", name, _accepted(scope)))
    if asked.requested_schema.get("properties"):
        allowed = []  # it wants a form filled in, for which an answer of ours has no place
    title = " ".join(part for part in (asked.message, asked.url) if part) or f"{asked.server_name} asks"
    question = _question(
        meta.tool_name or asked.server_name,
        title,
        [*allowed, *refusals],
        params,
        profile,
        raw_input=meta.tool_params.copy() if isinstance(meta.tool_params, Raw) else UNSET,
        about=_About(kind="other", server=asked.server_name) if is_approval else _About(),
    )
    return question if is_approval else _untrusted(question)


def _read_input(params: Raw, _known: Known, profile: Profile) -> Question:
    """A question to the user, where one of its labels is the answer; others can only be left unanswered."""
    asked = msgspec.json.decode(params, type=_InputAsk).questions
    choices: list[Choice] = []
    if len(asked) == 1:
        for number, option in enumerate(asked[0].options or [], start=1):
            result = {"answers": {asked[0].id: {"answers": [option.label]}}}
            name = f"{option.label}: {option.description}" if option.description else option.label
            choices.append(_choice(f"answer-{number}", "allow_once", name, result))
    choices.append(_choice("decline", "reject_once", "Do not answer", {"answers": {}}))
    title = "\n".join(question.question for question in asked) or "codex asks"
    return _untrusted(_question("question", title, choices, params, profile))


_READERS: Final[Mapping[str, _Reader]] = {
    "item/commandExecution/requestApproval": _read_command,
    "item/fileChange/requestApproval": _read_change,
    "item/permissions/requestApproval": _read_permissions,
    "item/tool/requestUserInput": _read_input,
    "mcpServer/elicitation/request": _read_elicitation,
    "execCommandApproval": _read_old_command,
    "applyPatchApproval": _read_old_change,
}


def _question(
    tool: str,
    title: str,
    choices: list[Choice],
    params: Raw,
    profile: Profile,
    *,
    reason: str | None = None,
    raw_input: Raw | UnsetType = UNSET,
    about: _About | None = None,
) -> Question:
    options = [choice.option for choice in choices]
    about = about or _About()
    ask = PermissionAsk(
        tool=tool,
        question=f"{title}\n{reason}" if reason else title,
        options=options,
        payload=params.copy(),
        input=raw_input,
        trusted_options=trusted_options(options, profile),
        tool_call_id=about.call_id,
        kind=about.kind,
        server=about.server,
    )
    results = {choice.option.option_id: choice.result for choice in choices}
    declined = results.get("decline", results.get("denied"))
    return Question(
        ask=ask,
        choices=choices,
        declined=declined,
        cancelled=results.get("cancel", results.get("abort", declined)),
    )


def _untrusted(question: Question) -> Question:
    """The same question, for a person only."""
    ask = msgspec.structs.replace(question.ask, trusted_options=[])
    return msgspec.structs.replace(question, ask=ask)


def _refusals() -> list[Choice]:
    return [
        _decision("decline", "reject_once", "Refuse; the turn goes on"),
        _decision("cancel", "reject_once", "Refuse, and end the turn"),
    ]


def _old() -> list[Choice]:
    return [
        _decision("approved", "allow_once", "Allow"),
        _decision("approved_for_session", "allow_always", "Allow, and do not ask again in this session"),
        _choice(
            "denied", "reject_once", "Refuse; the turn goes on", {"decision": {"denied": {"rejection": "refused"}}}
        ),
        _decision("abort", "reject_once", "Refuse, and end the turn"),
    ]


def _amendment(decision: Any) -> list[Choice]:
    """A decision that is an object: to allow, or to forbid, the same and its like for good."""
    try:
        ((word, details),) = msgspec.convert(decision, type=dict[str, Any]).items()
    except (msgspec.ValidationError, ValueError):
        return []
    text = msgspec.json.encode(details).decode()
    is_denial = '"deny"' in text
    option_id = f"{word}:deny" if is_denial else word
    kind = "reject_always" if is_denial else "allow_always"
    name = f"{'Forbid' if is_denial else 'Allow'} this from now on: {text}"
    return [_choice(option_id, kind, name, {"decision": decision})]


def _decision(word: str, kind: str, name: str) -> Choice:
    return _choice(word, kind, name, {"decision": word})


def _choice(option_id: str, kind: str, name: str, result: object) -> Choice:
    return Choice(option=PermissionOption(option_id=option_id, kind=kind, name=name), result=result)


def _granted(permissions: Raw, scope: str) -> dict[str, object]:
    return {"permissions": permissions, "scope": scope}


def _accepted(persist: str | None = None) -> dict[str, object]:
    result: dict[str, object] = {"action": "accept", "content": {}}
    return result if persist is None else {**result, "_meta": {"persist": persist}}


def _raw(value: object) -> Raw:
    return Raw(msgspec.json.encode(value))
