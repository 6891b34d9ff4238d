"""What a user did that cannot work, said in plain words: which key, what must hold, what was given, what to do."""

import difflib
import math
from collections.abc import Sequence


class UserError(ValueError):
    """A mistake the user can mend. Scripts print its text without a traceback and exit with status 2."""


def refusal(key: str, rule: str, given: object, remedy: str) -> UserError:
    """Build the one sentence every refusal has: `KEY must RULE, but it is GIVEN; REMEDY.`."""
    return UserError(f"{key} must {rule}, but it is {given!r}; {remedy}.")


def check_integer(key: str, value: object, minimum: int, remedy: str) -> None:
    """Refuse anything but an int of at least `minimum` (a bool is not an int here).

    Raises:
        UserError: naming `key`, the bound and what was given.
    """
    if isinstance(value, bool) or not isinstance(value, int) or value < minimum:
        raise refusal(key, f"be an integer of at least {minimum}", value, remedy)


def check_number(
    key: str, value: object, remedy: str, *, minimum: float = 0.0, below: float = math.inf, exclusive: bool = False
) -> None:
    """Refuse anything but a finite number in [minimum, below), or in (minimum, below) if `exclusive`.

    Raises:
        UserError: naming `key`, the bounds and what was given.
    """
    number = isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)
    if not number or not minimum <= value < below or (exclusive and value == minimum):  # type: ignore[operator]
        low = f"greater than {minimum:g}" if exclusive else f"of at least {minimum:g}"
        high = "" if below == math.inf else f" and less than {below:g}"
        raise refusal(key, f"be a number {low}{high}", value, remedy)


def check_choice(key: str, value: object, choices: Sequence[object]) -> None:
    """Refuse a value outside `choices`, naming the nearest one.

    Raises:
        UserError: naming `key`, all choices and what was given.
    """
    if not any(value == choice and type(value) is type(choice) for choice in choices):
        near = difflib.get_close_matches(str(value), [str(choice) for choice in choices], n=1)
        remedy = f"did you mean {near[0]}?" if near else "take one of these"
        names = ", ".join("null" if choice is None else str(choice) for choice in choices)
        raise UserError(f"{key} must be one of {names}, but it is {value!r}; {remedy}")
