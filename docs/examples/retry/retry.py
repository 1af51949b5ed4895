"""Calls that may time out are tried again."""

from collections.abc import Callable


def retry(call: Callable[[], str], attempts: int) -> str:
    """What `call` returns, tried up to `attempts` times."""
    for _ in range(attempts - 1):
        try:
            return call()
        except TimeoutError:
            continue
    raise TimeoutError(f"{attempts} attempts")
