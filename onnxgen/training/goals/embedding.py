"""`--task embedding`: vectors that lie close together if their samples are of one class."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torchmetrics import Metric

from onnxgen.errors import OnnxgenError
from onnxgen.training.byname import by_name
from onnxgen.training.data.arrays import PAIR, ROLE, Tuples, Values
from onnxgen.training.data.feeding import fed
from onnxgen.training.data.image_pairs import MEMBERS
from onnxgen.training.data.samples import Batch
from onnxgen.training.data.text.roles import IDS, roles_of
from onnxgen.training.goals.goal import IGNORED_CLASS, Goal, Outputs, Scores
from onnxgen.training.goals.outputs import trained_output
from onnxgen.training.goals.pooling import WORDS, Pooling, pooling_of
from onnxgen.training.runs.record import VECTORS, Target

if TYPE_CHECKING:
    from onnxgen.training.tasks.card import Situation

SCALE, MARGIN = 64.0, 0.5  # of ArcFace (Deng et al. 1801.07698)
TEMPERATURE = 0.05  # of InfoNCE
COUNTED = "recall_at_1_samples"
_AT_ONCE = 1024  # queries that are compared with all samples


class Embedding(Goal, nn.Module):
    """A loss of vectors with the label of each; metrics compare the vectors of a whole part.

    Attributes:
        output: the output's index; it is [n, D], or [n, T, D] with a `pooling`.
        pooling: how the vectors of tokens become those of texts; None if the network does that.
        texts: the column of token ids; "" if the network reads no text.
    """

    monitor = "recall_at_1"
    pooling: Pooling | None = None
    texts: str = ""

    def __init__(self, output: int, column: str) -> None:
        super().__init__()
        self.output, self.column, self.columns = output, column, (column,)
        self.name, self.classes = "", 0

    def vectors(self, outputs: Outputs, batch: Batch) -> Tensor:
        """Return the vector of each sample [n, D], in float32."""
        vectors = outputs[self.output]
        return vectors.float() if self.pooling is None else self.pooling(vectors, batch)

    def target(self) -> Target | None:
        """Return how the vectors are made, if the network does not."""
        if self.pooling is None:
            return None
        own = self.pooling
        pooled = {"pooling": own.how, "mask": own.fed}
        return Target(own.output, own.name, self.column, VECTORS, "", 0, 0, (), head=pooled)

    def scores(self) -> Scores:
        metrics = {"recall_at_1": RecallAt1()}
        names = ("recall_at_1", COUNTED)
        return Scores(metrics, lambda outputs, batch: (self.vectors(outputs, batch), batch[self.column]), names)


class ArcFace(Embedding):
    """Additive angular margin (Deng et al. 1801.07698): classification by the angles to a centre for each class.

    The loss is cross entropy of 64 cos(angle), where 0.5 is added to the angle to the sample's own centre. An angle
    that would get beyond pi has 64 (cos(angle) - 0.5 sin(0.5)) instead, which falls with it, as in the authors' code.

    Attributes:
        labels: int64 [classes], those of the training part, sorted.
        centres: [classes, D]; only their directions count.
    """

    def __init__(self, output: int, column: str, labels: Tensor, width: int) -> None:
        super().__init__(output, column)
        self.register_buffer("labels", labels)
        self.centres = nn.Parameter(nn.init.xavier_normal_(torch.empty(len(labels), width)))

    def load_state_dict(self, state_dict: Mapping[str, Any], *args: Any, **kwargs: Any) -> Any:
        """Like torch's. Sizes may differ: data of an evaluation has other classes."""
        device = self.centres.device
        self.labels = torch.empty_like(state_dict["labels"], device=device)
        self.centres = nn.Parameter(torch.empty_like(state_dict["centres"], device=device))
        return super().load_state_dict(state_dict, *args, **kwargs)

    def known(self, labels: Tensor) -> Tensor:
        """Return the index of each label's centre; -100 if it has none."""
        place = torch.searchsorted(self.labels, labels.contiguous()).clamp_max(len(self.labels) - 1)
        return torch.where(self.labels[place] == labels, place, IGNORED_CLASS)

    def weight(self, batch: Batch) -> Tensor | int:
        return (self.known(batch[self.column]) != IGNORED_CLASS).sum()

    def mean_loss(self, outputs: Outputs, batch: Batch, training: bool) -> Tensor:
        target = self.known(batch[self.column])
        cosine = F.linear(F.normalize(self.vectors(outputs, batch)), F.normalize(self.centres.float()))
        own = cosine.gather(1, target.clamp_min(0)[:, None])
        sine = (1 - own.square()).clamp_min(1e-12).sqrt()
        turned = own * math.cos(MARGIN) - sine * math.sin(MARGIN)
        turned = torch.where(own > -math.cos(MARGIN), turned, own - MARGIN * math.sin(MARGIN))
        logits = SCALE * cosine.scatter(1, target.clamp_min(0)[:, None], turned)
        total = F.cross_entropy(logits, target, ignore_index=IGNORED_CLASS, reduction="sum")
        return total / (target != IGNORED_CLASS).sum().clamp_min(1)


class BatchHard(Embedding):
    """The triplet loss over the hardest pairs of a batch, with a soft margin (Hermans et al. 1703.07737).

    Each sample is compared with the farthest one of its class, at distance p, and the nearest one of another, at q: its
    loss is log(1 + exp(p - q)). Samples without such a pair in their batch do not count.
    """

    splits = False

    def compared(self, batch: Batch) -> tuple[Tensor, Tensor, Tensor]:
        """Return which pairs [n, n] are of one class, which of two, and which samples [n] have both."""
        labels = batch[self.column]
        same = labels[:, None] == labels
        alike = same & ~torch.eye(len(labels), dtype=torch.bool, device=labels.device)
        others = ~(same | self.as_good(batch))
        return alike, others, alike.any(1) & others.any(1)

    def as_good(self, batch: Batch) -> Tensor:
        """Return which pairs [n, n] of two classes are not compared."""
        return batch[self.column].new_zeros((), dtype=torch.bool)

    def weight(self, batch: Batch) -> Tensor | int:
        return self.compared(batch)[2].sum()

    def mean_loss(self, outputs: Outputs, batch: Batch, training: bool) -> Tensor:
        vectors = self.vectors(outputs, batch)
        distances = torch.cdist(vectors, vectors, compute_mode="donot_use_mm_for_euclid_dist")
        alike, others, counted = self.compared(batch)
        far = distances.masked_fill(~alike, -math.inf).amax(1)
        near = distances.masked_fill(~others, math.inf).amin(1)
        each = F.softplus(torch.where(counted, far - near, 0))
        return torch.where(counted, each, 0).sum() / counted.sum().clamp_min(1)


class InfoNce(Embedding):
    """Each anchor is to find its own positive among all positives and negatives of its batch.

    The loss is cross entropy of cosines, divided by a temperature of 0.05 (van den Oord et al. 1807.03748; as "multiple
    negatives" in Henderson et al. 1705.00652). What is as good an answer as the own one does not count: an equal text,
    and the positive of an equal anchor.
    """

    splits = False

    def weight(self, batch: Batch) -> Tensor | int:
        return (batch[ROLE] == 0).sum()

    def mean_loss(self, outputs: Outputs, batch: Batch, training: bool) -> Tensor:
        vectors, pair, role = F.normalize(self.vectors(outputs, batch)), batch[self.column], batch[ROLE]
        anchors, others = role == 0, role != 0
        scores = vectors[anchors] @ vectors[others].T / TEMPERATURE
        own = pair[anchors][:, None] == pair[others]
        scores = scores.masked_fill(as_good(self, batch)[anchors][:, others] & ~own, -math.inf)
        return F.cross_entropy(scores, own.to(torch.int8).argmax(1))

    def scores(self) -> Scores:
        return _of_pairs(self)


class Similarity(Embedding):
    """The cosine of a pair is to be its score: their mean squared error (Reimers and Gurevych 1908.10084).

    Attributes:
        largest: the score of a cosine of 1.
    """

    monitor, splits = "spearman", False

    def __init__(self, output: int, column: str, largest: float) -> None:
        super().__init__(output, column)
        self.columns, self.largest = (column, ROLE), largest

    def weight(self, batch: Batch) -> Tensor | int:
        return (batch[ROLE] == 0).sum()

    def mean_loss(self, outputs: Outputs, batch: Batch, training: bool) -> Tensor:
        return F.mse_loss(*self.compared(outputs, batch))

    def compared(self, outputs: Outputs, batch: Batch) -> tuple[Tensor, Tensor]:
        """Return the cosine of each pair [n], and its score, of which 1 is the largest."""
        vectors, role = self.vectors(outputs, batch), batch[ROLE]
        return F.cosine_similarity(vectors[role == 0], vectors[role == 1]), self.scaled(batch[self.column][role == 0])

    def scaled(self, scores: Tensor) -> Tensor:
        return scores.float() / self.largest

    def scores(self) -> Scores:
        return Scores({"spearman": Correlation()}, self.compared, ("spearman", "pearson"))


class PairedBatchHard(BatchHard):
    """`BatchHard` of pairs: a negative is of no pair. An equal text is none."""

    def as_good(self, batch: Batch) -> Tensor:
        return as_good(self, batch)

    def scores(self) -> Scores:
        return _of_pairs(self)


def _of_pairs(goal: Embedding) -> Scores:
    def arranged(outputs: Outputs, batch: Batch) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        return goal.vectors(outputs, batch), batch[goal.column], batch[ROLE], keys_of(goal, batch)

    return Scores({"recall_at_1": PairRecallAt1()}, arranged)


def keys_of(goal: Embedding, batch: Batch) -> Tensor:
    """Return two numbers for each row [n, 2], which are equal for equal texts: of its anchor and of its right answer.

    A negative has no anchor, and is the right answer of none but itself. Without texts, the numbers are the pairs'.
    """
    pair, role = batch[goal.column], batch[ROLE]
    members = int(role.max()) + 1
    if not goal.texts:
        return torch.stack([pair, pair], 1)
    ids = batch[goal.texts].long()
    odd = torch.randint(-(2**62), 2**62, (ids.shape[1],), generator=torch.Generator().manual_seed(0)) * 2 + 1
    text = ((ids + 1) * odd.to(ids.device)).sum(1)  # modulo 2**64: others are equal once in 10**18 pairs of texts
    anchor, answer = text.reshape(-1, members)[:, 0], text.reshape(-1, members)[:, 1]
    asked = torch.where(role == 2, -1 - pair, anchor.repeat_interleave(members))
    return torch.stack([asked, torch.where(role == 2, text, answer.repeat_interleave(members))], 1)


def as_good(goal: Embedding, batch: Batch) -> Tensor:
    """Return which rows [n, n] have the same right answer, or are of equal anchors."""
    keys = keys_of(goal, batch)
    return (keys[:, None] == keys).any(2)


class _Gathered(Metric):
    """A metric of all samples of a part: of tensors that are gathered from all batches and processes, by name."""

    higher_is_better, is_differentiable, full_state_update = True, False, False
    gathered: ClassVar[tuple[str, ...]]

    def __init__(self) -> None:
        super().__init__()
        for name in self.gathered:
            self.add_state(name, [], dist_reduce_fx="cat")

    def whole(self) -> list[Tensor]:
        """Return the tensors; after a synchronisation each is one already."""
        states = (getattr(self, name) for name in self.gathered)
        return [torch.cat([*state]) if isinstance(state, list) else state for state in states]


class Correlation(_Gathered):
    """Pearson's correlation of cosines and scores, and Spearman's: that of their ranks, equal values with the mean one.

    Both are NaN if all cosines are equal, or all scores. (The sums of ranks in torchmetrics' own overflow 32 bits.)
    """

    gathered = ("cosines", "scores")
    cosines: list[Tensor]
    scores: list[Tensor]

    def update(self, cosines: Tensor, scores: Tensor) -> None:
        """Add the cosines [n] of pairs and their scores [n]."""
        self.cosines.append(cosines.detach())
        self.scores.append(scores)

    def compute(self) -> dict[str, Tensor]:
        both = torch.stack([values.cpu().double() for values in self.whole()])
        ranked = torch.stack([_ranks(values) for values in both])
        return {"spearman": torch.corrcoef(ranked)[0, 1], "pearson": torch.corrcoef(both)[0, 1]}


def _ranks(values: Tensor) -> Tensor:
    """Return the rank of each value [n]; equal ones have the mean of theirs."""
    _, place, counts = torch.unique(values, return_inverse=True, return_counts=True)
    mean: Tensor = counts.cumsum(0) - (counts - 1) / 2
    return mean[place].double()


class PairRecallAt1(_Gathered):
    """The share of anchors whose nearest by cosine, of all positives of the part, is their own, or one as good.

    That is an equal text, or the positive of an equal anchor.
    """

    gathered = ("anchors", "positives", "keys")
    anchors: list[Tensor]
    positives: list[Tensor]
    keys: list[Tensor]

    def update(self, vectors: Tensor, pairs: Tensor, roles: Tensor, keys: Tensor | None = None) -> None:
        """Add vectors [n, D] with the number of the pair [n] and the role [n] of each (see `Tuples`).

        `keys` [n, 2] are of `keys_of`; without them, only the own positive counts.
        """
        unit = F.normalize(vectors.detach())
        self.anchors.append(unit[roles == 0])
        self.positives.append(unit[roles == 1])
        self.keys.append((torch.stack([pairs, pairs], 1) if keys is None else keys)[roles == 1])

    def compute(self) -> Tensor:
        anchors, positives, keys = self.whole()
        right = 0
        for start in range(0, len(anchors), _AT_ONCE):
            near = (anchors[start : start + _AT_ONCE] @ positives.T).argmax(1)
            right += int((keys[near] == keys[start : start + _AT_ONCE]).any(1).sum())
        return torch.tensor(right / max(len(anchors), 1))


class RecallAt1(_Gathered):
    """The share of samples whose nearest neighbour by cosine, in the whole part, has their label.

    Samples count whose label another sample of the part has. Their number is `recall_at_1_samples`; without any, the
    share is NaN.
    """

    gathered = ("vectors", "labels")
    vectors: list[Tensor]
    labels: list[Tensor]

    def update(self, vectors: Tensor, labels: Tensor) -> None:
        """Add vectors [n, D] and labels [n]."""
        self.vectors.append(F.normalize(vectors.detach()))
        self.labels.append(labels)

    def compute(self) -> dict[str, Tensor]:
        vectors, labels = self.whole()
        right, counted = 0, 0
        for start in range(0, len(vectors), _AT_ONCE):
            mine = torch.arange(start, min(start + _AT_ONCE, len(vectors)), device=vectors.device)
            near = vectors[mine] @ vectors.T
            near[torch.arange(len(mine), device=vectors.device), mine] = -math.inf
            same = labels[mine, None] == labels
            has = same.sum(1) > 1
            right += int((same.gather(1, near.argmax(1, keepdim=True))[:, 0] & has).sum())
            counted += int(has.sum())
        share = right / counted if counted else math.nan
        return {"recall_at_1": torch.tensor(share), COUNTED: torch.tensor(counted)}


def make(situation: Situation) -> list[Goal]:
    """Return the goal of `--task embedding`. Raises `OnnxgenError` if output, labels or loss do not fit."""
    pooling = pooling_of(situation.model, situation.feeding, situation.settings, situation.outputs, situation.names)
    if pooling is None:
        output = trained_output(situation, lambda candidate: candidate.ndim == 2, "an output [N, D]")
    else:
        output = pooling.output
    goal = _made(situation, output)
    if pooling is not None:
        goal.pooling, goal.settled = pooling, {**goal.settled, "pooling": pooling.how}
        goal.columns = (*goal.columns, *([pooling.mask] if pooling.mask else []))
        goal.said = (f"the vector of a text is {WORDS[pooling.how]} of {pooling.name}, of length 1", *goal.said)
    return [goal]


def _made(situation: Situation, output: int) -> Embedding:
    """Return the goal for an output. Raises `OnnxgenError` if labels or loss do not fit."""
    (column,) = situation.feeding.others
    field, asked = situation.samples.fields[column], situation.settings.loss
    if isinstance(situation.samples, Tuples) and situation.samples.score:
        return _of_scores(situation, output, situation.samples)
    if field.shape or field.dtype.is_floating_point:
        what = f"column {column!r} holds {field.dtype} {list(field.shape)} for each sample, not the number of a class"
        way = "give a class for each sample, as a whole number or a name; a score is of two columns of text"
        raise OnnxgenError(what, help=way)
    if not isinstance(asked, str):
        raise OnnxgenError("--task embedding trains one output, so --loss is a name", help="--loss arcface or triplet")
    labels = torch.tensor(sorted(Values(situation.samples, [column]).distinct(column)), dtype=torch.int64)
    if isinstance(situation.samples, Tuples):
        return _of_tuples(situation, output, situation.samples, "info_nce" if asked == "auto" else asked)
    if asked.strip().lower() == "info_nce":
        what = "InfoNCE (--loss info_nce) needs pairs, but the data has a class for each sample"
        raise OnnxgenError(what, help="give columns anchor and positive; or --loss arcface or triplet")
    if len(labels) < 2:
        raise OnnxgenError(f"all samples of column {column!r} have one class", help="give samples of two or more")
    name = "arcface" if asked == "auto" else asked
    make_goal = by_name(name, {"arcface": _arcface, "triplet": _triplet}, "loss of --task embedding")
    return make_goal(situation, output, labels)


def _of_scores(situation: Situation, output: int, samples: Tuples) -> Embedding:
    """Return the goal of pairs with a score. Raises `OnnxgenError` if all scores are equal, or for another loss."""
    column, asked = samples.score, situation.settings.loss
    by_name("cosine" if asked == "auto" else str(asked), {"cosine": Similarity}, "loss of pairs with a score")
    scores = samples.column(column)
    assert scores is not None  # texts are in memory
    if len({*scores.tolist()}) < 2:
        raise OnnxgenError(f"all pairs have one score in column {column!r}", help="give pairs of two scores or more")
    largest = situation.settings.largest_score or max(float(scores.double().abs().max()), 1.0)
    goal, divided = Similarity(output, column, largest), "" if largest == 1 else f", divided by {largest:g}"
    goal.settled = {"largest_score": largest}
    goal.said = (f"trained with the squared error between the cosine of a pair and its {column}{divided}",)
    return goal


def _of_tuples(situation: Situation, output: int, samples: Tuples, name: str) -> Embedding:
    """Return the goal of pairs or triplets. Raises `OnnxgenError` for a loss that needs classes."""
    known: dict[str, type[Embedding]] = {"info_nce": InfoNce, "triplet": PairedBatchHard}
    goal = by_name(name, known, "loss of pairs")(output, PAIR)
    ids = roles_of(fed(situation.model), ()).get(IDS)
    columns = dict(zip((port.name for port in fed(situation.model).inputs), situation.feeding.inputs))
    goal.texts = columns[ids.name] if ids is not None else ""
    goal.columns = (PAIR, ROLE, *([goal.texts] if goal.texts else []))
    what, size = "pairs" if samples.rows_of_each == 2 else "triplets", situation.settings.batch
    members = " and ".join(MEMBERS[: samples.rows_of_each])
    goal.said = (
        f"trained with {name.strip().lower()} on {what} of columns {members}: each anchor is compared with its batch "
        f"of {size} {what}, so the loss depends on the batches; recall_at_1 compares it with all positives of a part",
    )
    return goal


def _arcface(situation: Situation, output: int, labels: Tensor) -> Embedding:
    goal = ArcFace(output, situation.feeding.others[0], labels, situation.outputs[output].shape[1])
    goal.said = (
        f"trained with arcface, with a centre for each of {len(labels)} classes; a class without a centre counts in "
        "recall_at_1, not in the loss",
    )
    return goal


def _triplet(situation: Situation, output: int, labels: Tensor) -> Embedding:
    goal = BatchHard(output, situation.feeding.others[0])
    goal.said = (
        f"trained with batch-hard triplets of each batch of {situation.settings.batch}, drawn from {len(labels)} "
        "classes; the loss depends on the batches",
    )
    return goal
