"""Heads whose files do not decode boxes, and whose published programs do: by the shapes of their maps."""

from __future__ import annotations

from dataclasses import replace

from onnxgen.record.tail import Tail

# UltraFace (Linzaer, Ultra-Light-Fast-Generic-Face-Detector-1MB): widths of the priors by level, in pixels.
ULTRAFACE = ((10, 16, 24), (32, 48), (64, 96), (128, 192, 256))


def published(tail: Tail) -> Tail | None:
    """Return a tail with the kind that its published program decodes, or None for an unknown head."""
    counts = [len(level.anchors) for level in tail.levels]
    if max(counts) == 1 and tail.levels[0].objectness is not None:
        return replace(tail, kind="offsets", assumed="the file does not decode boxes: offsets as in YOLOX and YuNet")
    if counts == [len(widths) for widths in ULTRAFACE] and tail.background and tail.classes == 1:
        anchors = [tuple((float(min(w, tail.width)), float(min(w, tail.height))) for w in ws) for ws in ULTRAFACE]
        levels = tuple(replace(level, anchors=found) for level, found in zip(tail.levels, anchors))
        told = "the file does not decode boxes: priors and variances as in UltraFace"
        return replace(tail, kind="priors", levels=levels, variances=(0.1, 0.2), assumed=told)
    return None
