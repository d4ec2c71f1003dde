"""Chooses the columns of text that a network reads: as the settings say, or in the only possible way."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from onnxgen.common.names import legible, listed
from onnxgen.errors import OnnxgenError, counted
from onnxgen.record.signature import Port, Signature
from onnxgen.training.data.arrays import in_columns
from onnxgen.training.data.encoding import aims_of
from onnxgen.training.data.image_pairs import MEMBERS
from onnxgen.training.data.source import DataSource, Gaps, Lists
from onnxgen.training.settings import Settings
from onnxgen.training.tasks import card_of

_SCORE = "--target COLUMN; pairs without a score are columns anchor and positive, perhaps with negative"
TAGS = ("tags", "ner_tags", "pos_tags")  # names of a target with a list of labels


@dataclass(frozen=True)
class Chosen:
    """The columns that are read.

    Attributes:
        texts: one column of text, or two that make a pair.
        target: the column with the target; "" if there is none.
        words: True if the target has a label for each word.
        apart: True if each column of text feeds the network on its own: the texts are the members of a tuple, and the
            target is the score of a pair.
    """

    texts: tuple[str, ...]
    target: str
    words: bool
    apart: bool = False


def choose(
    source: DataSource, ports: Signature, ids: Port, settings: Settings, targets: bool, labels: str
) -> Chosen | None:
    """Return the columns of text for an input of token ids; None if the data has no text for it.

    Args:
        ids: the input.
        targets: False if no target is needed (to predict).
        labels: see `Card`.

    Raises:
        OnnxgenError: the choice is open, or a column that the settings name holds no text.
    """
    texts = text_columns(source)
    aims = _aims(source, ports, settings, labels)
    if card_of(settings.task).compares and (members := apart(source, ids, settings, targets, aims)) is not None:
        return members
    target = aims[0] if aims and targets else ""
    words = not labels and _has_tags(source, ports, settings, target)
    if labels == "other" and targets and target not in texts:
        what = f"which column is the text to predict? The data's columns of text are {listed(texts)}"
        raise OnnxgenError(what, help="--target COLUMN")
    if (asked := settings.inputs.get(ids.name)) is not None:
        return Chosen(_asked(source, ids, asked, texts), target, words)
    left = _left(source, texts, {*aims, *settings.inputs.values()}, words)
    read = _only_choice(source, ids, left, bool(words or labels), bool(aims or labels or not targets))
    return Chosen(read, target, words) if read else None


def _left(source: DataSource, texts: Sequence[str], used: Collection[str], words: bool) -> list[str]:
    """Return the columns of text that nothing else takes. If `words` have labels, the only one that is lists."""
    left = [name for name in texts if name not in used]
    lists = [name for name in left if isinstance(source.unfit.get(name), Lists)]
    return lists if words and len(lists) == 1 else left


def _only_choice(source: DataSource, ids: Port, left: Sequence[str], single: bool, has_target: bool) -> tuple[str, ...]:
    """Return the only column of text, or the two that make a pair; () if there is none. `single`: no pair is read."""
    lists = any(isinstance(source.unfit.get(name), Lists) for name in left)
    if len(left) <= (2 if has_target and not single and not lists else 1):
        return tuple(left)
    what = f"which column of text does input {legible(ids.name)!r} read? The data's columns of text are {listed(left)}"
    way = f"--inputs {legible(ids.name)}=COLUMN" + ("" if single else ", or COLUMN+COLUMN for a pair")
    raise OnnxgenError(what, help=way if has_target else f"{way}; and --target COLUMN")


def apart(source: DataSource, ids: Port, settings: Settings, targets: bool, aims: Sequence[str]) -> Chosen | None:
    """Return the texts that belong together, each a sample of its own; None if one column of text is read.

    Raises `OnnxgenError` if two columns are neither anchors and positives, nor is there a score for them.
    """
    asked, texts = settings.inputs.get(ids.name), text_columns(source)
    if asked is not None:
        names = _asked(source, ids, asked, texts, len(MEMBERS))
    else:
        left = [name for name in texts if name not in (*aims, *settings.inputs.values())]
        members = [name for name in MEMBERS if name in left]
        names = tuple(members if members[:2] == [*MEMBERS[:2]] else left)
    if settings.target is None and names[:2] == MEMBERS[:2]:
        return Chosen(names, "", False, apart=True)
    if len(names) != 2:
        return None
    return Chosen(names, _score(source, names, aims) if targets else "", False, apart=True)


def _score(source: DataSource, texts: Sequence[str], aims: Sequence[str]) -> str:
    """Return the column that says how alike two texts are: the target, else the only column of numbers."""
    fields, unfit = source.fields, source.unfit
    numbers = [name for name, field in fields.items() if name not in source.text and not field.shape]
    numbers += [name for name, problem in unfit.items() if isinstance(problem, Gaps) and name not in texts]
    score = next(iter(aims), numbers[0] if len(numbers) == 1 else "")
    if (problem := unfit.get(score)) is not None:
        raise OnnxgenError(problem.of_target() if isinstance(problem, Gaps) else problem)
    if score in source.text:
        what = f"column {legible(score)!r} holds text, and the score of {listed(texts)} is a number for each pair"
        raise OnnxgenError(what, help=_SCORE)
    if score not in fields:
        which = f"which column is the score of {listed(texts)}?"
        what = f"--target {legible(score)}: the data has no such column" if score else which
        raise OnnxgenError(f"{what} (columns of numbers: {listed(numbers) or 'none'})", help=_SCORE)
    return score


def text_columns(source: DataSource) -> list[str]:
    """Return the columns of text and of lists of text, in their order."""
    first: Mapping[str, object] = next(iter(source.raw.values()), {})
    return [name for name in first if _is_text(source, name) or _is_words(source, name)]


def _is_text(source: DataSource, name: str) -> bool:
    problem = source.unfit.get(name)
    return name in source.text or (isinstance(problem, Gaps) and np.asarray(problem.values).dtype == object)


def _is_words(source: DataSource, name: str) -> bool:
    problem = source.unfit.get(name)
    if not isinstance(problem, Lists):
        return False
    there = [row for row in problem.values if row]
    return bool(there) and all(isinstance(word, str) for word in there[0])


def _aims(source: DataSource, ports: Signature, settings: Settings, labels: str) -> Sequence[str]:
    """Return the columns that are targets, which are no text to read."""
    if labels in ("next", "masked"):
        if settings.target:
            what = f"--task {settings.task} has no target: it predicts the text itself"
            raise OnnxgenError(what, help="leave out --target; the text is --inputs INPUT=COLUMN")
        return ()
    aims = aims_of(source, ports, settings, list(source.fields))
    tags = [name for name in TAGS if isinstance(source.unfit.get(name), Lists)]
    return aims or ([] if labels else tags[:1])


def _has_tags(source: DataSource, ports: Signature, settings: Settings, target: str) -> bool:
    """Return True if the target has a label for each word: lists, or text for an output [batch, length, classes]."""
    if isinstance(source.unfit.get(target), Lists):
        return True
    by_output = settings.target if isinstance(settings.target, Mapping) else {}
    names = {column: name for name, column in by_output.items()}
    wanted = [port for port in ports.outputs if port.name in (names.get(target), target)]
    port = wanted[0] if wanted else ports.outputs[0] if len(ports.outputs) == 1 else None
    return bool(target) and _is_text(source, target) and port is not None and len(port.dims or ()) == 3


def _asked(source: DataSource, ids: Port, asked: str, texts: Sequence[str], most: int = 2) -> tuple[str, ...]:
    """Return the columns that `--inputs` names, which are at most so many."""
    members = (asked,) if asked in texts else tuple(asked.split("+"))
    for name in members:
        if name not in texts:
            fields = source.fields
            has = "holds no text" if name in (*fields, *source.unfit) else "is not there"
            what = f"--inputs {legible(ids.name)}={legible(asked)}: column {legible(name)!r} {has}"
            raise OnnxgenError(what, help=f"the data's columns of text are {listed(texts)}")
    if len(members) > most:
        what = f"--inputs {legible(ids.name)}={legible(asked)}: a tokenizer reads a text, or a pair of them"
        raise OnnxgenError(what, help="name one or two columns")
    return members


def to_read(source: DataSource, known: Sequence[str]) -> Sequence[str]:
    """Return the columns of text to make vectors of: those `known` from training, else the only one or two."""
    has = [name for name in text_columns(source) if name != source.target]
    return [name for name in known if name in has] or (has if len(has) in (1, 2) else known)


def columns_of_texts(data: Sequence[Any], known: Sequence[str], vectors: bool) -> dict[str, NDArray[Any]]:
    """Return a column for each text of a list of texts, or of pairs: as many as the run knows columns.

    Args:
        vectors: the run makes a vector of a text, so it reads one text, or two to compare.

    Raises:
        OnnxgenError: an item is something else.
    """
    rows = [(item,) if isinstance(item, str) else tuple(item) for item in data]
    count = len(rows[0]) if vectors and rows and len(rows[0]) in (1, 2) else len(known)
    if wrong := [row for row in rows if len(row) != count or not all(isinstance(x, str) for x in row)]:
        what = f"the run reads {counted(count, 'text')} for each sample, and {wrong[0]!r} is something else"
        raise OnnxgenError(what, help="give a list of texts, or of pairs of texts")
    names = known if count == len(known) else [f"text {n + 1}" for n in range(count)]
    return {name: np.array(column, dtype=object) for name, column in zip(names, zip(*rows))}


def rename_text(source: DataSource, wanted: Sequence[str]) -> None:
    """Give the only column of text the name that it had in training, if that was one column, too."""
    has = [name for name in text_columns(source) if name != source.target]
    if len(wanted) != 1 or len(has) != 1 or wanted[0] in text_columns(source):
        return
    old, new = has[0], wanted[0]
    names = {old: new}
    source.raw = {part: {names.get(n, n): c for n, c in columns.items()} for part, columns in source.raw.items()}
    source.unfit = {names.get(n, n): problem for n, problem in source.unfit.items()}
    source.text = frozenset(names.get(n, n) for n in source.text)
    for part, samples in source.parts.items():
        columns = {names.get(n, n): c for n, c in in_columns(samples).columns.items()}
        source.parts[part] = replace(in_columns(samples), columns=columns)
