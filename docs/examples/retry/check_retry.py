"""Checks retry.py; run as a program, it fails if anything is wrong."""

from retry import retry


def attempts_until(succeeds_at: int, allowed: int) -> int:
    """How often a call is made that succeeds at this attempt; 0 if it was given up."""
    made = 0

    def call() -> str:
        nonlocal made
        made += 1
        if made < succeeds_at:
            raise TimeoutError
        return "done"

    try:
        retry(call, allowed)
    except TimeoutError:
        return 0
    return made


assert attempts_until(1, allowed=3) == 1
assert attempts_until(3, allowed=3) == 3, "the last attempt is not made"
assert attempts_until(4, allowed=3) == 0, "more attempts than allowed"
print("retry: 3 checks passed")
