"""Takes the edits of a module over into the text that is generated now: a three-way merge.

The base of the merge is the text that the edited module was generated as. It is in the metadata of the weights.
"""

from __future__ import annotations

import ast
import builtins
import hashlib
import re
from collections.abc import Iterator, Sequence
from contextlib import suppress
from difflib import SequenceMatcher

from onnxgen.code.render import formatted
from onnxgen.record.base import FINGERPRINT_LINE, UNREADABLE, bare, filled, fingerprint

_MAX_EXACT = 5_000  # lines; past that, comparing frequent ones takes long, and so does black
_WRITTEN = "A merge as onnxgen wrote it:"
_SIGNATURE = re.compile(rf"^# {_WRITTEN} ([0-9a-f]{{16}})\n*\Z", re.MULTILINE)
Lines = Sequence[str]


# ---- the merge -------------------------------------------------------------------------------------------------------


def merge(base: str, mine: str, new: str, name: str, same: bool = False) -> tuple[str, str]:
    """Merge an edited module `mine`, and the text `new` that is generated now.

    Lines that only one side changed are taken from it. If there are conflicts and black's formatting of the texts has
    fewer of them, the result is formatted: the person may have formatted the file otherwise.

    Args:
        base: of `base_of`, or the generated text itself.
        name: of the module, for the conflict markers.
        same: base and new differ in comments and docstrings only. Then there is no conflict: the edited lines are kept.

    Returns:
        The text, with conflict markers if there are conflicts; and why it can't replace the module ("in which nothing
        sets x"), "" if it can.
    """
    texts = [bare(text) for text in (base, _SIGNATURE.sub("", mine), new)]
    text, conflicts = _merged(texts, texts, name, same)
    if conflicts and all(one.count("\n") < _MAX_EXACT for one in texts):
        with suppress(*UNREADABLE):
            other, fewer = _merged([formatted(one, keep_commas=False) for one in texts], texts, name, same)
            text = other if fewer < conflicts else text
    text = filled(text, new)
    at = [str(number) for number, line in enumerate(text.split("\n"), 1) if line.startswith("<" * 7 + " ")]
    if not at:
        return text, _doubt(text, mine, new)
    return text, f"with conflicts at lines {', '.join(at)}" if len(at) > 1 else f"with a conflict at line {at[0]}"


def _merged(texts: Lines, originals: Lines, name: str, same: bool) -> tuple[str, int]:
    """Return the merge of base, mine and new, and the number of conflicts. `originals`: before they were formatted."""
    base, mine, new = texts
    if base == mine:
        return originals[2], 0
    if base == new or mine == new:
        return originals[1], 0
    lines: list[str] = []
    conflicts = 0
    for old, ours, theirs in _changes(*(text.split("\n") for text in texts)):
        if old == ours or ours == theirs:
            lines += theirs
        elif old == theirs:
            lines += ours
        else:
            conflicts += 1
            if same:
                lines += ours
                continue
            lines += [f"<<<<<<< {name}, edited", *ours, "||||||| generated before", *old]
            lines += ["=======", *theirs, ">>>>>>> generated now"]
    return "\n".join(lines), conflicts


def _changes(base: Lines, mine: Lines, new: Lines) -> Iterator[tuple[Lines, Lines, Lines]]:
    """Yield the texts in parts: a line that all have, or what lies between two such lines."""
    ours, theirs = _pairs(base, mine), _pairs(base, new)
    at = (0, 0, 0)
    for line in [*sorted(ours.keys() & theirs.keys()), len(base)]:
        end = (line, ours.get(line, len(mine)), theirs.get(line, len(new)))
        yield base[at[0] : end[0]], mine[at[1] : end[1]], new[at[2] : end[2]]
        yield base[line : line + 1], base[line : line + 1], base[line : line + 1]
        at = (end[0] + 1, end[1] + 1, end[2] + 1)


def _pairs(base: Lines, other: Lines) -> dict[int, int]:
    """Return which line of `other` is which line of the base.

    An insertion moves down where that says the same, as in git: a method is inserted after a blank line, not before.
    """
    long = len(base) > _MAX_EXACT  # then frequent lines are paired only beside others
    blocks = SequenceMatcher(None, base, other, autojunk=long).get_matching_blocks()
    pairs = {block.a + n: block.b + n for block in blocks for n in range(block.size)}
    for block, after in zip(blocks, blocks[1:]):
        line, first, end = block.a + block.size, block.b + block.size, after.b
        while pairs.get(line) == end and other[first] == other[end]:
            pairs[line] = first
            line, first, end = line + 1, first + 1, end + 1
    return pairs


# ---- a merge beside the module, which may be written over until somebody changes it ---------------------------------


def signed(text: str) -> str:
    """Return a merge with its digest in a comment at the end, which the next merge removes."""
    return f"{text}# {_WRITTEN} {_digest(text)}\n"


def is_as_signed(text: str) -> bool:
    """Return True if a merge is as `signed` made it."""
    found = _SIGNATURE.search(text)
    return found is not None and _digest(text[: found.start()]) == found[1]


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:16]


# ---- what a merge without a conflict may still break -----------------------------------------------------------------


def _doubt(text: str, mine: str, new: str) -> str:
    """Return why a merge can't replace the module: it does not parse, or one side took away what the other one uses."""
    try:
        (used, known), *sides = map(_names, (text, mine, new))
    except UNREADABLE as error:
        return "which is not Python" + (f" (line {at})" if (at := getattr(error, "lineno", None)) else "")
    if "Model" not in known:
        return "which has no class Model"
    if FINGERPRINT_LINE.findall(text) != [fingerprint(new)]:
        return "which has not one FINGERPRINT"
    unset = used - known - {name for side_used, side_known in sides for name in side_used - side_known}
    return f"in which nothing sets {', '.join(sorted(unset))}" if unset else ""


def _names(text: str) -> tuple[set[str], set[str]]:
    """Return the names, and attributes of `self`, that a module uses, and those that something sets."""
    used: set[str] = set()
    known = set(dir(builtins))
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, (ast.Name, ast.Attribute)):
            name = node.id if isinstance(node, ast.Name) else f"self.{node.attr}"
            if not isinstance(node.ctx, ast.Load):
                known.add(name)
            elif isinstance(node, ast.Name) or isinstance(node.value, ast.Name) and node.value.id == "self":
                used.add(name)
        elif isinstance(node, (ast.FunctionDef, ast.ClassDef)):
            known |= {node.name, f"self.{node.name}"}
        elif isinstance(node, ast.arg):
            known.add(node.arg)
        elif isinstance(node, ast.alias):
            known.add((node.asname or node.name).split(".")[0])
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):  # the name of a buffer
            known.add(f"self.{node.value}")
    return used, known
