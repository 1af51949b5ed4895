"""What a `spawn` asks for, checked as a whole before anything is used up: no id, no directory, no process."""

import contextlib
import os
from collections.abc import Collection
from pathlib import Path
from typing import Any, Final, TypeVar

import msgspec
import structlog

from avenor.host.config_files import load_config_of
from avenor.host.mcp_file import load_servers
from avenor.host.regular import read_regular
from avenor.host.script_file import check_script
from avenor.host.sentinelfile import write_sentinel
from avenor.protocol.configs import ResolvedConfig
from avenor.protocol.errors import AvenorError, InvalidParams
from avenor.protocol.manifest.binding import ResolvedManifest
from avenor.protocol.outcomes import Outcome
from avenor.protocol.spec import BACKENDS, RunSpec, SpawnParams, resolve_spec
from avenor.protocol.validation import find_mistakes

T = TypeVar("T")

# A prompt is sent to the agent in one line; what cannot be said over our own socket is refused here as well.
_FILE_LIMIT_BYTES: Final = 16 * 1024 * 1024

_logger: Final = structlog.get_logger()


class SpawnRequest(msgspec.Struct, frozen=True, kw_only=True):
    """A spawn that can be carried out.

    Attributes:
        params: As they came.
        spec: The run, resolved.
        prompt: Its text, read if it was in a file; empty where the config has all there is.
        config: The loop, team or manifest, None for a single run.
    """

    params: SpawnParams
    spec: RunSpec
    prompt: str
    config: ResolvedConfig | ResolvedManifest | None = None


def read_request(raw: bytes, *, claim_seconds: float, backends: Collection[str] = BACKENDS) -> SpawnRequest:
    """The request in a spawn's params.

    Args:
        raw: The params as JSON.
        claim_seconds: The `permission_claim_timeout` of those that do not say.
        backends: The names that a backend may have.

    Raises:
        InvalidParams: It cannot be carried out; `data.field` names the first field at fault, `data.errors` all that
            were found, each with `path` and `message`.
    """
    params = _decode(raw)
    spec = params.run_spec()
    if spec.permission_claim_timeout is None:
        spec = msgspec.structs.replace(spec, permission_claim_timeout=claim_seconds)
    try:
        spec = resolve_spec(spec, backends=backends)
        _check_dir(spec.dir)
        prompt = spec.prompt or ""
        if spec.prompt_file is not None:
            prompt = _read_prompt(spec.prompt_file)
        check_script(spec.script)
        spec = load_servers(spec)
        config, warnings = load_config_of(spec, prompt, backends=backends)
    except AvenorError as error:
        raise _listed(error) from error
    for found in warnings:
        _logger.warning("spawn.config", text=found.line())
    return SpawnRequest(params=params, spec=spec, prompt=prompt, config=config)


def tell_refusal(raw: bytes, error: AvenorError) -> None:
    """Write the FAILED sentinel of a refused spawn, if it named one that can be found. Blocks.

    Raises:
        OSError: It could not be written.
    """
    try:
        params = msgspec.json.decode(raw)
        path = Path(params["sentinel_file"])
        path = path if path.is_absolute() else Path(params["dir"]) / path
        run_id = params.get("run_id") or ""
        outcome = Outcome.of("invalid_params", run_id=str(run_id), reason=error.message)
    except (msgspec.DecodeError, KeyError, TypeError, ValueError):
        return
    if path.is_absolute() and "\0" not in str(path):
        write_sentinel(path, outcome)


def _decode(raw: bytes) -> SpawnParams:
    try:
        return msgspec.json.decode(raw, type=SpawnParams)
    except msgspec.ValidationError as error:
        mistakes = find_mistakes(msgspec.json.decode(raw), SpawnParams)
        errors = [{"path": mistake.path, "message": mistake.message} for mistake in mistakes]
        if not errors:
            errors = [{"path": "$", "message": str(error)}]
        field = errors[0]["path"].removeprefix("$").removeprefix(".") or "params"
        text = "; ".join(f"{each['path']}: {each['message']}" for each in errors)
        raise InvalidParams(f"spawn: {text}", data={"field": field, "errors": errors}) from error


def _check_dir(directory: str) -> None:
    if not os.path.isdir(directory):
        raise _bad("dir", f"dir {directory}: there is no such directory; make it, or choose another")


def _read_prompt(path: str) -> str:
    try:
        text = read_regular(path, limit_bytes=_FILE_LIMIT_BYTES).decode()
    except OSError as error:
        raise _bad("prompt_file", f"prompt_file {path}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise _bad("prompt_file", f"prompt_file {path}: it is not UTF-8") from error
    if not text.strip():
        raise _bad("prompt_file", f"prompt_file {path}: it is empty")
    return text


def _bad(field: str, message: str) -> InvalidParams:
    return InvalidParams(message, data={"field": field})


def _listed(error: AvenorError) -> AvenorError:
    """The error with its own message as the only entry of `data.errors`, unless it lists them already."""
    with contextlib.suppress(KeyError):
        path: Any = error.data["field"]
        error.data.setdefault("errors", [{"path": f"$.{path}", "message": error.message}])
    return error
