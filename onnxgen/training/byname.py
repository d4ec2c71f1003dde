"""Classes that are asked for by name, and their arguments."""

from __future__ import annotations

import difflib
import inspect
from collections.abc import Iterable, Mapping
from types import ModuleType
from typing import TypeVar

from onnxgen.errors import OnnxgenError

Entry = TypeVar("Entry")


def by_name(name: str, known: Mapping[str, Entry], what: str) -> Entry:
    """The entry of that name, whatever its case.

    Raises:
        OnnxgenError: there is none (the error lists near matches).
    """
    folded = {key.lower(): key for key in known}
    if name.lower() in folded:
        return known[folded[name.lower()]]
    likely = near(name, known)
    way_out = f"perhaps {', '.join(likely)}" if likely else f"one of {', '.join(sorted(known))}"
    raise OnnxgenError(f"no {what} is called {name!r}", help=way_out)


def classes_of(module: ModuleType, base: type[Entry]) -> dict[str, type[Entry]]:
    """The public classes of a module that are kinds of another, by name."""
    found = {name: one for name, one in vars(module).items() if inspect.isclass(one) and not name.startswith("_")}
    return {name: one for name, one in found.items() if issubclass(one, base) and one is not base}


def near(name: str, known: Iterable[str]) -> list[str]:
    """Up to three of the known names that this one may stand for: it is in them, or is spelled much like them."""
    folded, text = {key.lower(): key for key in known}, name.strip().lower()
    within = [key for key in folded if len(text) > 2 and text in key]
    return [folded[key] for key in within[:3] or difflib.get_close_matches(text, folded, n=3, cutoff=0.65)]


def check_arguments(chosen: type, arguments: Mapping[str, object], given: Iterable[str]) -> None:
    """See that a class takes these arguments, and has all that it needs.

    Args:
        given: what it gets besides, and is no one else's to set.

    Raises:
        OnnxgenError: it does not take one, or needs another.
    """
    takes = {n: p for n, p in inspect.signature(chosen).parameters.items() if n not in given}
    for name in arguments:
        if name not in takes:
            raise OnnxgenError(
                f"{chosen.__name__} has no argument {name!r}", help=f"its arguments are {', '.join(takes)}"
            )
    for name, parameter in takes.items():
        if parameter.default is parameter.empty and name not in arguments:
            raise OnnxgenError(f"{chosen.__name__} needs {name!r}", help="give it among the arguments")
