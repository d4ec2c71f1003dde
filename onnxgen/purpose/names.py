"""Words in the names of inputs and outputs, and what they tell."""

from __future__ import annotations

import re
from collections.abc import Iterable

import onnx_ir as ir


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


CLASSES = _words(
    "logits class classes cls prob probs probability probabilities classification classifier classify category"
    " categories"
)
LABELS = _words("label labels tag tags attribute attributes multilabel")
NUMBERS = _words("regression regressor regress forecast continuous")  # one or many
VALUES = _words("age price angle quality temperature speed steering")  # one number
BOXES = _words("box boxes bbox bboxes loc locs detection detections dets")
SCORES = _words("score scores conf confidence confidences cls class classes logits label labels")
POINTS = _words("landmark landmarks keypoint keypoints kpt kpts kps joints")
HEATS = POINTS | _words("heatmap heatmaps hm hms paf pafs")
PLACES = POINTS | BOXES | _words("points pose coord coords offset offsets")
VECTORS = _words(
    "embedding embeddings embed embeds embs feature features feat feats pooler pooled descriptor descriptors hidden"
    " token tokens xvector dvector"
)
PARTS = _words("start end attention attentions attn alignment alignments weights")  # what a Softmax may be over besides
MASKS = _words("mask masks seg segmentation semantic sem saliency classes class logits")
PICTURES = _words(
    "denoised restored enhanced sr upscaled reconstruction reconstructed recon fake generated clean dehazed derained"
    " stylized"
)
SOUND = _words("enhanced denoised clean denoise enhance")
TAGS = _words("logits label labels tag tags ner pos token tokens entities emissions")
CTC = _words("ctc logprobs")
STATES = _words("past present state states hidden cell cache hn cn h c memory staten")  # of one call for the next

# Parts of the names of inputs, in lower case.
DECODER = ("decoder_input", "decoder_ids", "tgt", "target", "decoder_token")
ENCODER = ("encoder_hidden", "encoder_out", "encoder_states", "encoder_last", "cross_attn_states", "memory", "src_enc")
CACHE = ("past_key", "past_value", "past.", "past_0", "key_values", "cache")
BESIDE_TOKENS = ("mask", "position", "token_type", "segment", "embeds", "use_cache", "step", "beam", "rotary", "bias")
STEP = ("timestep", "timesteps", "t", "sigma", "noise_level")  # of a diffusion: the whole name


def called(value: ir.Value, *parts: str) -> bool:
    """Return True if the name of a value contains one of these texts, in any case."""
    name = (value.name or "").lower()
    return any(part in name for part in parts)


def name_of(value: ir.Value | None) -> str:
    return "" if value is None else value.name or ""


def words(name: str | None) -> set[str]:
    """Return the words of a name in lower case: {"class", "scores"} of `classScores_1`."""
    return {word.lower() for word in re.findall(r"[A-Z]?[a-z]+|[A-Z]+", name or "")}


def quoted(names: Iterable[str]) -> str:
    return ", ".join(f"'{word}'" for word in sorted(names))
