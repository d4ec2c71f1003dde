"""The table of rules, one for each kind, and the decision between the votes of all of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import onnx_ir as ir

from onnxgen.purpose.images import detection, image_to_image, keypoints, segmentation
from onnxgen.purpose.network import BUILT, FITS, NAMED, Network, Vote, shown
from onnxgen.purpose.sequences import ctc, denoising, language_model, seq2seq, token_classification
from onnxgen.purpose.vectors import classification, embedding, multilabel, regression
from onnxgen.record.signature import Purpose

# In the order in which candidates of equal weight are named.
RULES: tuple[Callable[[Network], Iterator[Vote]], ...] = (
    seq2seq,
    language_model,
    detection,
    segmentation,
    classification,
    multilabel,
    token_classification,
    ctc,
    regression,
    keypoints,
    embedding,
    image_to_image,
    denoising,
)
# (a, b): a network that is built like both is an a: what speaks for b is a part of what speaks for a.
INCLUDES = frozenset(
    {
        ("seq2seq", "language-model"),
        ("seq2seq", "classification"),
        ("seq2seq", "token-classification"),
        ("language-model", "classification"),
        ("language-model", "token-classification"),
        *(("detection", kind) for kind in ("segmentation", "keypoints", "classification", "multilabel", "ctc")),
    }
)


_MOST = 4  # sentences of evidence, and candidates


def purpose_of(model: ir.Model) -> Purpose:
    """Tell what a simplified model (`pipeline.read_and_simplify`) is for.

    A kind is told if the graph is built like it, or named like it, and no other kind is. All outputs must be explained:
    a network with one output for classes and another for something unknown is not called a classifier.

    Returns:
        the purpose; with kind "" and candidates if unsure. It never raises for a model whose shapes were propagated.
    """
    net = Network(model)
    stated = _TASKS.get(model.metadata_props.get("task", ""))
    votes = [vote for rule in RULES for vote in rule(net)]
    best, rivals = _best(votes)
    if not net.is_learned:
        return Purpose(evidence=("no node computes with a stored matrix: this is a formula, not a network",))
    if stated is not None and _agree(stated, best):
        return _agreed(stated, votes)
    if best is None or rivals or stated is not None:
        return _unsure(votes, net)
    return _sure(best, votes, net)


def _sure(best: Vote, votes: Sequence[Vote], net: Network) -> Purpose:
    """Return the kind that is voted for, if all outputs are explained."""
    alike = [vote for vote in votes if vote.kind == best.kind and vote.weight >= NAMED]
    explained = net.derived.union(*(vote.outputs for vote in alike))
    loose = [end for end in net.ends if end.name not in explained]
    if loose and not best.whole:
        return _unsure(votes, net, f"nothing tells what {shown(loose[0].value)} is for, beside a likely {best.kind}")
    evidence = dict.fromkeys(sentence for vote in alike for sentence in vote.evidence)
    return Purpose(best.kind, tuple(evidence)[:_MOST], (), best.facts)


def _best(votes: Sequence[Vote]) -> tuple[Vote | None, list[Vote]]:
    """Return the strongest vote, and the votes for other kinds that speak against it."""
    sure = [vote for vote in votes if vote.weight > FITS]
    if not sure:
        return None, []
    strongest = max(vote.weight for vote in sure)
    likely = {vote.kind for vote in sure if vote.weight == strongest}
    beaten = {part for whole, part in INCLUDES if whole in likely}
    left = [vote for vote in sure if vote.kind not in beaten] or sure
    best = max(left, key=lambda vote: vote.weight)  # the first of equals
    return best, [vote for vote in left if vote.kind != best.kind]


def _unsure(votes: Sequence[Vote], net: Network, why: str = "") -> Purpose:
    ranked = sorted(votes, key=lambda vote: -vote.weight)  # stable: then in the order of the rules
    strongest: dict[str, Vote] = {}
    for vote in ranked:
        strongest.setdefault(vote.kind, vote)
    evidence = [why] if why else []
    evidence += [vote.evidence[0] for vote in strongest.values()][:_MOST]
    if not evidence and net.ends:
        evidence = [f"no rule knows an end like that of {shown(net.ends[0].value)}"]
    return Purpose("", tuple(dict.fromkeys(evidence))[: _MOST + 1], tuple(strongest)[:_MOST], {})


# by the `task` that an exporter, such as Ultralytics', writes into the file's metadata
_TASKS = {"detect": "detection", "obb": "detection", "segment": "detection", "pose": "detection",
          "classify": "classification"}  # fmt: skip


def _agree(kind: str, best: Vote | None) -> bool:
    """Return True unless the graph is surely something else than it is said to be."""
    return best is None or best.weight < BUILT or best.kind == kind or (kind, best.kind) in INCLUDES


def _agreed(kind: str, votes: Sequence[Vote]) -> Purpose:
    statement = f"the file's metadata says that its task is {kind}"
    best = max((vote for vote in votes if vote.kind == kind), key=lambda vote: vote.weight, default=None)
    return Purpose(kind, (statement,)) if best is None else Purpose(kind, (statement, *best.evidence), (), best.facts)
