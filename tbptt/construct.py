"""Sections of a recipe -> objects: a constructor is called with the keys it has, and wrong ones are named."""

import difflib
import importlib
import inspect
from collections.abc import Callable, Iterable
from typing import Any

from lightning.fabric.utilities.exceptions import MisconfigurationException

from tbptt.errors import UserError, refusal

Recipe = dict[str, Any]

# A configuration may name these and nothing else: it must not become a way to call anything at all.
TARGETS = ("tbptt.", "torch.optim.", "lightning.pytorch.loggers.", "lightning.pytorch.callbacks.")

# What people ask for and cannot have, with the reason.
NEVER = {
    "model.bidirectional": "a bidirectional language model would see the very token it must predict",
    "data.shuffle": "windows come in the order of the text, or the state carried between them means nothing",
    "data.num_workers": "windows are slices of memory, which no worker process could bring sooner",
}


def call(
    function: Callable[..., Any], key: str, values: dict[str, Any], *, also: Iterable[str] = (), **passed: Any
) -> Any:
    """Call a constructor with a section of the recipe, and with what this module knows.

    `also` are keys of the section that something else reads.

    Raises:
        UserError: for a name the constructor does not have, one that is missing, or a value that it refuses.
    """
    names = inspect.signature(function).parameters
    free = any(item.kind is item.VAR_KEYWORD for item in names.values())
    known = [name for name, item in names.items() if item.kind is not item.VAR_KEYWORD and name not in passed]
    for name in values:
        if f"{key}.{name}" in NEVER:
            raise UserError(f"{key}.{name} cannot be set: {NEVER[f'{key}.{name}']}.")
        if name not in known and not free:
            near = difflib.get_close_matches(name, [*known, *also], n=1)
            hint = f"did you mean {key}.{near[0]}?" if near else f"it has {', '.join([*known, *sorted(also)])}."
            raise UserError(f"{key}.{name} is not a key of {function.__name__}; {hint}")
    for name in known:
        if names[name].default is inspect.Parameter.empty and name not in values:
            raise UserError(f"{key}.{name} must be given; write {key}.{name}=VALUE.")
    try:
        return function(**values, **passed)
    except UserError:
        raise
    except (TypeError, ValueError, RuntimeError, MisconfigurationException) as error:
        raise UserError(f"{key}: {function.__name__} refuses these values: {error}") from error


def instance(key: str, section: Recipe, **passed: Any) -> Any:
    """The object that a section with `_target_` describes.

    Raises:
        UserError: when the target is not allowed or does not take these values.
    """
    function = target(key, section)
    return call(function, key, {name: value for name, value in section.items() if name != "_target_"}, **passed)


def target(key: str, section: Recipe) -> Callable[..., Any]:
    """The class that a section names.

    Raises:
        UserError: when it is outside the project's and torch's and Lightning's own, or does not exist.
    """
    if not isinstance(section, dict):
        raise refusal(key, "be a section with a _target_", section, f"take it away with ~{key}, or set keys of it")
    name = str(section.get("_target_"))
    if not name.startswith(TARGETS):
        raise UserError(f"{key}._target_ must start with one of {', '.join(TARGETS)}, but it is {name!r}.")
    try:
        module, _, attribute = name.rpartition(".")
        found: Callable[..., Any] = getattr(importlib.import_module(module), attribute)
    except (ImportError, AttributeError) as error:
        raise UserError(f"{key}._target_ must name a class, but there is no {name!r}.") from error
    return found
