"""What other tools say of a network: metadata in its file.

    names       {0: 'person', 1: 'bicycle'}      ultralytics: a dict, as Python or JSON writes it
    classes     ["person", "bicycle"]            a list, as either writes it
    character   one character in each line       PaddleOCR
    labels      person,bicycle
    vocab.json  {"<pad>": 0, "a": 1}             Hugging Face: places by name

The metadata are lists of classes, the alphabet that one of them may be, and sizes of images. How
images are fed is in none of these: `training/data/presets.py` knows it of some networks.
"""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from onnxgen.common.built import json_object, read_json
from onnxgen.errors import OnnxgenError, one_line
from onnxgen.record.sidecar import TRAINED

KEYS = re.compile(r"(class|label)?_?names|class(es)?|labels?|id2label|characters?|alphabet|categories", re.IGNORECASE)
KEY = "alphabet"  # in the sidecar's metadata
PREFIX = "onnxgen."  # of the keys that exports write to `metadata_props`
BLANK = "<blank>"
SPACE = " "  # PaddleOCR adds it behind the list of the file
_SIZE = re.compile(r"\[(\d+), *(\d+)\]")
Write = Callable[[list[str]], str]


@dataclass(frozen=True)
class Alphabet:
    """The characters of a network that reads text, in the order of its classes, without the blank.

    Attributes:
        source: the key of the metadata that lists them.
        characters: also signs of several code points, of which no text of the data is made.
        blank: the class that stands for no character; None if the list does not say which.
    """

    source: str
    characters: tuple[str, ...]
    blank: int | None = None

    @property
    def listed(self) -> bool:
        """False if it is of a training with onnxgen, after which classes at the end may stand for no character."""
        return not self.source.startswith(PREFIX)

    def of(self, classes: int) -> Alphabet | None:
        """Return the alphabet of an output of so many classes; None if it is another number's.

        The list may lack the space that comes last. Of equal characters the last one counts, as in PaddleOCR.
        """
        characters = [*self.characters, *([SPACE] if len(self.characters) == classes - 2 else [])]
        if not self.listed:
            return self if len(self.characters) < classes else None
        if len(characters) != classes - 1:
            return None
        last = {character: place for place, character in enumerate(characters)}
        first = 1 if not self.blank else 0
        named = (c if last[c] == place else f"<{place + first}>" for place, c in enumerate(characters))
        return Alphabet(self.source, tuple(named), self.blank)


def alphabet_of(names: Sequence[str], source: str = "") -> Alphabet | None:
    """Return the alphabet that a list of classes is; None if it is no list of characters.

    An empty name at either end stands for the blank. So does the only name that is no single character, if it is the
    first or the last one.
    """
    for blank in (0, len(names) - 1) if names else ():
        others = (*names[:blank], *names[blank + 1 :])
        if not names[blank] and all(others) and 2 * sum(len(name) != 1 for name in others) < len(others):
            return Alphabet(source, others, blank)
    signs = [place for place, name in enumerate(names) if len(name) != 1]
    if 2 * len(signs) >= len(names):
        return None
    last = len(names) - 1
    if len(signs) == 1 and signs[0] in (0, last):
        return Alphabet(source, tuple(name for name in names if len(name) == 1), signs[0])
    return Alphabet(source, tuple(names)) if all(names) else None


def alphabet_in(entries: Mapping[str, str]) -> Alphabet | None:
    """Return the alphabet of a file by its metadata; None if nothing there lists characters.

    What an export of ours says of its run comes first, since it also names the blank.
    """
    if (own := trained_alphabet(entries.get(PREFIX + TRAINED, ""))) is not None:
        return own
    for key, text in entries.items():
        if KEYS.fullmatch(key) and (listed := read_list(text)) is not None:
            if (alphabet := alphabet_of(listed[0], key)) is not None:
                return alphabet
    return None


def trained_alphabet(contract: str) -> Alphabet | None:
    """Return the alphabet that the contract of a run names (`training.runs.contract`); None if there is none."""
    try:
        outputs = json_object(contract)["outputs"]
        texts = [entry for entry in outputs if entry["kind"] == "text" and entry["characters"]]
        return Alphabet(PREFIX + TRAINED, tuple(map(str, texts[0]["characters"])), int(texts[0]["blank"]))
    except (KeyError, TypeError, ValueError, IndexError):
        return None


def recorded_alphabet(metadata: Mapping[str, str]) -> Alphabet | None:
    """Return the alphabet that a sidecar's metadata records: that of its run, else that of the ONNX file."""
    if (own := trained_alphabet(metadata.get(TRAINED, ""))) is not None:
        return own
    try:
        return read_json(Alphabet, metadata[KEY])
    except (KeyError, ValueError):
        return None


def ultralytics_size(entries: Mapping[str, str]) -> tuple[int, int] | None:
    """Return the height and width of the training, which Ultralytics writes into its files; None for other files."""
    match = _SIZE.fullmatch(entries.get("imgsz", ""))
    return None if match is None else (int(match[1]), int(match[2]))


def read_list(text: str) -> tuple[list[str], Write] | None:
    """Return the classes that a text lists, and what writes others in its form."""
    for parse, write in ((json.loads, partial(json.dumps, ensure_ascii=False)), (ast.literal_eval, repr)):
        try:
            value = parse(text)
        except (ValueError, SyntaxError, RecursionError, MemoryError):
            continue
        if isinstance(value, list) and all(isinstance(name, str) for name in value):
            return value, write
        if isinstance(value, dict) and value and _is_counted(value):
            kind = type(next(iter(value)))
            return list(value.values()), lambda names, k=kind, w=write: w({k(i): n for i, n in enumerate(names)})
        if isinstance(value, dict) and _are_places(value):
            return sorted(value, key=value.__getitem__), lambda names, w=write: w({n: i for i, n in enumerate(names)})
        return None
    for between in ("\n", ","):
        names = text.split(between)
        if len(names) > 1:
            return _listed(names, between)
    return None


def _is_counted(names: dict[Any, Any]) -> bool:
    """True for a dict of names by 0, 1, 2, ..., as numbers or as text."""
    numbers = range(len(names))
    return all(isinstance(name, str) for name in names.values()) and [*names] in ([*numbers], [*map(str, numbers)])


def _are_places(names: dict[Any, Any]) -> bool:
    """True for a dict of places 0, 1, 2, ... by name, in any order, as Hugging Face's vocab.json."""
    whole = all(isinstance(name, str) and type(place) is int for name, place in names.items())
    return bool(names) and whole and sorted(names.values()) == [*range(len(names))]


def read_names(path: Path) -> list[str]:
    """Return the names of classes, or the characters, that a file lists in one of the forms above.

    An empty name at the first or the last place is the blank, `<blank>`.

    Raises:
        OnnxgenError: the file can't be read, or it lists nothing.
    """
    names = listed_names(path)
    return [BLANK if name == "" and place in (0, len(names) - 1) else name for place, name in enumerate(names)]


def listed_names(path: Path, option: str = "") -> list[str]:
    """Return the names that a file lists, as they are. Raises as `read_names`; the message begins with the option."""
    what = f"{option}: {path}" if option else str(path)
    try:
        listed = read_list(path.read_text(encoding="utf-8-sig"))
    except (OSError, UnicodeDecodeError) as error:
        raise OnnxgenError(f"{what} can't be read: {one_line(error)}") from None
    if listed is None:
        raise OnnxgenError(f"{what} lists no names", help="a name in each line, or a list or dict of names as JSON")
    return listed[0]


def _listed(names: list[str], between: str) -> tuple[list[str], Write]:
    """Of names with something between them, and perhaps behind the last one."""
    end = between if not names[-1] else ""
    return names[: len(names) - bool(end)], lambda new: between.join(new) + end


def train_line(module: Path) -> list[str]:
    """Return the command that trains a module."""
    return ["onnxgen", "train", str(module), "--data", "DATA"]
