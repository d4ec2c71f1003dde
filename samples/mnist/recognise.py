"""Say which digit a picture shows, with the model that onnxgen generated from mnist.onnx.

    python samples/mnist/recognise.py [PNG ...]      default: the six digits beside this file

A picture is 28x28, 8-bit grayscale, white on black. Needs torch, and nothing of onnxgen.
"""

from __future__ import annotations

import struct
import sys
import zlib
from pathlib import Path

import torch

HERE = Path(__file__).resolve().parent
MEAN, STD = 0.1307, 0.3081  # as in make_onnx.py


def unfilter(rows: bytes, width: int, height: int) -> bytearray:
    """Undo the five filters of PNG for one byte a pixel (PNG specification, section 9.2)."""
    image = bytearray(width * (height + 1))  # a row of zeros above the picture
    for y in range(height):
        kind, here = rows[y * (width + 1)], (y + 1) * width
        for x in range(width):
            left = image[here + x - 1] if x else 0
            up = image[here + x - width]
            corner = image[here + x - width - 1] if x else 0
            nearest = min((left, up, corner), key=lambda v, p=left + up - corner: abs(p - v))
            guess = (0, left, up, (left + up) // 2, nearest)[kind]
            image[here + x] = (rows[y * (width + 1) + 1 + x] + guess) & 255
    return image[width:]


def read_png(path: Path) -> torch.Tensor:
    """An 8-bit grayscale PNG as a uint8 tensor [height, width]; ValueError for any other file."""
    data = path.read_bytes()
    if data[:8] != b"\x89PNG\r\n\x1a\n":
        raise ValueError(f"{path} is not a PNG")
    width, height, *kind = struct.unpack(">IIBBBBB", data[16:29])
    if kind != [8, 0, 0, 0, 0]:
        raise ValueError(f"{path} is not 8-bit grayscale without interlacing")
    packed, at = b"", 8
    while at < len(data):
        length = int.from_bytes(data[at : at + 4], "big")
        if data[at + 4 : at + 8] == b"IDAT":
            packed += data[at + 8 : at + 8 + length]
        at += length + 12
    return torch.frombuffer(unfilter(zlib.decompress(packed), width, height), dtype=torch.uint8).view(height, width)


def read_digit(path: Path) -> torch.Tensor:
    """A 28x28 picture; ValueError, naming the file, for any other size and for a damaged file."""
    try:
        image = read_png(path)
    except (LookupError, RuntimeError, zlib.error, struct.error) as error:
        raise ValueError(f"{path} is damaged: {error}") from error
    if image.shape != (28, 28):
        raise ValueError(f"{path} is {image.shape[1]}x{image.shape[0]}, not 28x28")
    return image


def main(arguments: list[str]) -> None:
    try:
        from model import Model
    except ModuleNotFoundError as error:
        if error.name != "model":
            raise
        sys.exit("no model.py yet; first run: onnxgen samples/mnist/mnist.onnx -o samples/mnist/model.py")
    paths = [Path(a) for a in arguments] or sorted((HERE / "digits").glob("*.png"))
    try:
        images = torch.stack([read_digit(p) for p in paths])
    except (OSError, ValueError) as error:
        sys.exit(str(error))
    model = Model.from_pretrained().eval()
    with torch.no_grad():
        chances = model((images.unsqueeze(1).float() / 255 - MEAN) / STD).exp()
    for path, row in zip(paths, chances, strict=True):
        print(f"{path.name}: {row.argmax().item()} ({row.max().item():.1%})")


if __name__ == "__main__":
    main(sys.argv[1:])
