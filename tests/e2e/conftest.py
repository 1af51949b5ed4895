"""What every end-to-end test may ask for."""

from collections.abc import Generator

import pytest

from tests.e2e.harness import Client, Place, Stable, open_place


@pytest.fixture
def place() -> Generator[Place, None, None]:
    """A directory and all processes of one test."""
    with open_place() as opened:
        yield opened


@pytest.fixture
def stable(place: Place) -> Stable:
    """A supervisor of this test's own."""
    return Stable(place)


@pytest.fixture(scope="module")
def shared() -> Generator[Stable, None, None]:
    """One supervisor for the tests of a module, which must leave it as well as they found it."""
    with open_place() as opened:
        yield Stable(opened, "--max-runtimes", "100", "--max-parked", "100")


@pytest.fixture
def client(shared: Stable) -> Generator[Client, None, None]:
    """A client of the shared supervisor; what the test left running is ended through the protocol, which must work."""
    with Client(shared.socket) as connected:
        yield connected
    with Client(shared.socket) as connected:
        live = [each["runtime_id"] for each in connected.call("list") if each["status"] != "ended"]
        for answer in [connected.send("cancel", runtime_id=runtime_id, force=True) for runtime_id in live]:
            connected.answer(answer)
        assert [each["status"] for each in connected.call("list") if each["status"] != "ended"] == []
