"""The commands of `avenor`, as data; those of `control` are in `control_table`."""

from avenor.cli.control_table import CONTROL, LOG_LEVELS, SOCKET
from avenor.cli.run_flags import BACKENDS, SPEC_FLAGS
from avenor.cli.table import (
    BACKEND,
    CHOICE,
    COUNT,
    DIRECTORY,
    DURATION,
    FILE,
    PAGE,
    RUNTIME,
    SWITCH,
    TEXT,
    Argument,
    Command,
    Flag,
)

SHELLS = ("bash", "zsh", "fish")
HOSTS = ("opencode", "claude", "codex")

HTTP_FLAGS = (
    Flag(
        "--http-debug",
        TEXT,
        "answer HTTP on this loopback address; :8080 means 127.0.0.1:8080",
        metavar="ADDR",
        default="off",
    ),
    Flag(
        "--http-token-file",
        FILE,
        "where the token for HTTP goes, new with every start",
        metavar="FILE",
        default="beside the socket, SOCKET.token; a run without one names it on stderr",
    ),
)

RUN = Command(
    "run",
    "run one agent, a loop, a team or a manifest to the end",
    flags=(
        *SPEC_FLAGS,
        Flag(
            "--control-socket",
            FILE,
            "open a control socket while the run lasts; relative to where you are",
            metavar="PATH",
        ),
        *HTTP_FLAGS,
        Flag("--quiet", SWITCH, "print nothing but errors"),
    ),
    about=(
        "The word `run` may be left out. The run ends when its work and its prompt queue are empty and the agent's "
        "processes are gone. Times are written 250ms, 30s, 5m, 1h30m or 7d; a bare number is seconds."
    ),
    examples=(
        'avenor run --prompt "List the files in this directory and exit." --sentinel-file run.done',
        'avenor --backend scripted --prompt "say hello"',
        "avenor run --team-file team.json --auto-approve --sentinel-file run.done",
        "avenor run --manifest team.yaml --roster roster.yaml --sentinel-file run.done",
    ),
    prints=(
        "on a terminal the turn, live, or a board of the phases; else only the agent's final reply, and everything "
        "else on stderr"
    ),
    exits=(
        (0, "the agent finished its turn"),
        (1, "it failed, usage, or its reply cannot be written"),
        (2, "the agent refused"),
        (3, "it ran out of tokens"),
        (4, "it ran out of requests for one turn"),
        (5, "blocked: a person is needed"),
        (6, "the budget is used up"),
        (124, "a timeout"),
        (130, "cancelled, or ended by a signal"),
    ),
    hidden_name=True,
)
STABLE = Command(
    "stable",
    "supervise many runs behind one socket",
    flags=(
        Flag(
            "--control-socket",
            FILE,
            "the socket to serve",
            metavar="PATH",
            default="$XDG_RUNTIME_DIR/avenor/stable.sock, else ~/.avenor/stable.sock",
        ),
        Flag(
            "--state-dir",
            DIRECTORY,
            "where the runtimes' directories are",
            metavar="DIR",
            default="$XDG_STATE_HOME/avenor/stable/<id of the socket path>",
        ),
        Flag("--max-runtimes", COUNT, "how many runtimes may work at once", metavar="N", default="16"),
        Flag("--queue", COUNT, "how many spawns may wait for a place; 0 refuses them", metavar="N", default="64"),
        Flag(
            "--max-tree",
            COUNT,
            "how many runtimes may work at once in one tree of parents and children",
            metavar="N",
            default="64",
        ),
        Flag(
            "--max-parked", COUNT, "how many idle runtimes keep their agent; the oldest goes", metavar="N", default="16"
        ),
        Flag(
            "--idle-timeout",
            DURATION,
            "stop when there was no live runtime and no client for so long",
            metavar="TIME",
            default="off",
        ),
        Flag(
            "--parked-timeout",
            DURATION,
            "how long an idle runtime is kept for another prompt",
            metavar="TIME",
            default="30m",
        ),
        Flag(
            "--shutdown-timeout",
            DURATION,
            "how long a graceful shutdown waits before it kills, and a detach for runs that just start",
            metavar="TIME",
            default="10s",
        ),
        Flag(
            "--on-sigterm",
            CHOICE,
            "what SIGTERM means: cancel the runs, or leave them running",
            metavar="graceful|detach",
            default="graceful",
            choices=("graceful", "detach"),
        ),
        Flag(
            "--on-crash",
            CHOICE,
            "what comes of a run whose process is lost, where its spawn does not say: it has failed, or a new process "
            "restores its session and goes on",
            metavar="fail|resume",
            default="fail",
            choices=("fail", "resume"),
        ),
        Flag(
            "--max-resumes",
            COUNT,
            "how often a run goes on within --resume-window; then it has failed",
            metavar="N",
            default="3",
        ),
        Flag(
            "--resume-window",
            DURATION,
            "see --max-resumes",
            metavar="TIME",
            default="10m",
        ),
        Flag(
            "--permission-claim-timeout",
            DURATION,
            "how long a connected owner has before the file handler is tried as well, where a spawn does not say",
            metavar="TIME",
            default="30s",
        ),
        Flag(
            "--keep",
            DURATION,
            "forget runtimes that ended longer ago, and remove their files: at the start, and every hour",
            metavar="TIME",
            default="off",
        ),
        *HTTP_FLAGS,
        Flag(
            "--log-level",
            CHOICE,
            "the least important messages to log",
            metavar="LEVEL",
            default="info",
            choices=LOG_LEVELS,
        ),
        Flag(
            "--log-format",
            CHOICE,
            "how to log, on stderr",
            metavar="console|json",
            default="console on a terminal, else json",
            choices=("console", "json"),
        ),
    ),
    about=(
        "Every run is a process of its own that outlives the supervisor. SIGINT shuts down gracefully, SIGHUP leaves "
        "the runs running, a second SIGINT or SIGTERM kills. Those that are ignored when it starts stay ignored, as "
        "with nohup."
    ),
    examples=("avenor stable", "avenor stable --control-socket /tmp/avenor-stable.sock --max-runtimes 4"),
    prints="nothing; its log is on stderr",
    exits=((0, "it was asked to stop, and did"), (1, "it could not start, or failed"), (2, "usage")),
)
WATCH = Command(
    "watch",
    "digest an event log, also while it is written",
    arguments=(Argument("LOG", FILE, "the event log of a run", required=True),),
    flags=(
        Flag("--follow", SWITCH, "go on until the run has ended; waits for a log that is not there yet"),
        Flag(
            "--format",
            CHOICE,
            "lines of words, or the events themselves, one JSON object a line",
            metavar="plain|json",
            default="plain",
            choices=("plain", "json"),
        ),
        Flag(
            "--classify",
            SWITCH,
            "put MILESTONE, FINDING or ACTIVITY before each line; with json as its member `classify`",
        ),
        Flag("--accumulate", SWITCH, "join the chunks of a message: one line for each, when it has ended"),
        Flag(
            "--since-cursor",
            FILE,
            "begin where this file says that the last watch ended, and keep it up to date; it holds a byte offset",
            metavar="FILE",
        ),
    ),
    about=(
        "A line is EVENT, the event's name, its session (- if there is none) and an excerpt of at most 120 characters. "
        "MILESTONE are the start and end of a session, loop or team, the end of a phase, a permission request, a "
        "retry, an error, the statuses waiting and done, and a completed `git commit`; FINDING is a message with "
        "`[finding]`, a confidence of 60% or more, `failed test`, `correction needed` or `reviewer flagged`. What is "
        "no event goes to stderr with its line's number. A log that was truncated or replaced is read from its "
        "beginning."
    ),
    examples=(
        "avenor watch --classify events.ndjson",
        "avenor watch --follow --classify --accumulate events.ndjson | grep --line-buffered -v ^ACTIVITY",
        "avenor watch --since-cursor seen --format json events.ndjson",
    ),
    prints="a line for each event, as soon as it is there",
    exits=(
        (0, "the log is read, or with --follow the run has ended"),
        (1, "a file cannot be read or written"),
        (2, "usage"),
        (130, "interrupted"),
        (141, "nobody reads the lines any more"),
    ),
)
AWAIT = Command(
    "await",
    "wait until a run is done, or wants attention",
    arguments=(Argument("TARGET", RUNTIME, "a runtime id, a run id or a label", required=True),),
    flags=(
        SOCKET,
        Flag(
            "--until",
            CHOICE,
            "attention: done, or a permission is pending; done: however many permissions are asked for",
            metavar="attention|done",
            default="attention",
            choices=("attention", "done"),
        ),
        Flag("--timeout", DURATION, "wait at most so long; the run goes on", metavar="TIME", default="off"),
        Flag("--print-output", SWITCH, "print the agent's final reply, complete, once the run is done"),
        Flag("--json", SWITCH, "print the snapshot of the run; errors of the server as JSON too"),
    ),
    about=(
        "A run is done when it has ended, or is parked and waits for another prompt. When the supervisor goes away, "
        "the wait goes on with the next one on the same socket: as long as --timeout lasts, without it for a minute. "
        "A run that is resumed after a crash is waited for as before."
    ),
    examples=(
        "avenor await review-42",
        "avenor await rt_1 --until done --timeout 30m --print-output",
        "avenor await rt_1 --json | jq .permission",
    ),
    prints=(
        "what it came to, in one line; with --print-output the agent's final reply instead, with --json the snapshot, "
        "in which final_output is complete if --print-output is given too"
    ),
    exits=(
        (0, "done"),
        (2, "usage, or several live runs have that label"),
        (3, "lost: the run's process, the supervisor, or there is no such run"),
        (10, "the run failed"),
        (11, "the run timed out"),
        (12, "the run was killed"),
        (13, "the run is blocked: a person is needed"),
        (14, "the run's budget is exhausted"),
        (20, "a permission is pending"),
        (124, "--timeout was over first"),
        (130, "interrupted"),
    ),
)
REPORT = Command(
    "report",
    "make a page of runs that have ended: time line, outcomes, permissions, cost",
    arguments=(Argument("LOG", FILE, "the event log of a run", repeats=True, required=True),),
    flags=(
        Flag("--output", FILE, "write the page to this file; -o is short for it", metavar="FILE"),
        Flag("--json", SWITCH, "print the figures: an array with an object for each log"),
    ),
    about=(
        "The page needs no other file and no host. It has for each run the time line, what each phase and turn came "
        "to, permissions and who answered them, retries, errors, tokens and cost, and what was waited for. A run that "
        "has not ended is shown as far as it came. The page replaces an older one; any other file is left alone."
    ),
    examples=(
        "avenor report events.ndjson --output report.html",
        "avenor report --json runs/*.ndjson | jq '.[].usage.total_tokens'",
    ),
    prints="nothing, or with --json the figures",
    exits=(
        (0, "the page is written, the figures are printed"),
        (1, "a file cannot be read or written, or holds no event"),
        (2, "usage"),
    ),
)
ANSWER = Command(
    "answer",
    "answer a permission request that a run wrote to a file",
    arguments=(
        Argument("BASE", FILE, "as in --permission-handler file:BASE: the request is in BASE.req", required=True),
    ),
    flags=(
        Flag("--option", TEXT, "the id of the option; not needed with --outcome cancelled", metavar="ID"),
        Flag("--message", TEXT, "a word to the agent with the answer", metavar="TEXT", may_be_empty=True),
        Flag(
            "--outcome",
            CHOICE,
            "choose an option, or refuse to choose",
            metavar="selected|cancelled",
            default="selected",
            choices=("selected", "cancelled"),
        ),
        Flag("--force", SWITCH, "replace an answer that is already there"),
    ),
    examples=("avenor answer run.perm --option once", "avenor answer run.perm --outcome cancelled"),
    prints="`answered`",
    exits=(
        (0, "the answer is written"),
        (1, "a file cannot be read or written"),
        (2, "no request there, an option that is not offered, an answer that is already there, or usage"),
    ),
)
VERIFY = Command(
    "verify",
    "check loop, team and manifest files as a run would",
    arguments=(Argument("FILE", FILE, "a loop or team config, or a manifest", repeats=True, required=True),),
    flags=(
        Flag(
            "--kind",
            CHOICE,
            "what the files are",
            metavar="loop|team|manifest",
            default="a manifest with `schema_version` in it, a loop with `loop` or `max_iterations`, else a team",
            choices=("loop", "team", "manifest"),
        ),
        Flag("--roster", FILE, "what the names in manifests stand for", metavar="FILE"),
        Flag("--unsandboxed", SWITCH, "the members of manifests will work without a sandbox"),
        Flag("--initial", SWITCH, "the run will have a prompt: that is a phase before all others"),
        Flag("--json", SWITCH, "print an array of {file, kind, ok, errors, warnings, notes}, manifests with `price`"),
    ),
    about=(
        "Every mistake is told at once, in the file, in the files that it names and in their templates: with the file, "
        "the JSON path, what was found and what was expected. A file with neither `loop` nor `team` in it could be "
        "either; it is taken for a team, unless --kind says loop. Of a manifest it shows the plan as well: who waits "
        "for whom, the longest way through, how long that takes beside one after the other, and what is reserved of "
        "the budget."
    ),
    examples=(
        "avenor verify team.json",
        "avenor verify --kind loop --json loops/*.json",
        "avenor verify team.yaml --roster roster.yaml",
    ),
    prints="a line for each error, warning and note, and one for each file; of a manifest also its plan and price",
    exits=((0, "a run would take them all"), (1, "a run would refuse at least one"), (2, "usage")),
)
DOCTOR = Command(
    "doctor",
    "find out which agents work here",
    flags=(
        Flag(
            "--backend",
            BACKEND,
            "examine this one only, and tell everything about it",
            metavar="NAME",
            default="all",
            choices=BACKENDS,
            repeats=True,
        ),
        Flag("--json", SWITCH, "print an object, as docs/reference/schemas/doctor.schema.json describes it"),
        Flag("--dir", DIRECTORY, "where the sessions are opened", metavar="DIR", default="."),
        Flag("--agent-command", TEXT, "the program of backend acp, as a command line", metavar="COMMAND"),
        Flag(
            "--transcript",
            FILE,
            "write what is said with the agents to this file, one JSON object a line",
            metavar="FILE",
        ),
        Flag("--timeout", DURATION, "how long each agent has to open a session", metavar="TIME", default="60s"),
        Flag("--names", SWITCH, "print only the names of the backends, one a line (for completion and scripts)"),
    ),
    about=(
        "Each agent is started, asked for its version and for a session, and ended; no prompt is sent to it, so no "
        "model is asked. Nothing is left running. Agents may keep the empty session in their history."
    ),
    examples=(
        "avenor doctor",
        "avenor doctor --backend opencode-acp",
        'avenor doctor --backend acp --agent-command "my-agent --acp" --transcript said.ndjson',
        "avenor doctor --json | jq -r '.backends[] | select(.state == \"works\").backend'",
    ),
    prints="a table, or what is known of the backends that were named",
    exits=(
        (0, "what was named works; with nothing named, at least one agent does (`scripted` does not count)"),
        (1, "it does not"),
        (2, "usage"),
        (130, "interrupted; nothing is left running then, either"),
    ),
)
COMPLETION = Command(
    "completion",
    "print a completion script for a shell",
    arguments=(Argument("SHELL", CHOICE, "the shell", choices=SHELLS, required=True),),
    examples=('eval "$(avenor completion bash)"', "avenor completion fish > ~/.config/fish/completions/avenor.fish"),
    prints="the script",
    exits=((0, "done"), (2, "usage")),
)
MCP = Command(
    "mcp",
    "let an agent orchestrate others: an MCP server",
    flags=(
        Flag(
            "--transport",
            CHOICE,
            "how the host talks to it",
            metavar="stdio|http",
            default="stdio",
            choices=("stdio", "http"),
        ),
        Flag(
            "--addr",
            TEXT,
            "where to listen with --transport http: on this machine only",
            metavar="HOST:PORT",
            default="127.0.0.1:3748",
        ),
        Flag(
            "--auth-token-file",
            FILE,
            "a file with the bearer token that HTTP clients must have",
            metavar="FILE",
            default="$MCP_AUTH_TOKEN",
        ),
        Flag("--auth-token", TEXT, "the token itself, which every user of this machine can see", metavar="TOKEN"),
        Flag(
            "--supervisor-socket",
            FILE,
            "use the supervisor there",
            metavar="PATH",
            default="$AVENOR_SOCKET, else a private supervisor",
        ),
        Flag(
            "--control-socket",
            FILE,
            "the socket of the private supervisor, which is started if it is not there",
            metavar="PATH",
            default="$XDG_RUNTIME_DIR/avenor/mcp.sock, else ~/.avenor/mcp.sock",
        ),
        Flag("--no-autostart", SWITCH, "start no supervisor; needs --supervisor-socket"),
        Flag(
            "--idle-timeout",
            DURATION,
            "stop the private supervisor when there was no live run and no client for so long; 0 is never",
            metavar="TIME",
            default="30m",
        ),
    ),
    about=(
        "Its tools spawn agents, wait for them, answer their permission requests and steer them; an agent needs no"
        " other documentation. Runs go on when the host ends, and the next `avenor mcp` on the same socket finds "
        "them. Needs the MCP SDK: pip install 'avenor[mcp]'."
    ),
    examples=(
        "avenor mcp",
        "avenor mcp --supervisor-socket /tmp/avenor-stable.sock --no-autostart",
        "avenor mcp --transport http --addr 127.0.0.1:3748 --auth-token-file token.txt",
    ),
    prints="MCP messages, for the host, with --transport stdio; its log is on stderr",
    exits=(
        (0, "the host closed the connection"),
        (1, "the SDK is not installed, or the address cannot be had"),
        (2, "usage"),
    ),
)

TOP = Command(
    "top",
    "watch all runs in a table that is kept up to date",
    flags=(
        SOCKET,
        Flag("--once", SWITCH, "print the table once; so it is too where stdout is no terminal"),
    ),
    about=(
        "A run stands below the one that has started it. The table changes when something happens, and once a second "
        "for the times. Keys: arrows, j and k select, Enter shows the latest events of the selected run, Esc goes "
        "back, ? tells all keys, q ends. When the server goes away, it is looked for until it is back."
    ),
    examples=("avenor top", "avenor top --socket /tmp/avenor-stable.sock --once"),
    prints="the table",
    exits=(
        (0, "it was left with q, or printed once"),
        (1, "the server said no; its message is on stderr"),
        (2, "usage"),
        (3, "there is no server at the socket"),
        (130, "interrupted"),
        (143, "ended by SIGTERM"),
    ),
)
BOARD = Command(
    "board",
    "watch all runs in a browser, and answer and steer them there",
    flags=(
        SOCKET,
        Flag(
            "--addr",
            TEXT,
            "where to listen: on this machine only; port 0 is a free one",
            metavar="HOST:PORT",
            default="127.0.0.1:0",
        ),
        Flag(
            "--token-file",
            FILE,
            "where the token goes, new with every start",
            metavar="FILE",
            default="beside the socket, SOCKET.board-token",
        ),
        Flag("--open", SWITCH, "open the page in the default browser"),
    ),
    about=(
        "It is a client of the supervisor, or of the run, at the socket, and serves its page until it is interrupted. "
        "A supervisor that is replaced is found again. Whoever has the printed address can answer and steer runs. "
        "`avenor stable --http-debug` serves the same page itself."
    ),
    examples=(
        "avenor board",
        "avenor board --open",
        "avenor board --socket /tmp/avenor-stable.sock --addr 127.0.0.1:8080",
    ),
    prints="the address of the page, with its token",
    exits=(
        (0, "it was interrupted, or ended by SIGTERM"),
        (1, "the address or the token file cannot be had"),
        (2, "usage"),
        (3, "there is no server at the socket"),
    ),
)
DOCS = Command(
    "docs",
    "print the documentation, without a network",
    arguments=(Argument("PAGE", PAGE, "a page, by its path without .md, or by the last part of that"),),
    flags=(
        Flag("--search", TEXT, "print the lines with this word instead; letter case does not matter", metavar="WORD"),
        Flag("--names", SWITCH, "print only the names of the pages, one a line (for completion and scripts)"),
    ),
    about=(
        "Without a page it prints the one for agents, and then which pages there are. On a terminal the headings are "
        "bold; elsewhere it is the Markdown as it is."
    ),
    examples=("avenor docs", "avenor docs for-agents", "avenor docs --search sentinel", "avenor docs reference/cli"),
    prints="the page, the lines, or the list of pages",
    exits=((0, "done"), (1, "nothing was found"), (2, "no such page, or usage")),
)
INIT = Command(
    "init",
    "set a repository up for an agent that gives work to others",
    flags=(
        Flag(
            "--host",
            CHOICE,
            "the agent program that gives out the work",
            metavar="opencode|claude|codex",
            default="the only one that the repository, or else PATH, shows",
            choices=HOSTS,
            repeats=True,
        ),
        Flag("--dir", DIRECTORY, "the repository", metavar="DIR", default="."),
        Flag("--force", SWITCH, "replace files that differ"),
        Flag("--dry-run", SWITCH, "write nothing, only tell what it would be"),
    ),
    about=(
        "It writes a jockey that can give out work and change nothing, the workers horse and mule, a skill, an example "
        "of a team, and the configuration by which the host starts `avenor mcp`. A file that is there stays as it is, "
        "unless --force is given; a configuration file only gets what is missing."
    ),
    examples=("avenor init --host opencode", "avenor init --host claude --dir ~/src/app --dry-run"),
    prints="what became of each file, and what to do next",
    exits=(
        (0, "everything is there"),
        (1, "something differs and was kept, or could not be written"),
        (2, "usage, or it is not clear for which host"),
    ),
)

ROOT = Command(
    "",
    "supervises coding agents",
    flags=(Flag("--version", SWITCH, "print the version"),),
    about="Flags without a command mean `run`. `avenor COMMAND --help` tells more.",
    examples=(
        'avenor --prompt "List the files in this directory and exit."',
        "avenor stable",
        'avenor control spawn --prompt "Review PR #42" --label review-42',
        "avenor control list",
    ),
    exits=((0, "done"), (2, "usage")),
    commands=(
        RUN,
        STABLE,
        CONTROL,
        TOP,
        BOARD,
        WATCH,
        AWAIT,
        REPORT,
        ANSWER,
        VERIFY,
        DOCTOR,
        MCP,
        INIT,
        DOCS,
        COMPLETION,
    ),
)
