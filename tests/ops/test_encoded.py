"""ImageDecoder against ONNX's stated outputs."""

from __future__ import annotations

import io

import numpy as np
import pytest

from tests.ops.harness import refusal, run_node, unbound_names

Image = pytest.importorskip("PIL.Image")


def test_every_schema_version_binds() -> None:
    assert unbound_names("ImageDecoder") == []


@pytest.mark.parametrize("mode", ["L", "P", "RGBA", "1", "I;16", "CMYK"])
@pytest.mark.parametrize("pixels", ["RGB", "BGR", "Grayscale"])
def test_pixels_are_of_the_format_asked_for(mode: str, pixels: str) -> None:
    """Whatever the file has: ONNX states three channels, or one."""
    array = np.random.default_rng(0).integers(0, 255, (5, 7, 3)).astype(np.uint8)
    image = Image.fromarray(array).convert("L" if mode == "I;16" else mode).convert(mode)
    file = io.BytesIO()
    image.save(file, format="tiff" if mode == "CMYK" else "png")
    expected = np.array(image.convert("L" if pixels == "Grayscale" else "RGB")).reshape(5, 7, -1)
    expected = expected[..., ::-1] if pixels == "BGR" else expected
    run_node("ImageDecoder", [np.frombuffer(file.getvalue(), np.uint8)], {"pixel_format": pixels}, expected=[expected])


def test_what_is_no_image_has_no_pixels() -> None:
    run_node("ImageDecoder", [np.arange(20, dtype=np.uint8)], expected=[np.zeros((0, 0, 3), np.uint8)])


def test_refusals() -> None:
    assert "pixel_format" in refusal("ImageDecoder", [np.arange(20, dtype=np.uint8)], {"pixel_format": "HSV"})
