"""`--task ctc`: texts of any length from a row of class scores, without places (Graves et al. 2006)."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torchmetrics import MeanMetric
from torchmetrics.text import CharErrorRate

from onnxgen.common.names import legible, listed
from onnxgen.errors import OnnxgenError, counted
from onnxgen.record.labels import BLANK, Alphabet
from onnxgen.training.data.arrays import Values, column_of
from onnxgen.training.data.samples import Batch, Field, Samples
from onnxgen.training.endings import Ending, read_ending
from onnxgen.training.goals.goal import Goal, Outputs, Scores, Shown
from onnxgen.training.goals.outputs import (
    added,
    batch_axis,
    greedy,
    own_alphabet,
    refuse_augment,
    spelled,
    trained_output,
)
from onnxgen.training.logits import log_probabilities
from onnxgen.training.runs.record import Target
from onnxgen.training.settings import Settings

if TYPE_CHECKING:
    from onnxgen.training.tasks.card import Situation

PADDING = -1
MIRRORS = ("flip", "vflip")
_SIGN = re.compile(r"<[^<>]+>|\[[^\[\]]+\]")  # a class that no text has: <s>, [UNK]
_BLANKS = (BLANK, "<pad>", "[PAD]")  # Hugging Face's padding is the blank


@dataclass(frozen=True)
class Layout:
    """An output of class scores over time: its index and name, its axes, and the sizes of two of them."""

    output: int
    name: str
    batch: int
    time: int
    axis: int
    steps: int
    classes: int
    ending: Ending


class Reading(Goal, nn.Module):
    """The CTC loss of one output. Each sample's loss is divided by the length of its target; then comes their mean.

    That is torch's `reduction="mean"`. A target that needs more steps than the output has counts neither in the loss
    nor in its mean.

    Attributes:
        blank: the class that stands for no character.
        characters: the classes in order, without the blank; () if they have no names.
        texts: the texts that the column's numbers stand for; () if it holds class indices [n, most], padded with -1.
    """

    monitor = "character_error"

    def __init__(
        self, layout: Layout, column: str, blank: int, characters: Sequence[str] = (), texts: Sequence[str] = ()
    ) -> None:
        super().__init__()
        self.layout, self.column, self.columns = layout, column, (column,)
        self.name, self.classes = "", 0
        self.blank, self.characters, self.texts = blank, tuple(characters), tuple(texts)
        place = {c: i + (i >= blank) for i, c in enumerate(characters)}
        rows = [[place.get(c, layout.classes) for c in text] for text in texts]
        most = max(map(len, rows), default=0)
        table = torch.tensor([row + [PADDING] * (most - len(row)) for row in rows], dtype=torch.int64)
        self.register_buffer("table", table.reshape(len(rows), most), persistent=False)

    def targets(self, column: Tensor) -> Tensor:
        """Return class indices [n, most], padded with -1. A character that no class stands for has no class's index."""
        table: Tensor = self.table  # type: ignore[assignment]
        return table[column] if self.texts else column

    def readable(self, targets: Tensor, steps: int | None = None) -> Tensor:
        """Return True for each target [n] that the output has enough steps for, with one between equal neighbours.

        `steps`: of this output, if it has other ones than the layout says.
        """
        here = targets >= 0
        again = (targets[:, 1:] == targets[:, :-1]) & here[:, 1:]
        enough: Tensor = here.sum(1) + again.sum(1) <= (self.layout.steps if steps is None else steps)
        return enough & (targets < self.layout.classes).all(1)

    def weight(self, batch: Batch) -> Tensor | int:
        return self.readable(self.targets(batch[self.column])).sum()

    @property
    def needs_logits(self) -> bool:
        return self.layout.ending.kind == "softmax"

    def logarithms(self, outputs: Outputs) -> Tensor:
        """Return the logarithms of the classes' probabilities [T, n, C]."""
        own = self.layout
        scores = outputs[own.output]
        if own.ending.kind == "softmax":
            scores = log_probabilities(scores, own.axis)
        return scores.permute(own.time, own.batch, own.axis).float().log_softmax(2)  # of logarithms, the same

    def mean_loss(self, outputs: Outputs, batch: Batch, training: bool) -> Tensor:
        logs, targets = self.logarithms(outputs), self.targets(batch[self.column])
        good = self.readable(targets, len(logs))
        lengths = torch.where(good, (targets >= 0).sum(1), 0)
        steps, targets = torch.full_like(lengths, len(logs)), targets.clamp(0, self.layout.classes - 1)
        each = F.ctc_loss(logs, targets, steps, lengths, self.blank, reduction="none", zero_infinity=True)
        each = torch.where(good, each, 0) / lengths.clamp_min(1)
        return each.sum() / good.sum().clamp_min(1)

    def read(self, outputs: Outputs) -> list[list[int]]:
        """Return the classes that are read for each sample, by the most probable one at each step."""
        return greedy(self.logarithms(outputs).argmax(2).T, self.blank)

    def scores(self) -> Scores:
        return _Errors(self)

    def shown(self, outputs: Outputs, batch: Batch, place: int, names: Sequence[str]) -> Shown:
        target, ids = batch[self.column][place], self.read(outputs)[place]
        wanted = self.texts[int(target)] if self.texts else target[target >= 0].tolist()
        read = spelled(ids, self.blank, self.characters)
        truth = wanted if isinstance(wanted, str) else spelled(wanted, self.blank, self.characters)
        return Shown(truth, read, truth == read)

    def target(self) -> Target:
        own = self.layout
        kind, names = own.ending.kind, self.characters
        return Target(own.output, own.name, self.column, "ctc_loss", kind, 0, own.axis, names, own.batch, self.blank)


class _Errors(Scores):
    """The share of characters that are read wrongly (edit distance by target length), and of texts read rightly."""

    def __init__(self, goal: Reading) -> None:
        metrics = {"character_error": CharErrorRate(), "exact_match": MeanMetric()}
        super().__init__(metrics, lambda outputs, batch: ())
        self.goal = goal

    def update(self, outputs: Outputs, batch: Batch) -> None:
        goal, targets = self.goal, batch[self.goal.column]
        if goal.texts:
            wanted = [goal.texts[i] for i in targets.tolist()]
            read = [spelled(ids, goal.blank, goal.characters) for ids in goal.read(outputs)]
        else:  # a character for each class
            wanted = ["".join(chr(i) for i in row if i >= 0) for row in targets.tolist()]
            read = ["".join(map(chr, ids)) for ids in goal.read(outputs)]
        self.metrics["character_error"].update(read, wanted)
        right = torch.tensor([float(a == b) for a, b in zip(read, wanted, strict=True)])
        self.metrics["exact_match"].update(right)


def make(situation: Situation) -> list[Goal]:
    """Return the goal of `--task ctc`.

    Raises `OnnxgenError` if output, targets, classes and blank do not fit together.
    """
    refuse_augment(situation, MIRRORS, "mirrors the image, but not its text")
    layout, (column,) = _layout(situation), situation.feeding.others
    samples, asked = situation.samples, situation.settings.classes
    texts = _texts(column, samples.fields[column])
    indices = _used(samples, column, texts)
    own = None if asked else own_alphabet(situation.model, layout.classes)
    if asked and not texts:
        _check_count(asked, layout)
    blank = _blank(situation, layout, [] if texts else indices, own)
    named = asked if len(asked) < layout.classes else (*asked[:blank], *asked[blank + 1 :])
    known = named or (own.characters if own is not None else ())
    used = characters_of(samples, column)
    # The alphabet of the training part is what is learned; any other must have the characters of every part.
    every = sorted({*"".join(texts)}) if known else used
    _check_characters(known or used, layout, every, own, situation)
    goal = Reading(layout, column, blank, known or used, texts)
    goal.settled = {"blank": blank, "classes": goal.characters}
    goal.new_head = _new_head(goal, situation) if texts and not known else 0
    new = added(situation.model, goal.characters) if own is not None else []
    goal.said = tuple(_notes(goal, situation.settings, own, new))
    unread = tuple(_check(situation, goal))
    goal.said, goal.uncounted = (goal.said + unread, ()) if situation.training else (goal.said, unread)
    return [goal]


def _check_count(classes: Sequence[str], layout: Layout) -> None:
    """Check that `--classes` names the classes of the output, with or without the blank."""
    if len(classes) not in (layout.classes, layout.classes - 1):
        named, count = counted(len(classes), "name"), layout.classes - 1
        what = f"--classes has {named}, but the output has {count} beside the blank"
        raise OnnxgenError(what, help="name them in the order of the output, without the blank or with it")


def _new_head(goal: Reading, situation: Situation) -> int:
    """Return how many classes a new head would have; 0 if one begins, or the model has no more classes than that."""
    begins = situation.settings.replace_head is not None or situation.settings.from_scratch
    count = len(goal.characters) + 1
    return count if count < goal.layout.classes and not begins else 0


def _layout(situation: Situation) -> Layout:
    output = trained_output(
        situation, lambda scores: scores.ndim == 3, "an output with three axes, [T, N, C] or [N, T, C]"
    )
    scores = situation.outputs[output]
    batch = batch_axis(situation, output)
    ending = read_ending(scores, [axis for axis in range(3) if axis != batch])
    axis = ending.axis if ending.axis is not None and ending.axis != batch else 2
    time = 3 - batch - axis
    steps, classes = scores.shape[time], scores.shape[axis]
    return Layout(output, situation.names[output], batch, time, axis, steps, classes, ending)


def _texts(column: str, field: Field) -> tuple[str, ...]:
    """Return the texts of a column; () if it holds class indices."""
    if field.dtype.is_floating_point or len(field.shape) > 1:
        what = f"column {column!r} holds {field.dtype} {list(field.shape)} for each sample"
        raise OnnxgenError(what, help="give texts, or class indices [n, most], padded with -1")
    if field.shape:
        return ()
    if not field.classes or field.classes == tuple(map(str, range(len(field.classes)))):
        what = f"column {column!r} holds single numbers, which may have lost zeros at their front"
        raise OnnxgenError(what, help="give texts (.npz, .parquet), or class indices [n, most], padded with -1")
    return field.classes


def characters_of(samples: Samples, column: str) -> list[str]:
    """Return the characters of the texts of a column in the training part, sorted; [] if it holds class indices."""
    texts = _texts(column, samples.fields[column])
    return sorted({c for i in _used(samples, column, texts) for c in texts[i]}) if texts else []


def _used(samples: Samples, column: str, texts: Sequence[str]) -> list[int]:
    """Return the class indices of a column, or the indices of its texts, that the training part has."""
    if texts and column_of(samples, column) is None:
        return list(range(len(texts)))
    return sorted(Values(samples, [column]).distinct(column) - ({PADDING} if not texts else set()))


def _blank(situation: Situation, layout: Layout, used: Sequence[int], own: Alphabet | None) -> int:
    """Return the blank: as the settings, the alphabet or the names of all classes say, else the end without targets."""
    asked, last = situation.settings.blank, layout.classes - 1
    if asked is not None:
        if asked > last:
            raise OnnxgenError(f"--blank {asked}: the output has the classes 0 to {last}")
        return asked
    if own is not None and own.blank is not None:
        return own.blank
    names = situation.settings.classes
    if len(names) == layout.classes:
        marks = [i for i, name in enumerate(names) if len(name) > 1]
        marks = [i for i in marks if names[i] in _BLANKS] or marks
        if len(marks) == 1:
            return marks[0]
        what = f"--classes names all {layout.classes} classes of the output: one of them is the blank"
        raise OnnxgenError(what, help=f"give its number, up to {last}: --blank 0")
    return _free_end(used, last) if used else 0  # texts fit either end; it is torch's


def _free_end(used: Sequence[int], last: int) -> int:
    """Return the first or the last class, if the targets have the other one."""
    if used[-1] > last:
        raise OnnxgenError(f"the targets have class {used[-1]}, but the output the classes 0 to {last}")
    ends = [end for end in (0, last) if end not in used]
    if len(ends) == 1:
        return ends[0]
    which = "either may be" if ends else "both are used, so neither is"
    what = f"which class is the blank? The output's are 0 to {last}, the targets' {used[0]} to {used[-1]}"
    raise OnnxgenError(f"{what}: {which} the blank", help=f"say which: --blank 0 or --blank {last}")


def _check_characters(
    characters: Sequence[str], layout: Layout, used: Sequence[str], own: Alphabet | None, situation: Situation
) -> None:
    """Check that each class has one character, and in a training that there is one for each character of the texts.

    `own`: the model's alphabet, if it is taken.
    """
    if not used:
        return
    if own is None and (long := [c for c in characters if len(c) != 1 and not _SIGN.fullmatch(c)]):
        way = "name each character"
        what = f"--task {situation.settings.task}: --classes has {legible(long[0])!r}, which is no single character"
        raise OnnxgenError(what, help=way)
    if len(characters) > layout.classes - 1:
        what = f"the texts have {len(characters)} characters, but the output {layout.classes - 1} beside the blank"
        raise OnnxgenError(what, help=f"--replace-head {len(characters) + 1}, if the model ends in a layer of classes")
    lacking = sorted({*used} - {*characters}) if situation.training else []
    if lacking and own is not None:
        what = f"the texts have {_spelled(lacking)}, which the model's alphabet of {len(characters):,} lacks"
        way = f"--replace-head {layout.classes + len(lacking)} --keep adds them, and --classes names another alphabet"
        raise OnnxgenError(what, help=way)
    if lacking:
        what = f"the texts have {_spelled(lacking)}, which are not among the {len(characters)} classes"
        raise OnnxgenError(what, help="train with --classes that have them, or leave these texts out")


def _spelled(characters: Sequence[str]) -> str:
    """Return characters in one line; those that can't be seen are U+3000 and the like."""
    return listed(c if c.isprintable() and not c.isspace() else f"U+{ord(c):04X}" for c in characters)


def _notes(goal: Reading, settings: Settings, alphabet: Alphabet | None, new: Sequence[str]) -> list[str]:
    """Return notes; `new` are characters that the file does not list."""
    own, count = goal.layout, len(goal.characters)
    ends = own.ending.kind or "logits"
    notes = [
        f"output {own.name} is {ends} of {own.classes} classes (axis {own.axis}) over {own.steps} steps (axis "
        f"{own.time}): trained with ctc_loss, blank {goal.blank}; a sample's loss is divided by its target's length"
    ]
    free = own.classes - 1 - count
    if alphabet is not None:
        whose = "" if alphabet.source.startswith("--") else " of the file"
        listed_there = f"as {alphabet.source}{whose} lists them"
        whence = listed_there if alphabet.listed else "with the classes that they have"
        more = f" and new ones ({_spelled(new)})" if new else ""
        notes.append(f"the {count:,} characters are the model's own{more}, {whence}; give others with --classes")
    elif goal.texts and not settings.classes:
        notes.append(f"characters in the order of the output: {''.join(goal.characters)!r}; give others with --classes")
    if goal.texts and free > 0:
        stand = "stands" if free == 1 else "stand"
        notes.append(f"{counted(free, 'class')} of the output {stand} for no character of the training part")
    if goal.new_head:
        what = "nothing says which characters the model's classes were trained for: those of the data take their places"
        kept = "(--keep --own-classes FILE: with what the old one knows)"
        way = f"--replace-head {goal.new_head} begins a new head {kept}, --classes names the model's own"
        notes.append(f"{what} -> {way}")
    return notes


def _check(situation: Situation, goal: Reading) -> list[str]:
    """Return notes of targets that no answer could match: they are too long, or have characters without a class.

    Raises `OnnxgenError` if one is wrong, or all are too long.
    """
    column, own = goal.column, goal.layout
    long, total, first = 0, 0, -1
    strange: list[int] = []  # of texts, those with characters that no class stands for
    for indices, values in Values(situation.samples, [column])[column]:
        targets = goal.targets(values.long())
        unknown = (targets >= own.classes).any(1)
        wrong = ((targets < PADDING) | (targets == goal.blank)).any(1)
        wrong |= (unknown & (not goal.texts)) | ((targets[:, 1:] >= 0) & (targets[:, :-1] == PADDING)).any(1)
        if len(rows := wrong.nonzero()):
            row = int(rows[0])
            rule = f"class indices are 0 to {own.classes - 1} without the blank, {goal.blank}"
            what = f"column {column!r} has {targets[row].tolist()} in sample {indices[row]}"
            raise OnnxgenError(what, help=f"{rule}, and {PADDING} behind them")
        strange += values[unknown].tolist() if goal.texts else []
        bad = ~goal.readable(targets) & ~unknown
        first = indices[int(bad.nonzero()[0])] if first < 0 and bad.any() else first
        long, total = long + int(bad.sum()), total + len(bad)
    notes = [_strange([goal.texts[i] for i in strange], goal, total, total - long)] if strange else []
    if not long:
        return notes
    what = f"{long} of {total} targets need more than the output's {own.steps} steps (the first is sample {first})"
    if situation.settings.strict or long == total:
        way = "give shorter targets" + (", or leave out --strict" if long < total else "")
        raise OnnxgenError(what, help=way)
    return [*notes, f"{what}: they are not trained" if situation.training else f"{what}: the loss is without them"]


def _strange(texts: Sequence[str], goal: Reading, total: int, short: int) -> str:
    """Return a note of texts with characters that no class stands for: none can be read rightly.

    `short`: how many of all texts are not too long.
    """
    known = {*goal.characters}
    lacking = _spelled(sorted({c for text in texts for c in text} - known))
    have = "has" if len(texts) == 1 else "have"
    what = f"{len(texts):,} of {counted(total, 'text')} {have} {lacking}, not among the {len(known):,} characters"
    left = f"{short - len(texts):,}"
    return f"{what} that the network knows: each counts as an error, and the loss is of the other {left}"
