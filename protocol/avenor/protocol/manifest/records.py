"""What members of a manifest hand over: typed results with evidence, instead of prose.

A member submits its result with the tool `submit_result`, whose parameters `Result` describes. An agent that has no
such tool ends its last message with a fenced block that holds the same object:

    ```avenor-result
    {"source_revision": "…", "plan_epoch": 7, "findings": […]}
    ```
"""

import re
from collections.abc import Sequence
from typing import Annotated, Final, Literal

import msgspec
from msgspec import Meta

FENCE: Final = "avenor-result"
# More findings than a person reads are no result; a joined prompt has to hold them all.
FINDINGS_LIMIT: Final = 100
_TEXT_LIMIT: Final = 16 * 1024

Uncertainty = Literal["low", "medium", "high"]
VerdictWord = Literal["accept", "repair", "reject", "needs_human"]

_BLOCK: Final = re.compile(
    r"^[ ]{0,3}(?P<fence>`{3,}|~{3,})[ \t]*(?:json[ \t]+)?"
    + FENCE
    + r"[ \t]*\r?\n(?P<body>.*?)^[ ]{0,3}(?P=fence)[`~]*[ \t]*\r?$",
    re.MULTILINE | re.DOTALL,
)


class Evidence(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """Where a finding can be seen.

    Attributes:
        source: A path in the repository, or the id of a receipt.
        location: Lines or a symbol in it.
        quote: What stands there.
    """

    source: Annotated[
        str, Meta(min_length=1, max_length=4096, description="A path in the repository, or a receipt's id")
    ]
    location: Annotated[str, Meta(max_length=1024, description="Lines, as 12-18, or a symbol")] = ""
    quote: Annotated[str, Meta(max_length=_TEXT_LIMIT, description="What stands there, word for word")] = ""


class Finding(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """One finding. Two findings about the same `subject` that claim different things are a conflict.

    Attributes:
        subject: What it is about, in the same words whoever speaks of it.
        claim: What holds of the subject, in a few words: this is what is compared.
        finding: The whole of it, for people.
        evidence: Where it can be seen.
        uncertainty: How likely it is to be wrong.
        artifact_digest: Of what was looked at or made, as `sha256:…`.
        unresolved_question: What somebody else has to decide.
    """

    subject: Annotated[
        str, Meta(min_length=1, max_length=512, description="What the finding is about, as a short stable name")
    ]
    claim: Annotated[str, Meta(min_length=1, max_length=1024, description="What holds of the subject, in a few words")]
    finding: Annotated[str, Meta(min_length=1, max_length=_TEXT_LIMIT, description="The whole finding, for people")]
    evidence: Annotated[list[Evidence], Meta(max_length=100, description="Where it can be seen")] = []
    uncertainty: Annotated[Uncertainty, Meta(description="How likely it is to be wrong")] = "medium"
    artifact_digest: Annotated[str, Meta(max_length=256, description="sha256:… of what was looked at or made")] = ""
    unresolved_question: Annotated[str, Meta(max_length=4096, description="What somebody else has to decide")] = ""


class Result(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """What an attempt has come to.

    Attributes:
        source_revision: The revision that was looked at, as the task named it.
        plan_epoch: The plan's number, as the task named it.
        findings: At least one: an empty result is no result.
        summary: For people; nothing is decided by it.
        blocked: What it cannot go on without, where that is so.
    """

    source_revision: Annotated[str, Meta(min_length=1, max_length=256, description="The revision that your task named")]
    plan_epoch: Annotated[int, Meta(ge=0, description="The plan epoch that your task named")]
    findings: Annotated[
        list[Finding], Meta(min_length=1, max_length=FINDINGS_LIMIT, description="At least one finding")
    ]
    summary: Annotated[str, Meta(max_length=_TEXT_LIMIT, description="For people; nothing is decided by it")] = ""
    blocked: Annotated[str, Meta(max_length=4096, description="What you cannot go on without, if that is so")] = ""


class Verdict(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """What the evaluator decides of a candidate.

    Attributes:
        verdict: `repair` asks for one bounded repair, and has to name the criterion that failed.
        revision: The candidate that was judged.
        failed_criterion: What the candidate does not meet.
        reason: For people.
        evidence: Receipts and places that show it.
    """

    verdict: Annotated[
        VerdictWord, Meta(description="accept, repair (names the failed criterion), reject or needs_human")
    ]
    revision: Annotated[str, Meta(min_length=1, max_length=256, description="The candidate revision that was judged")]
    failed_criterion: Annotated[str, Meta(max_length=1024, description="Which criterion the candidate fails")] = ""
    reason: Annotated[str, Meta(max_length=_TEXT_LIMIT, description="For people")] = ""
    evidence: Annotated[list[Evidence], Meta(max_length=100)] = []


class NoResult(ValueError):
    """A message holds no result; the text says what is wrong with what it holds, for the agent."""


_decode_result: Final = msgspec.json.Decoder(Result).decode
_decode_verdict: Final = msgspec.json.Decoder(Verdict).decode


def read_result(data: bytes) -> Result:
    """The result in a JSON object.

    Raises:
        NoResult: It is none; the message names field, value and what is expected.
    """
    try:
        return _decode_result(data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise NoResult(f"this is no result: {error}") from error


def read_verdict(data: bytes) -> Verdict:
    """The verdict in a JSON object.

    Raises:
        NoResult: It is none, or asks for a repair without naming what failed.
    """
    try:
        verdict = _decode_verdict(data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise NoResult(f"this is no verdict: {error}") from error
    if verdict.verdict == "repair" and not verdict.failed_criterion.strip():
        raise NoResult("failed_criterion: a repair has to name the criterion that the candidate fails")
    return verdict


def fenced_block(text: str) -> bytes | None:
    """What stands in the last fenced block for results of a message; None if there is none."""
    blocks = [match["body"] for match in _BLOCK.finditer(text)]
    return blocks[-1].encode() if blocks else None


def key_of(text: str) -> str:
    """A subject or claim, so that the same words are equal."""
    return " ".join(_words(text))


def unresolved_questions(results: Sequence[Result]) -> list[str]:
    """The questions that findings leave to somebody else, each once."""
    asked = (finding.unresolved_question for result in results for finding in result.findings)
    return list(dict.fromkeys(question for question in asked if question))


def _words(text: str) -> list[str]:
    return text.casefold().split()
