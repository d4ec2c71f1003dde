"""Corners of boxes as shares of width and height, checked."""

from __future__ import annotations

import math

OVER = 1.0  # pixels by which a box may lie over the edge of its image; tools round, and some count from 1


def share_of(
    corners: tuple[float, ...], size: tuple[int, int], pixels: bool
) -> tuple[tuple[float, float, float, float], str]:
    """Return x1, y1, x2, y2 as shares from 0 to 1; and what is wrong, or "".

    Args:
        corners: x1, y1, x2, y2, in pixels or as shares.
        size: width and height of the image in pixels.
    """
    nothing = (0.0, 0.0, 0.0, 0.0)
    if not all(map(math.isfinite, corners)):
        return nothing, "a corner of the box is not a finite number"
    sides = (*size, *size)
    x1, y1, x2, y2 = shares = [c / side if pixels else c for c, side in zip(corners, sides)]
    if x2 <= x1 or y2 <= y1:
        shown = f"{corners[2] - corners[0]:g} wide and {corners[3] - corners[1]:g} high"
        return nothing, f"the box has no area: {shown}"
    if any(not -OVER / side <= share <= 1 + OVER / side for share, side in zip(shares, sides)):
        shown = ", ".join(f"{c:g}" for c in corners)
        return nothing, f"the box leaves the image of {size[0]}x{size[1]}: {shown}"
    x1, y1, x2, y2 = (min(max(share, 0.0), 1.0) for share in shares)
    if x2 <= x1 or y2 <= y1:
        return nothing, f"the box lies beside the image of {size[0]}x{size[1]}"
    return (x1, y1, x2, y2), ""
