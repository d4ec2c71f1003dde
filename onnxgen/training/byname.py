"""Looks up classes and functions by name, and checks their arguments."""

from __future__ import annotations

import difflib
import importlib
import inspect
import os
import re
import sys
from collections.abc import Iterable, Mapping
from types import ModuleType
from typing import Any, TypeVar

from onnxgen.errors import OnnxgenError, typed

Entry = TypeVar("Entry")
FUNCTION = re.compile(r"[\w.]+:\w+")  # module:function


def by_name(name: str, known: Mapping[str, Entry], what: str) -> Entry:
    """Return the entry of `known` with this name, ignoring case. `what` names the kind of entry in the error.

    Raises:
        OnnxgenError: there is no such entry. The error lists up to three that contain `name` or are spelled like it.
    """
    folded, text = {key.lower(): key for key in known}, name.strip().lower()
    if text in folded:
        return known[folded[text]]
    within = [key for key in folded if len(text) > 2 and text in key]
    likely = [folded[key] for key in within[:3] or difflib.get_close_matches(text, folded, n=3, cutoff=0.65)]
    way_out = f"perhaps {', '.join(likely)}" if likely else f"one of {', '.join(sorted(known))}"
    raise OnnxgenError(f"no {what} is called {name!r}", help=way_out)


def subclasses_in(module: ModuleType, base: type[Entry]) -> dict[str, type[Entry]]:
    """Return the public subclasses of `base` in a module, by name."""
    classes = {name: one for name, one in vars(module).items() if inspect.isclass(one) and not name.startswith("_")}
    return {name: one for name, one in classes.items() if issubclass(one, base) and one is not base}


def check_arguments(chosen: type, arguments: Mapping[str, object], preset: Iterable[str]) -> None:
    """Check that a class accepts these arguments, and that no required argument is missing.

    Args:
        preset: parameters that the caller sets itself; `arguments` may not contain them.

    Raises:
        OnnxgenError: an argument is unknown, or a required one is missing.
    """
    takes = {n: p for n, p in inspect.signature(chosen).parameters.items() if n not in preset}
    for name in arguments:
        if name not in takes:
            way = f"its arguments are {', '.join(takes)}"
            raise OnnxgenError(f"{chosen.__name__} has no argument {name!r}", help=way)
    for name, parameter in takes.items():
        if parameter.default is parameter.empty and name not in arguments:
            raise OnnxgenError(f"{chosen.__name__} needs {name!r}", help="give it among the arguments")


def imported(spec: str, what: str, help: str) -> Any:
    """Return what "module:name" names. The module may also be in the current folder.

    Raises:
        OnnxgenError: there is no such module, or no such name in it. `what` says what it is for.
    """
    module, name = spec.split(":")
    here = os.getcwd()
    sys.path.insert(0, here)
    try:
        return getattr(importlib.import_module(module), name)
    except Exception as error:  # the module's code may raise anything
        raise OnnxgenError(f"{what} {spec}: {typed(error)}", help=help) from error
    finally:
        if here in sys.path:
            sys.path.remove(here)
