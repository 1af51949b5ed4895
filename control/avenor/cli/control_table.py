"""The commands of `avenor control`, as data."""

from avenor.cli.run_flags import SPEC_FLAGS
from avenor.cli.table import CHOICE, COUNT, DURATION, FILE, RUNTIME, SWITCH, TEXT, Argument, Command, Flag

SOCKET = Flag(
    "--socket",
    FILE,
    "the socket of a supervisor or a run",
    metavar="PATH",
    default="$AVENOR_SOCKET, else $XDG_RUNTIME_DIR/avenor/stable.sock, else ~/.avenor/stable.sock",
)
JSON = Flag("--json", SWITCH, "print JSON, on a terminal too; errors of the server as well")
FORCE = Flag("--force", SWITCH, "take the ownership over if another client has it")
ID = Argument("ID", RUNTIME, "the runtime; without it the only live one")

SHUTDOWN_MODES = ("graceful", "drain", "detach", "kill")
LOG_LEVELS = ("debug", "info", "warning", "error")

EXITS = (
    (0, "done"),
    (1, "the server said no; its message is on stderr"),
    (2, "usage"),
    (3, "there is no server at the socket, or it went away before it had answered"),
    (130, "interrupted"),
)

STATUS = Command(
    "control status",
    "show one runtime, in full",
    arguments=(ID,),
    examples=("avenor control status", "avenor control --socket /tmp/avenor.sock status rt_1"),
    prints="the snapshot, a JSON object",
    exits=EXITS,
)
LIST = Command(
    "control list",
    "show every runtime",
    flags=(
        Flag("--ids", SWITCH, "print only the ids, one a line; gives up after a second (for completion and scripts)"),
        Flag("--fields", TEXT, "of each snapshot only these members, as JSON: names with commas", metavar="NAMES"),
    ),
    examples=(
        "avenor control list",
        "avenor control list --json",
        "avenor control list --fields runtime_id,label,outcome",
    ),
    prints="on a terminal a table, else a JSON array of snapshots",
    exits=EXITS,
)
TAIL = Command(
    "control tail",
    "follow the events of a runtime until its run ends",
    arguments=(ID,),
    flags=(
        Flag("--all", SWITCH, "follow every runtime, later ones too, until the server stops"),
        Flag("--replay", SWITCH, "begin with the events that are in the log"),
        Flag("--after-seq", COUNT, "begin after the event of this number", metavar="N"),
        Flag("--limit", COUNT, "replay at most the last N events", metavar="N"),
    ),
    about=(
        "No event is left out, however slowly they are read: what does not fit into memory comes from the log. "
        "On a terminal every event is one line and the agent's text runs on; --json gives the events there, too."
    ),
    examples=("avenor control tail rt_1 --replay", "avenor control tail rt_1 --after-seq 120 | jq -r .event"),
    prints="the events, one JSON object a line, each line as soon as it is there",
    exits=EXITS,
)
SPAWN = Command(
    "control spawn",
    "start a run under the supervisor",
    flags=(
        *SPEC_FLAGS,
        Flag("--key", TEXT, "makes it safe to repeat: the same key gives the same runtime", metavar="KEY"),
        Flag(
            "--wait",
            CHOICE,
            "answer when the agent has its session, or when the runtime has started",
            metavar="session|started",
            default="session",
            choices=("session", "started"),
        ),
        Flag(
            "--parent-id",
            RUNTIME,
            "the runtime that this one is a child of",
            metavar="ID",
            default="$AVENOR_RUNTIME_ID when the socket is $AVENOR_SOCKET",
        ),
        Flag(
            "--on-crash",
            CHOICE,
            "what comes of the run when its process is lost: it has failed, or a new one goes on with it",
            metavar="fail|resume",
            default="what the supervisor was started with",
            choices=("fail", "resume"),
        ),
    ),
    examples=(
        'avenor control spawn --prompt "Review PR #42" --dir /repo/A --label review-42',
        'avenor control spawn --backend scripted --prompt "say hello" --wait started',
    ),
    prints="runtime_id, session_id, on_event and sentinel_file, a JSON object",
    exits=EXITS,
)
CANCEL = Command(
    "control cancel",
    "end a run, its agent and all that the agent started",
    arguments=(ID,),
    flags=(FORCE,),
    examples=("avenor control cancel rt_1",),
    prints="`cancelled`, when the processes are gone",
    exits=EXITS,
)
PROMPT = Command(
    "control prompt",
    "give the agent another prompt, after the turn that is running",
    arguments=(Argument("TEXT", TEXT, "the prompt", required=True), ID),
    flags=(FORCE,),
    examples=('avenor control prompt "Continue with the next step"', 'avenor control prompt "Continue" rt_1'),
    prints="`accepted`, or `queued` where other prompts go first",
    exits=EXITS,
)
INTERRUPT = Command(
    "control interrupt-and-prompt",
    "cut the running turn short and give this prompt instead",
    arguments=(Argument("TEXT", TEXT, "the prompt", required=True), ID),
    flags=(Flag("--keep-queue", SWITCH, "keep the prompts that wait; they come after this one"), FORCE),
    examples=('avenor control interrupt-and-prompt "Stop, and write down what you have" rt_1',),
    prints="`accepted`",
    exits=EXITS,
)
ANSWER_PERMISSION = Command(
    "control answer-permission",
    "settle a permission request",
    arguments=(
        Argument("REQUEST", TEXT, "the id of the request, from list, status or tail", required=True),
        Argument("OPTION", TEXT, "the id of the option", required=True),
        ID,
    ),
    flags=(Flag("--message", TEXT, "a word to the agent with the answer", metavar="TEXT", may_be_empty=True), FORCE),
    examples=("avenor control answer-permission perm_1 once rt_1",),
    prints="`accepted`",
    exits=EXITS,
)
RESULT = Command(
    "control result",
    "show the agent's last reply, complete",
    arguments=(ID,),
    examples=("avenor control result rt_1", "avenor control result rt_1 --json | jq -r .final_output"),
    prints="final_output and stop_reason, a JSON object",
    exits=EXITS,
)
HISTORY = Command(
    "control history",
    "show past events, of ended runtimes too",
    arguments=(ID,),
    flags=(
        Flag("--after-seq", COUNT, "begin after the event of this number", metavar="N", default="0"),
        Flag("--limit", COUNT, "at most so many events", metavar="N", default="64"),
    ),
    examples=("avenor control history rt_1 --after-seq 100 --limit 10",),
    prints="events, latest_seq and complete, a JSON object",
    exits=EXITS,
)
SHUTDOWN = Command(
    "control shutdown",
    "stop the supervisor; on the socket of a single run, cancel it",
    arguments=(
        Argument(
            "MODE",
            CHOICE,
            "graceful (default) cancels every run; drain waits for them; detach leaves them running; kill is immediate",
            choices=SHUTDOWN_MODES,
        ),
    ),
    flags=(Flag("--wait", SWITCH, "return when its process has ended, so that another can start in its place"),),
    about=(
        "With --wait the command ends with status 1, and asks nothing of the server, where its process cannot be seen, "
        "as from another container."
    ),
    examples=("avenor control shutdown graceful", "avenor control shutdown detach --wait"),
    prints="`stopping`; with --wait, `stopped`",
    exits=EXITS,
)
CLAIM = Command(
    "control claim",
    "become the owner of a runtime: its permissions are yours to answer",
    arguments=(ID,),
    flags=(Flag("--hold", SWITCH, "keep the ownership until interrupted"), FORCE),
    about=(
        "Ownership ends with the connection. So without --hold it ends at once, which with --force frees a runtime "
        "from an owner that is stuck. With --hold the command ends with status 1 when another client takes over."
    ),
    examples=("avenor control claim rt_1 --hold",),
    prints="`claimed`",
    exits=EXITS,
)
PRUNE = Command(
    "control prune",
    "forget runtimes that ended long ago, and remove their files",
    flags=(
        Flag("--keep", DURATION, "keep those that ended less than so long ago", metavar="TIME", required=True),
        Flag("--dry-run", SWITCH, "forget nothing, only tell which it would be"),
    ),
    about=(
        "Runtimes that have not ended are never touched, nor the parents of such ones, nor files that a spawn named "
        "elsewhere; and ids are never used again. `avenor stable --keep` does this by itself."
    ),
    examples=("avenor control prune --keep 7d", "avenor control prune --keep 7d --dry-run --json"),
    prints="`pruned`, and how many; with --json their ids, a JSON object",
    exits=EXITS,
)
LOG_LEVEL = Command(
    "control log-level",
    "show or change how much the supervisor logs",
    arguments=(Argument("LEVEL", CHOICE, "the least important messages to log from now on", choices=LOG_LEVELS),),
    about="Until the supervisor ends: the next one begins with its own --log-level.",
    examples=("avenor control log-level", "avenor control log-level debug"),
    prints="the level",
    exits=EXITS,
)

CONTROL = Command(
    "control",
    "look at and steer a supervisor or a run through its socket",
    flags=(SOCKET, JSON),
    about="The flags of the group may come before or after the command. Runtimes go by id, run id or label.",
    examples=("avenor control list", "avenor control --socket /tmp/avenor.sock tail"),
    exits=EXITS,
    commands=(
        STATUS,
        LIST,
        TAIL,
        SPAWN,
        CANCEL,
        PROMPT,
        INTERRUPT,
        ANSWER_PERMISSION,
        RESULT,
        HISTORY,
        SHUTDOWN,
        CLAIM,
        PRUNE,
        LOG_LEVEL,
    ),
)
