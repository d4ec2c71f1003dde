"""Captchas with known answers, drawn by the library `captcha`: the same for the same seed.

python -m samples.captcha.draw [--count 36] [--output captchas.png]      a sheet to look at
"""

from __future__ import annotations

import argparse
import random
from collections.abc import Sequence
from pathlib import Path
from typing import TypeVar
from unittest import mock

import captcha.image
import numpy as np
from PIL import Image

CHARACTERS = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZ"
LENGTH = 4
WIDTH, HEIGHT = 56, 24
T = TypeVar("T")


class Seeded:
    """What the library asks of `secrets`, which can't be seeded."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)

    def randbelow(self, limit: int) -> int:
        return self.random.randrange(limit)

    def randbits(self, count: int) -> int:
        return self.random.getrandbits(count)

    def choice(self, values: Sequence[T]) -> T:
        return self.random.choice(values)


def draw(count: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Pictures uint8 [count, 24, 56, 3], and answers int64 [count, 4], indices of `CHARACTERS`.

    The library draws 160x60, with noise, a curve, and characters turned and warped; then the picture is made smaller.
    """
    pictures = np.empty((count, HEIGHT, WIDTH, 3), np.uint8)
    answers = np.empty((count, LENGTH), np.int64)
    seeded = Seeded(seed)
    with mock.patch.object(captcha.image, "secrets", seeded):
        painter = captcha.image.ImageCaptcha()
        for i in range(count):
            text = seeded.random.choices(CHARACTERS, k=LENGTH)
            picture = painter.generate_image("".join(text))
            pictures[i] = np.asarray(picture.resize((WIDTH, HEIGHT), Image.Resampling.BILINEAR))
            answers[i] = [CHARACTERS.index(c) for c in text]
    return pictures, answers


def cached(count: int, seed: int, path: Path) -> tuple[np.ndarray, np.ndarray]:
    """The same, drawn once and then read from an `.npz`."""
    if path.is_file():
        with np.load(path) as found:
            if found["seed"] == seed and len(found["answers"]) == count:
                return found["pictures"], found["answers"]
    pictures, answers = draw(count, seed)
    np.savez(path, pictures=pictures, answers=answers, seed=seed)
    return pictures, answers


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--count", type=int, default=36)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--output", type=Path, default=Path("captchas.png"))
    args = parser.parse_args()
    pictures, answers = draw(args.count, args.seed)
    rows = [np.concatenate(list(pictures[i : i + 6]), 1) for i in range(0, args.count - args.count % 6, 6)]
    Image.fromarray(np.concatenate(rows)).save(args.output)
    print(*("".join(CHARACTERS[c] for c in answer) for answer in answers))


if __name__ == "__main__":
    main()
