"""Lists of classes of other tools in a file's metadata: rewritten, in their own form, if the classes are others."""

from __future__ import annotations

from collections.abc import Sequence

from onnxgen.record.labels import KEYS, alphabet_of, read_list


def relabelled(entries: dict[str, str], classes: Sequence[str]) -> tuple[dict[str, str], list[str]]:
    """Return entries with the new classes, and the keys of those that list others in a form that is unknown.

    An entry that lists the same classes stays as it is, also one that lacks the space at the end of an alphabet. A
    list with the name of the blank at one end keeps it there.
    """
    if not classes:
        return entries, []
    made, unknown = dict(entries), []
    for key, text in entries.items():
        if not KEYS.fullmatch(key):
            continue
        found = read_list(text)
        if found is None:
            del made[key]
            unknown.append(key)
        elif (new := _renamed(found[0], list(classes))) != found[0]:
            made[key] = found[1](new)
    return made, unknown


def _renamed(old: list[str], classes: list[str]) -> list[str]:
    """Return a list with the new classes; the old one if it has the same."""
    alphabet = alphabet_of(old)
    if alphabet is None:
        return classes
    same = alphabet.of(len(classes) + 1)
    if same is not None and [*same.characters] == classes:
        return old
    if alphabet.blank is None or not all(len(name) == 1 for name in classes):
        return classes
    return [old[0], *classes] if alphabet.blank == 0 else [*classes, old[-1]]
