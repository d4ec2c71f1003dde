"""Draws some samples with their targets and with what the model says about them."""

from __future__ import annotations

import colorsys
import io
from collections.abc import Sequence
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor, nn

from onnxgen.common.names import visible
from onnxgen.surgery.example import evaluating
from onnxgen.training.data.arrays import spread
from onnxgen.training.data.images import ToInput
from onnxgen.training.data.prepared import Prepared
from onnxgen.training.data.samples import Samples
from onnxgen.training.goals.goal import Shown
from onnxgen.training.goals.language import LABELS, Tokens
from onnxgen.training.goals.measured import IGNORED_CLASS
from onnxgen.training.model import fixed_batch

if TYPE_CHECKING:
    from onnxgen.training.prepare import Plan

MOST, COLUMNS = 12, 4  # samples, and those in a row
TEXTS, NEW = 3, 20  # texts, and tokens that a model writes
SIDE, LINE, GAP = 150, 16, 10  # pixels: of an image, of a line of text, between samples
RIGHT, WRONG, PLAIN, TRUTH = "#1a7f37", "#c4372c", "#222222", "#2b6cb0"


def examples(plan: Plan, model: nn.Module) -> bytes | None:
    """Return a PNG; None if the model takes no images, or its goals show nothing.

    Args:
        model: on the CPU.
    """
    samples = plan.data.test or plan.data.val or plan.data.train
    column = next((c for c in plan.feeding.inputs if isinstance(_step(samples, c), ToInput)), None)
    if samples is None or column is None:
        return None
    count = fixed_batch(model) or min(MOST, len(samples))
    batch = samples.take(spread(samples, count), plan.settings.seed)
    with evaluating(model), torch.inference_mode():
        made = model(*plan.feeding.arguments(batch))
    outputs = made if isinstance(made, tuple) else (made,)
    goal, names, tiles = plan.objectives[0], plan.settings.classes or _classes(samples, plan), []
    images = pixels(batch[column][:MOST], _step(samples, column))
    for place, image in enumerate(images):
        shown = goal.shown(outputs, batch, place, names)
        if shown is None:
            return None
        tiles.append(_tile(image, shown))
    return _grid(tiles)


def texts(plan: Plan, model: nn.Module) -> list[tuple[str, str, str]]:
    """Return for some texts the first half, how it goes on, and what the model writes; [] for no language model.

    Args:
        model: on the CPU.
    """
    text, goal = plan.data.text, plan.objectives[0]
    if not isinstance(goal, Tokens) or not goal.shift or text is None or text.tokenizing is None:
        return []
    if find_spec("transformers") is None:
        return []
    from onnxgen.training.generation import causal_lm
    from onnxgen.training.generation.continuing import generated

    samples, decode = plan.data.test or plan.data.val or plan.data.train, text.tokenizing.tokenizer.decode
    assert samples is not None and plan.settings.tokenizer is not None
    batch, found = samples.take(spread(samples, TEXTS), plan.settings.seed), []
    with evaluating(model):
        lm = causal_lm(model, plan.settings.tokenizer)
        for ids, labels in zip(batch[text.ids], batch[LABELS]):
            whole = ids[labels != IGNORED_CLASS].tolist()
            half = (len(whole) + 1) // 2
            if new := min(len(whole) - half, NEW):
                made = generated(lm, [whole[:half]], new)[0]
                found.append((decode(whole[:half]), decode(whole[half : half + new]), decode(made)))
    return found


def _step(samples: Samples | None, column: str) -> Any:
    return samples.steps.get(column) if isinstance(samples, Prepared) else None


def _classes(samples: Samples, plan: Plan) -> tuple[str, ...]:
    return next((found for c in plan.objectives[0].columns if (found := samples.fields[c].classes)), ())


def pixels(x: Tensor, step: ToInput) -> np.ndarray:
    """Return inputs [n, ...] of a model as uint8 [n, H, W, 1, 3 or 4]: what `step` made of images, undone."""
    frame = step.frame
    if frame.axes != "HWC":
        x = x.reshape(len(x), frame.channels, frame.height, frame.width).permute(0, 2, 3, 1)
    x = x.float()
    if step.scale is None:
        x = x / step.white
    else:
        mean, std = map(torch.tensor, step.scale)
        x = x * std + mean
    return np.asarray(x.clamp(0, 1).mul(255).round().to(torch.uint8))


def _tile(image: np.ndarray, shown: Shown) -> Any:
    """Return a PIL image of one sample: the picture, the target's map and the model's, and two lines of text."""
    from PIL import Image, ImageDraw

    height, width = image.shape[:2]
    scale = SIDE / max(height, width)
    size = (max(1, round(width * scale)), max(1, round(height * scale)))
    filter = Image.Resampling.NEAREST if scale > 2 else Image.Resampling.BILINEAR
    panels = [_picture(image).resize(size, filter)]
    panels += [_picture(np.asarray(found)).resize(size, filter) for found in shown.pictures or ()]
    panels += [coloured(found).resize(size, Image.Resampling.NEAREST) for found in shown.maps or ()]
    for found, colour in zip(shown.boxes or (), (TRUTH, WRONG)):
        for x1, y1, x2, y2 in (found.clamp(0, 1) * torch.tensor([*size, *size])).tolist():
            ImageDraw.Draw(panels[0]).rectangle((x1, y1, x2, y2), outline=colour, width=2)
    for found, colour in zip(shown.points or (), (TRUTH, WRONG)):
        for x, y in (found.clamp(0, 1) * torch.tensor(size)).tolist():
            ImageDraw.Draw(panels[0]).ellipse((x - 3, y - 3, x + 3, y + 3), outline=colour, width=2)
    lines = [text for text in (shown.truth, shown.said) if text]
    tile = Image.new("RGB", (len(panels) * (size[0] + 2), size[1] + LINE * len(lines) + 2), "white")
    for number, panel in enumerate(panels):
        tile.paste(panel, (number * (size[0] + 2), 0))
    said = PLAIN if shown.right is None else RIGHT if shown.right else WRONG
    for number, (text, colour) in enumerate(zip(lines, (PLAIN, said))):
        most = tile.width // 7
        short = visible(text if len(text) <= most else text[: most - 3] + "...")
        text = short.encode("latin-1", "replace").decode("latin-1")  # Pillow's own font has no other letters
        ImageDraw.Draw(tile).text((1, size[1] + 2 + number * LINE), text, fill=colour)
    return tile


def _picture(image: np.ndarray) -> Any:
    """Return a PIL image of bytes [H, W, 1, 3 or 4]."""
    from PIL import Image

    return Image.fromarray(image[..., 0] if image.shape[2] == 1 else image[..., :3]).convert("RGB")


def coloured(classes: Tensor) -> Any:
    """Return a PIL image of a map of classes [H, W]: a colour for each class, gray where nothing counts."""
    from PIL import Image

    steps = torch.arange(int(classes.max().clamp_min(0)) + 1).tolist()  # class 0, mostly the background, is dark
    palette = np.array([colorsys.hsv_to_rgb(0.618 * n % 1, 0.7, 0.2 if n == 0 else 0.95) for n in steps])
    found = np.asarray(classes)
    picture = (palette[found.clip(0)] * 255).astype(np.uint8)
    picture[found == IGNORED_CLASS] = 128
    return Image.fromarray(picture)


def _grid(tiles: Sequence[Any]) -> bytes:
    """Return tiles in rows, as PNG."""
    from PIL import Image

    width, height = max(tile.width for tile in tiles) + GAP, max(tile.height for tile in tiles) + GAP
    columns = min(len(tiles), max(1, COLUMNS * (SIDE + GAP) // width))
    whole = Image.new("RGB", (columns * width + GAP, -(-len(tiles) // columns) * height + GAP), "white")
    for number, tile in enumerate(tiles):
        whole.paste(tile, (GAP + number % columns * width, GAP + number // columns * height))
    file = io.BytesIO()
    whole.save(file, format="PNG")
    return file.getvalue()
