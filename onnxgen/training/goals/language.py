"""Goals of networks that predict tokens: the next one, masked ones, or those of another text."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F
from torch import Tensor

from onnxgen.errors import OnnxgenError
from onnxgen.surgery.ports import evaluating
from onnxgen.training.data.arrays import column_of
from onnxgen.training.data.samples import Batch
from onnxgen.training.data.streaming.stream import limit
from onnxgen.training.endings import read_ending
from onnxgen.training.goals.goal import IGNORED_CLASS, Goal, Outputs, Scores

if TYPE_CHECKING:
    from onnxgen.training.tasks.card import Situation

LABELS = "labels"  # the column of token ids, with -100 where none is predicted
_SAME = 64  # times the rounding of the numbers: outputs that differ by less are equal


@dataclass(frozen=True)
class Tokens(Goal):
    """The mean cross entropy of all tokens that are predicted.

    Attributes:
        output: the index of the output with the scores [batch, length, vocabulary].
        shift: 1 if the scores at a position are for the next token, else 0.
        probabilities: True if the scores are probabilities.
    """

    output: int
    shift: int
    probabilities: bool = False
    name: str = ""
    classes: int = 0
    columns: tuple[str, ...] = (LABELS,)

    def mean_loss(self, outputs: Outputs, batch: Batch, training: bool) -> Tensor:
        logits, labels = self.compared(outputs, batch)
        total = F.cross_entropy(logits.transpose(1, 2), labels, ignore_index=IGNORED_CLASS, reduction="sum")
        return total / self.weight(batch).clamp_min(1)

    def weight(self, batch: Batch) -> Tensor:
        """Return the number of tokens that are predicted."""
        return (batch[LABELS][:, self.shift :] != IGNORED_CLASS).sum()

    def compared(self, outputs: Outputs, batch: Batch) -> tuple[Tensor, Tensor]:
        """Return the scores [batch, n, vocabulary], and the tokens [batch, n] that they are for."""
        logits, labels = outputs[self.output].float(), batch[LABELS]
        if self.probabilities:
            logits = logits.clamp_min(torch.finfo(logits.dtype).tiny).log()
        return (logits[:, :-1], labels[:, 1:]) if self.shift else (logits, labels)

    def scores(self) -> Scores:
        from torchmetrics.text import Perplexity  # takes seconds, with matplotlib

        return Scores({"perplexity": Perplexity(ignore_index=IGNORED_CLASS)}, self.compared)


def next_token(situation: Situation) -> Sequence[Goal]:
    """Return the goal to predict each next token.

    Raises `OnnxgenError` if no output has scores of tokens, or the scores at a position depend on later tokens.
    """
    goal = _scored(situation, 1)
    changed = _later_tokens_change(situation, goal)
    if changed:
        what = f"output {situation.names[goal.output]} at position {changed - 1} depends on token {changed}"
        what += ", so the network sees the tokens that it should predict"
        raise OnnxgenError(what, help="--task masked-language-model")
    return [goal]


def every_token(situation: Situation) -> Sequence[Goal]:
    """Return the goal to predict the tokens of masks, or of another text.

    Raises `OnnxgenError` if no output has scores of tokens.
    """
    return [_scored(situation, 0)]


def _scored(situation: Situation, shift: int) -> Tokens:
    """Return the goal for the first output with scores for each token."""
    size = situation.batch[LABELS].shape
    for index, output in enumerate(situation.outputs):
        if output.ndim == 3 and output.shape[:2] == size and output.is_floating_point():
            _check_vocabulary(situation, output.shape[2])
            return Tokens(index, shift, read_ending(output, [2]).kind == "softmax")
    shapes = ", ".join(f"{name} {list(output.shape)}" for name, output in zip(situation.names, situation.outputs))
    what = f"--task {situation.settings.task} needs scores of each token [{size[0]}, {size[1]}, vocabulary]"
    raise OnnxgenError(f"{what}, but there are {shapes}", help="export the network with its language-model head")


def _check_vocabulary(situation: Situation, size: int) -> None:
    labels = column_of(situation.samples, LABELS)
    limit(situation.samples, LABELS, size - 1, f"the network has scores for {size}")
    highest = int((situation.batch[LABELS] if labels is None else labels).max())
    if highest >= size:
        what = f"column {LABELS!r} has token {highest}, but the network has scores for {size}"
        raise OnnxgenError(what, help="give the network's own tokenizer: --tokenizer tokenizer.json")


def _later_tokens_change(situation: Situation, goal: Tokens) -> int:
    """Return the first position of a token that changes the scores before it; 0 if there is none.

    The second half of the longest sample is replaced by other tokens.
    """
    ids = next((c for c in situation.feeding.inputs if _same(situation.batch[c], situation.batch[LABELS])), None)
    if ids is None:
        what = f"column {LABELS!r} does not hold the token ids of an input"
        raise OnnxgenError(what, help="leave it out, or store the ids themselves: they are shifted in the loss")
    real = (situation.batch[LABELS] != IGNORED_CLASS).sum(1)
    row, length = int(real.argmax()), int(real.max())
    if length < 2:
        return 0
    start, vocabulary = (length + 1) // 2, situation.outputs[goal.output].shape[2]
    changed = situation.batch[ids].clone()
    changed[row, start:length] = (changed[row, start:length] + 1) % vocabulary
    device = next(situation.model.parameters()).device
    with evaluating(situation.model), torch.no_grad():
        outputs = situation.model(*situation.feeding.arguments(situation.batch | {ids: changed}, device))
    other = (outputs if isinstance(outputs, tuple) else (outputs,))[goal.output][row, :start]
    return start if differ(situation.outputs[goal.output].detach()[row, :start], other) else 0


def differ(before: Tensor, other: Tensor, least: float = 0.0) -> bool:
    """Return True if scores differ by more than rounding, and by more than the share `least` of the greatest score."""
    most = max(_SAME * torch.finfo(before.dtype).eps, least) * float(before.abs().max())
    return float((other.double() - before).abs().max()) > most


def _same(column: Tensor, labels: Tensor) -> bool:
    """Return True if a column has the tokens of the labels."""
    if column.shape != labels.shape or column.is_floating_point():
        return False
    return bool(((column == labels) | (labels == IGNORED_CLASS)).all()) and bool((labels != IGNORED_CLASS).any())
