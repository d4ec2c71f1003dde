"""Inputs like those that networks are trained on: pictures with strokes and edges, and sounds of tones.

To a detector, noise shows nothing: its output is the same everywhere, and a wrong module's is, too. A little noise is
in both kinds, so that no two elements are equal by chance.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

MIN_SIDE, MIN_LENGTH = 8, 256  # of pictures and of sounds
CHANNELS = (1, 3, 4)
STROKES = 8
NOISE = 0.02  # its standard deviation; pictures and sounds have about 1
Array = NDArray[np.float64]


def natural(rng: np.random.Generator, shape: tuple[int, ...]) -> Array | None:
    """Return a picture (from 0 to 1) or a sound (from -1 to 1) of a shape; None if the shape is of neither."""
    if len(shape) == 4:
        last = shape[1] not in CHANNELS and shape[3] in CHANNELS
        sides = shape[1:3] if last else shape[2:]
        if min(sides) < MIN_SIDE:
            return None
        batch, channels = shape[0], shape[3] if last else shape[1]
        made = np.zeros((batch, channels, *sides))
        for picture in made:
            picture[:] = _picture(rng, channels, *sides)
        return np.moveaxis(made, 1, 3) if last else made
    length = max(shape, default=0)
    if len(shape) in (1, 2, 3) and length >= MIN_LENGTH and shape.index(length) > 0 and math.prod(shape[1:]) == length:
        return np.concatenate([_sound(rng, length) for _ in range(shape[0])]).reshape(shape) if shape[0] else None
    return None


def _picture(rng: np.random.Generator, channels: int, height: int, width: int) -> Array:
    """Draw a smooth background with a box, and dark or bright strokes in rows, like letters."""
    y, x = np.mgrid[0:height, 0:width]
    angle, waves = rng.uniform(0, 2 * np.pi), rng.uniform(0.3, 1.0)
    slope = (x * np.cos(angle) / width + y * np.sin(angle) / height) * waves * np.pi
    made: Array = 0.5 + 0.25 * np.sin(slope + rng.uniform(0, 6, (channels, 1, 1)))
    top, left = int(rng.integers(0, height // 2)), int(rng.integers(0, width // 2))
    inside = made[:, top : top + height // 2, left : left + width // 2]
    inside[:] = 0.5 * inside + 0.5 * rng.uniform(0, 1, (channels, 1, 1))
    ink, thick = rng.integers(0, 2), max(1, height // 32)
    line, base = max(4, height // 8), int(rng.integers(0, height))
    for i in range(STROKES):
        at = int((i + rng.uniform(0, 0.5)) * width / STROKES)
        rows = slice(max(0, base - line), base + line)
        made[:, rows, at : at + thick] = ink
        if rng.random() < 0.7:  # a bar across, as letters have
            bar = max(0, min(height - thick, base + int(rng.integers(-line, line))))
            made[:, bar : bar + thick, at : at + width // (STROKES + 2)] = ink
    return np.asarray(np.clip(0.1 + 0.8 * made + NOISE * rng.standard_normal(made.shape), 0, 1))


def _sound(rng: np.random.Generator, length: int) -> Array:
    """Draw a few tones that swell and fade, in noise."""
    time = np.arange(length)
    made = NOISE * rng.standard_normal(length)
    for _ in range(4):
        pitch = math.exp(rng.uniform(math.log(0.005), math.log(0.25)))  # cycles per sample
        middle, wide = rng.uniform(0, length), rng.uniform(0.1, 0.5) * length
        swell = np.exp(-(((time - middle) / wide) ** 2))
        made += rng.uniform(0.05, 0.22) * swell * np.sin(2 * np.pi * pitch * time + rng.uniform(0, 6))
    return np.asarray(np.clip(made, -1, 1))
