"""The table of rules, one for each kind."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from onnxgen.purpose.boxes import detection
from onnxgen.purpose.found import Vote
from onnxgen.purpose.maps import image_to_image, keypoints, segmentation
from onnxgen.purpose.network import Network
from onnxgen.purpose.sequences import ctc, denoising, language_model, seq2seq, token_classification
from onnxgen.purpose.vectors import classification, embedding, multilabel, regression

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
