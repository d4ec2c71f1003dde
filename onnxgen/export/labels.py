"""Lists of classes that other tools keep in a file's metadata: rewritten, in their own form, if the classes are others.

names       {0: 'person', 1: 'bicycle'}      ultralytics: a dict, as Python or JSON writes it
classes     ["person", "bicycle"]            a list, as either writes it
character   one character in each line       PaddleOCR
labels      person,bicycle
"""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Callable, Sequence
from typing import Any

KEYS = re.compile(r"(class|label)?_?names|class(es)?|labels?|id2label|characters?|alphabet|categories", re.IGNORECASE)


def relabelled(entries: dict[str, str], classes: Sequence[str]) -> tuple[dict[str, str], list[str]]:
    """Return entries with the new classes, and the keys of those that list others in a form that is unknown.

    An entry that lists the same classes stays as it is.
    """
    if not classes:
        return entries, []
    made, unknown = dict(entries), []
    for key, text in entries.items():
        if not KEYS.fullmatch(key):
            continue
        found = _read(text)
        if found is None:
            del made[key]
            unknown.append(key)
        elif found[0] != list(classes):
            made[key] = found[1](list(classes))
    return made, unknown


Write = Callable[[list[str]], str]


def _read(text: str) -> tuple[list[str], Write] | None:
    """Return the classes that a text lists, and what writes others in its form."""
    for parse, write in ((json.loads, _as_json), (ast.literal_eval, repr)):
        try:
            found = parse(text)
        except (ValueError, SyntaxError, RecursionError, MemoryError):
            continue
        if isinstance(found, list) and all(isinstance(name, str) for name in found):
            return found, write
        if isinstance(found, dict) and found and _is_counted(found):
            kind = type(next(iter(found)))
            return list(found.values()), lambda names, k=kind, w=write: w({k(i): n for i, n in enumerate(names)})
        return None
    for between in ("\n", ","):
        names = text.split(between)
        if len(names) > 1:
            return _listed(names, between)
    return None


def _as_json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)


def _is_counted(found: dict[Any, Any]) -> bool:
    """True for a dict of names by 0, 1, 2, ..., as numbers or as text."""
    names = all(isinstance(name, str) for name in found.values())
    return names and ([*found] == [*range(len(found))] or [*found] == [*map(str, range(len(found)))])


def _listed(names: list[str], between: str) -> tuple[list[str], Write]:
    """Of names with something between them, and perhaps behind the last one."""
    end = between if not names[-1] else ""
    return names[: len(names) - bool(end)], lambda new: between.join(new) + end
