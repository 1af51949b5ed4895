"""Which fields the template of a phase may use, and what is wrong with one."""

from typing import Final

from avenor.protocol.configs import ConfigKind
from avenor.protocol.events import PhaseKind
from avenor.protocol.templates import TemplateError, TemplateProblem, parse_template

_EVERYWHERE: Final = frozenset({"RunID", "Phase", "WorkDir", "PrevPhaseCommit", "DiffStat", "ChangedFiles"})
_IN_LOOPS: Final = frozenset({"Iteration", "MaxIterations"})
_AFTER_TEAMS: Final = frozenset({"TeamOutput"})

_WHERE: Final = {
    **dict.fromkeys(sorted(_IN_LOOPS), "in loops"),
    **dict.fromkeys(sorted(_AFTER_TEAMS), "in the post phases of teams"),
}


def template_fields(config_kind: ConfigKind, phase_kind: PhaseKind) -> frozenset[str]:
    """The fields that a prompt in that list of that kind of config may use, without the dot."""
    if config_kind == "loop":
        return _EVERYWHERE | _IN_LOOPS
    return _EVERYWHERE | _AFTER_TEAMS if phase_kind == "post" else _EVERYWHERE


def find_template_mistakes(text: str, config_kind: ConfigKind, phase_kind: PhaseKind) -> list[str]:
    """What is wrong with a template, each as a sentence that starts with its line and column."""
    fields = template_fields(config_kind, phase_kind)
    problems = _problems(text, fields)
    if not problems:
        return []
    lacking = {field: _places(text, fields | {field}) for field in _WHERE if field not in fields}
    return [_sentence(problem, lacking) for problem in problems]


def _problems(text: str, fields: frozenset[str]) -> list[TemplateProblem]:
    try:
        parse_template(text, fields=fields)
    except TemplateError as error:
        return list(error.problems)
    return []


def _places(text: str, fields: frozenset[str]) -> set[tuple[int, int]]:
    return {(problem.line, problem.column) for problem in _problems(text, fields)}


def _sentence(problem: TemplateProblem, lacking: dict[str, set[tuple[int, int]]]) -> str:
    """The problem, and where the field exists if the problem would not be there with that field."""
    place = (problem.line, problem.column)
    hints = [f"; .{field} exists only {_WHERE[field]}" for field, others in lacking.items() if place not in others]
    return f"{problem}{''.join(hints)}"
