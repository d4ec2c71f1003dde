"""An image, or a map of numbers, of an image."""

from __future__ import annotations

from onnxgen.training.tasks.card import PLACE_LOSSES, Card, Given, later


def _has(context: Given) -> str:
    """Images, or numbers of each pixel. If it is unsure what the network is for, bytes [H, W] may be classes."""
    import torch

    from onnxgen.training.data.images import axes_of

    name = context.aim(*CARD.columns)
    field = context.fields[name] if name else None
    if field is None or axes_of(field.shape) is None:
        return ""
    floats = field.dtype.is_floating_point
    fits = floats or (field.dtype == torch.uint8 and (bool(context.purpose.kind) or len(field.shape) == 3))
    return f"column {name!r} has {'numbers of each pixel' if floats else 'an image for each sample'}" if fits else ""


CARD = Card(
    "image-to-image",
    later("images.make"),
    losses=PLACE_LOSSES,
    metrics=("mean_absolute_error", "root_mean_squared_error", "psnr", "ssim"),
    answers={"image": later("answers.picture", "runs")},
    reads="target",
    columns=("target", "clean"),
    data="images",
    target="image",
    divides=lambda model, notes: True,
    kinds=("image-to-image",),
    has=_has,
    needs="image as a target",
)
