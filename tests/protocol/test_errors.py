"""The error tree and its mapping to JSON-RPC."""

import msgspec
import pytest

from avenor.protocol import errors
from avenor.protocol.errors import AvenorError, ErrorObject, NotOwner, from_wire, to_wire

ALL = [cls for cls in vars(errors).values() if isinstance(cls, type) and issubclass(cls, AvenorError)]


@pytest.mark.parametrize("cls", ALL, ids=lambda cls: cls.__name__)
def test_an_error_that_crosses_the_wire_keeps_code_reason_and_data(cls: type[AvenorError]) -> None:
    """The other side can tell errors apart by code and reason, and sees the data."""
    before = cls("it broke: mend it", data={"field": "x"}, retryable=True)

    after = from_wire(to_wire(before))

    assert before.code == after.code
    assert before.message == after.message
    assert cls.reason == after.reason_word
    assert after.retryable
    assert after.data == {"field": "x"}


def test_a_reason_can_be_more_precise_than_its_class() -> None:
    """`reason` overrides the class's word, on both sides."""
    after = from_wire(to_wire(NotOwner("no", reason="other_owner", data={"owner": "c1"})))

    assert isinstance(after, NotOwner)
    assert after.reason_word == "other_owner"


@pytest.mark.parametrize(
    ("error", "kind", "data"),
    [
        (ErrorObject(code=-32010, message="no"), NotOwner, {}),
        (ErrorObject(code=-1, message="no"), AvenorError, {}),
        (ErrorObject(code=-1, message="no", data=msgspec.Raw(b'"text"')), AvenorError, {"value": "text"}),
        (ErrorObject(code=-1, message="no", data=msgspec.Raw(b"[1]")), AvenorError, {"value": [1]}),
        (ErrorObject(code=-1, message="no", data=msgspec.Raw(b"null")), AvenorError, {"value": None}),
    ],
)
def test_foreign_error_objects_are_taken_as_they_come(error: ErrorObject, kind: type, data: object) -> None:
    """A peer that is not avenor may send any code and any data."""
    after = from_wire(error)

    assert kind is type(after)
    assert data == after.data
    assert not after.retryable


def test_the_text_of_an_error_for_a_log_says_what_it_is() -> None:
    """`repr` names the class, the message and the data."""
    assert repr(NotOwner("no", data={"owner": "c1"})) == "NotOwner('no', reason='not_owner', data={'owner': 'c1'})"
