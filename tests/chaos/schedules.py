"""What happens in a schedule, and how one is drawn from a seed.

A schedule is a list of steps that stand for themselves: each can be left out, and the others still mean something. That
is what makes a failing one small enough to read.
"""

import random
from collections.abc import Sequence
from typing import Final, Literal

import msgspec

from tests.chaos.rehearsed_manifest import KINDS

Do = Literal["spawn", "prompt", "interrupt", "open", "answer", "cancel", "kill", "arm", "reconnect", "restart", "fence"]
Wait = Literal["session", "started", "none"]
OnCrash = Literal["fail", "resume"]
Ending = Literal["graceful", "cancel"]

# Where a process can be killed on purpose. `resume.*` are reached only by what is to be resumed.
RESUME_PLACES: Final = ("resume.begun", "resume.replayed")
PLACES: Final = (
    "spawn.before_record",
    "spawn.after_record",
    "launch.after_fork",
    "runtime.before_lock",
    "runtime.after_lock",
    "runtime.before_ready",
    "session.mid_handshake",
    "spawn.before_answer",
    "turn.after_start",
    "permission.pending",
    "cancel.begun",
    "phase.before_end",
    "phase.after_end",
    "end.before_log",
    "sentinel.before_rename",
    "sentinel.after_rename",
    "end.after_sentinel",
    "settle.before_log",
    "settle.after_log",
    "adopt.begun",
    "manifest.attempt_opened",
    "manifest.before_end",
    *RESUME_PLACES,
)

SINGLE: Final = ("quick", "gate", "ask", "tool")
PHASED: Final = ("loop", "team")
MANIFESTS: Final = KINDS
_MOST_RUNS: Final = 5
_WAITS: Final[Sequence[Wait]] = ("session", "session", "session", "started", "none")
# How often the next step waits until nothing moves.
_SETTLED: Final = 0.7
# Of a cancel: nobody waits for its answer.
UNANSWERED: Final = "unanswered"
_VICTIMS: Final = ("supervisor", "supervisor", "supervisor", "zygote", "runtime", "runtime", "agent", "machine")


class Step(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One thing that is done.

    Attributes:
        run: Which run is meant, by the number that its spawn gave it.
        what: The kind of run, of prompt or of answer, what is killed, or the place that is armed.
        on_crash: Of a spawn.
        key: Whether a spawn has a key, and so is asked for again when its answer is lost.
        wait: What the answer of a spawn waits for; with `none` nobody waits for the answer.
        settled: Whether the next step waits until nothing moves any more.
    """

    do: Do
    run: int = 0
    what: str = ""
    on_crash: OnCrash = "fail"
    key: bool = False
    wait: Wait = "session"
    settled: bool = True

    def describe(self) -> str:
        """The step in one line."""
        run = f"r{self.run}"
        match self.do:
            case "spawn":
                extras = [f"on_crash={self.on_crash}", f"wait={self.wait}", *(["key"] if self.key else [])]
                text = f"spawn {run}: {self.what} ({', '.join(extras)})"
            case "fence":
                text = f"spawn {run}: {self.what}, its process held before its lock until the next supervisor is up"
            case "kill":
                whom = "everything there is" if self.what == "machine" else f"the {self.what}"
                text = f"SIGKILL to {whom}" + (f" of {run}" if self.what in ("runtime", "agent") else "")
            case "arm":
                text = f"whoever comes to {self.what} first is killed there"
            case "reconnect" | "restart":
                text = self.do if self.do == "reconnect" else "shutdown detach, and a new supervisor"
            case _:
                text = f"{self.do} {run} {self.what}".rstrip()
        return text if self.settled else f"{text}, and at once:"


class Schedule(msgspec.Struct, frozen=True, kw_only=True):
    """One life of a state directory.

    Attributes:
        max_runtimes: Of its supervisors; a small one makes spawns wait.
        ending: How the last supervisor brings everything to its end.
    """

    seed: int
    number: int
    steps: Sequence[Step]
    max_runtimes: int
    ending: Ending


def make_schedule(seed: int, number: int, *, can_resume: bool) -> Schedule:
    """The schedule of this number. The first ones kill at each place in turn; the others do whatever comes."""
    chance = random.Random(f"{seed}/{number}")
    directed = list(directed_steps(can_resume=can_resume))
    steps = list(directed[number]) if number < len(directed) else []
    runs = 1 + max((step.run for step in steps), default=-1)
    steps += _draw(chance, runs, length=chance.randint(1, 3) if steps else chance.randint(5, 11), can_resume=can_resume)
    return Schedule(
        seed=seed,
        number=number,
        steps=steps,
        max_runtimes=chance.choice((1, 2, 16, 16)),
        ending=chance.choice(("graceful", "cancel")),
    )


def directed_steps(*, can_resume: bool) -> list[Sequence[Step]]:
    """For each place a beginning that comes to it; the fence; and a manifest's writer that is lost in its work."""
    begun: list[Sequence[Step]] = []
    for index, place in enumerate(PLACES):
        if place in RESUME_PLACES and not can_resume:
            continue
        begun.append(_kill_at(place, 0, "resume" if can_resume and index % 2 else "fail"))
    begun.append((Step(do="fence", run=0, what="gate"), Step(do="open", run=0)))
    on_crash: OnCrash = "resume" if can_resume else "fail"
    writing = Step(do="spawn", run=0, what="writing", on_crash=on_crash)
    for whom in ("runtime", "agent", "machine"):
        begun.append((writing, Step(do="kill", run=0, what=whom), Step(do="open", run=0)))
    begun.append((writing, Step(do="arm", what="manifest.before_end"), Step(do="open", run=0)))
    return begun


def _kill_at(place: str, run: int, on_crash: OnCrash) -> Sequence[Step]:
    """Steps that arm a place and come to it, with a new run of this number."""

    def spawn(kind: str, on_crash: OnCrash = on_crash) -> Step:
        return Step(do="spawn", run=run, what=kind, on_crash=on_crash, key=True)

    arm, kill = Step(do="arm", what=place), Step(do="kill", run=run, what="runtime")
    match place.partition(".")[0]:
        case "permission":
            return (arm, spawn("ask"))
        case "manifest":
            return (arm, spawn("reading"))
        case "phase":
            return (arm, spawn("team"))
        case "cancel" | "end" | "sentinel":
            return (arm, spawn("gate"), Step(do="cancel", run=run))
        case "settle":
            return (arm, spawn("gate", "fail"), kill)
        case "adopt":
            return (arm, spawn("gate"), Step(do="kill", what="supervisor"), Step(do="reconnect"))
        case "resume":
            return (arm, spawn("gate", "resume"), kill)
        case _:
            return (arm, spawn("tool"))


def _draw(chance: random.Random, runs: int, *, length: int, can_resume: bool) -> list[Step]:
    """Steps at random; the first run comes before anything is done to one."""
    steps: list[Step] = []
    while len(steps) < length:
        drawn = _draw_step(chance, runs, can_resume=can_resume)
        if drawn is None:
            continue
        if drawn.do == "arm" and runs < _MOST_RUNS and (can_resume or drawn.what not in RESUME_PLACES):
            steps += _kill_at(drawn.what, runs, drawn.on_crash)
            runs += 1
            continue
        if drawn.do in ("spawn", "fence"):
            runs += 1
        steps.append(msgspec.structs.replace(drawn, settled=chance.random() < _SETTLED))
    return steps


def _draw_step(chance: random.Random, runs: int, *, can_resume: bool) -> Step | None:
    weights = {
        "spawn": 8 if runs < _MOST_RUNS else 0,
        "kill": 6,
        "prompt": 3,
        "interrupt": 1,
        "open": 3,
        "answer": 3,
        "arm": 3,
        "cancel": 2,
        "reconnect": 2,
        "restart": 1,
        "fence": 1 if runs < _MOST_RUNS else 0,
    }
    do = chance.choices(list(weights), list(weights.values()))[0]
    on_crash: OnCrash = "resume" if can_resume and chance.random() < 0.6 else "fail"
    run = chance.randrange(max(1, runs))
    match do:
        case "spawn" | "fence":
            return Step(
                do="spawn" if do == "spawn" else "fence",
                run=runs,
                what=chance.choice((*SINGLE, *PHASED, *MANIFESTS)),
                on_crash=on_crash,
                key=chance.random() < 0.5,
                wait=chance.choice(_WAITS),
            )
        case "arm":
            return Step(do="arm", what=chance.choice(PLACES), on_crash=on_crash)
        case "reconnect":
            return Step(do="reconnect")
        case "restart":
            return Step(do="restart")
        case _:
            pass
    if runs == 0:
        return None
    match do:
        case "kill":
            return Step(do="kill", run=run, what=chance.choice(_VICTIMS))
        case "prompt":
            return Step(do="prompt", run=run, what=chance.choice(SINGLE))
        case "interrupt":
            return Step(do="interrupt", run=run, what=chance.choice(SINGLE))
        case "open":
            return Step(do="open", run=run)
        case "answer":
            return Step(do="answer", run=run, what=chance.choice(("once", "reject")))
        case _:
            return Step(do="cancel", run=run, what=chance.choice(("", "", UNANSWERED)))
