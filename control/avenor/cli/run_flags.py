"""The flags that say what a run is: those of `avenor run`, and of `avenor control spawn`.

Their keys are the fields of `avenor.protocol.spec.RunSpec`. The backends are listed once more here, because that module
is too heavy for the fast path; a test keeps both lists alike.
"""

from avenor.cli.parsing import UsageError, Values, absolute, utf8
from avenor.cli.table import BACKEND, COUNT, DIRECTORY, DURATION, FILE, NAME, SWITCH, TEXT, Command, Flag

BACKENDS = (
    "opencode-acp",
    "claude-acp",
    "codex-acp",
    "codex-app-server",
    "copilot-acp",
    "cursor-acp",
    "gemini-acp",
    "opencode-http",
    "pi",
    "qwen-acp",
    "acp",
    "scripted",
)

SPEC_FLAGS = (
    Flag("--prompt", TEXT, "what the agent is to do", metavar="TEXT"),
    Flag("--prompt-file", FILE, "read the prompt from this file instead", metavar="FILE"),
    Flag("--loop-file", FILE, "run the phases of this loop config, over and over", metavar="FILE"),
    Flag("--team-file", FILE, "run the phases of this team config, its members at the same time", metavar="FILE"),
    Flag("--manifest", FILE, "run the members of this manifest, held to what it says", metavar="FILE"),
    Flag("--roster", FILE, "what the names in the manifest stand for", metavar="FILE"),
    Flag(
        "--max-parallel",
        COUNT,
        "how many members of the manifest work at once",
        metavar="N",
        default="as many as its graph allows",
    ),
    Flag("--unsandboxed", SWITCH, "let the members of the manifest work without a sandbox"),
    Flag("--fail-on-max-iterations", SWITCH, "a loop that nothing ends before its limit has failed"),
    Flag(
        "--dir", DIRECTORY, "the working directory; other relative paths are relative to it", metavar="DIR", default="."
    ),
    Flag(
        "--backend",
        BACKEND,
        "which kind of agent, or a backend of your own",
        metavar="NAME",
        default="opencode-acp",
        choices=BACKENDS,
    ),
    Flag("--agent", TEXT, "the agent (mode) to use, of those that the program offers", metavar="NAME"),
    Flag("--model", TEXT, "the model to use, of those that the program offers", metavar="ID"),
    Flag("--thinking", TEXT, "the thinking level, of those that the program offers", metavar="LEVEL"),
    Flag("--label", TEXT, "a name for people, shown in lists", metavar="TEXT"),
    Flag("--run-id", TEXT, "the id of the run; made up without it", metavar="ID"),
    Flag("--resume", TEXT, "go on with this session of the agent", metavar="SESSION"),
    Flag("--agent-command", TEXT, "the program of backend acp, as a command line", metavar="COMMAND"),
    Flag("--script", FILE, "the script that backend scripted plays", metavar="FILE"),
    Flag(
        "--server-url",
        TEXT,
        "a server that runs already, for backend opencode-http",
        metavar="URL",
        default="$AVENOR_OPENCODE_URL, else one is started",
    ),
    Flag("--mcp-config", FILE, "the MCP servers to hand to the agent", metavar="FILE"),
    Flag(
        "--env",
        NAME,
        "add to the agent's environment; without a value, the one that NAME has here",
        metavar="NAME[=VALUE]",
        repeats=True,
    ),
    Flag("--on-event", FILE, "write the events to this file as well, one JSON object a line", metavar="FILE"),
    Flag("--sentinel-file", FILE, "write how it ended to this file", metavar="FILE"),
    Flag(
        "--permission-handler",
        TEXT,
        "ask for permissions through BASE.req and BASE.req.response",
        metavar="file:BASE",
        default="derived from --sentinel-file",
    ),
    Flag("--auto-approve", SWITCH, "allow once what the agent asks, where its profile is trusted"),
    Flag(
        "--timeout",
        DURATION,
        "end the whole run after so long, the agent's start included",
        metavar="TIME",
        default="off",
    ),
    Flag(
        "--progress-timeout",
        DURATION,
        "end it when nothing has happened for so long",
        metavar="TIME",
        default="off; 15m for opencode-acp, gemini-acp and qwen-acp, which are silent when their model fails",
    ),
    Flag("--handshake-timeout", DURATION, "how long the agent has to open a session", metavar="TIME", default="60s"),
    Flag("--max-retries", COUNT, "try a turn that failed so often again", metavar="N", default="0"),
    Flag(
        "--permission-claim-timeout",
        DURATION,
        "how long a connected owner has before the file handler is tried as well",
        metavar="TIME",
        default="30s",
    ),
)


def spec_fields(command: Command, values: Values, environ: dict[str, str]) -> dict[str, object]:
    """The fields of a `RunSpec` that were given, with `env` as a mapping, and an absolute `dir`.

    Raises:
        UsageError: There is nothing to do, or two things; a name without a value in `--env` is not set here; there is
            no such `dir` to be had.
    """
    fields = {flag.key: values.raw(flag.key) for flag in SPEC_FLAGS if flag.key in values}
    fields["dir"] = absolute(command, "--dir", values.text("dir") or ".")
    if "env" in fields:
        fields["env"] = dict(_assignment(command, text, environ) for text in values.texts("env"))
    if "prompt" in fields and "prompt_file" in fields:
        raise UsageError("give --prompt or --prompt-file, not both", command)
    files = [name for name in ("loop_file", "team_file", "manifest") if name in fields]
    if len(files) > 1:
        one, other = (name.replace("_", "-") for name in files[:2])
        raise UsageError(f"give --{one} or --{other}, not both", command)
    if not files and fields.keys().isdisjoint(("prompt", "prompt_file")):
        raise UsageError(
            "--prompt TEXT, --prompt-file FILE, --loop-file FILE, --team-file FILE or --manifest FILE is needed",
            command,
        )
    return fields


def _assignment(command: Command, text: str, environ: dict[str, str]) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not name:
        raise UsageError(f"--env: {text!r} has no name", command)
    if equals:
        return name, value
    if name not in environ:
        raise UsageError(f"--env: {name} is not set here; give it as {name}=VALUE", command)
    return name, utf8(command, f"--env {name}", environ[name])
