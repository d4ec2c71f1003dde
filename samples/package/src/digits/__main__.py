"""python -m digits: a picture, and what the network sees in it."""

from __future__ import annotations

import torch

from digits import read

PICTURE = """
. . . 1 f 3 . .
. . . a b . . .
. . 1 e 3 . . .
. . 7 c . 3 9 .
. . e 2 . a 7 .
. 6 d 5 b e 1 .
. b f f f 9 . .
. 1 2 1 e 1 . .
"""


def main() -> None:
    rows = [[int(ink, 16) for ink in line.replace(".", "0").split()] for line in PICTURE.split("\n") if line]
    (digit,) = read(torch.tensor([rows]) / 15)
    print(f"{PICTURE}\nThis is a {digit}.")


if __name__ == "__main__":
    main()
