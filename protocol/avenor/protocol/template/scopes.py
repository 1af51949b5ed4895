"""Variables of a template, block by block."""

from typing import Generic, TypeVar

T = TypeVar("T")


class Scope(Generic[T]):
    """The variables of one block; those of the blocks around it are seen through it.

    Args:
        variables: Its own, by name with the dollar sign; it is changed by declarations.
        outer: The block around it; None for a whole template.
    """

    __slots__ = ("_outer", "_variables")

    def __init__(self, variables: dict[str, T], outer: "Scope[T] | None" = None) -> None:
        self._variables = variables
        self._outer = outer

    def declare(self, name: str, value: T) -> None:
        """Makes a new variable in this block, which hides an outer one of the name."""
        self._variables[name] = value

    def assign(self, name: str, value: T) -> bool:
        """Changes the variable in the innermost block that has it; False if there is none."""
        scope = self._holding(name)
        if scope is None:
            return False
        scope._variables[name] = value
        return True

    def find(self, name: str) -> T | None:
        """The value of a variable; None, too, if there is none."""
        scope = self._holding(name)
        return None if scope is None else scope._variables[name]

    def _holding(self, name: str) -> "Scope[T] | None":
        scope: Scope[T] | None = self
        while scope is not None and name not in scope._variables:
            scope = scope._outer
        return scope
