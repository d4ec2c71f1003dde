"""Inputs of which an output tells something: pictures and sounds, and others where outputs are mute."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import parser

from onnxgen.options import Options
from onnxgen.runtime.load import load
from onnxgen.verify import verify
from onnxgen.verify.answering import vivid
from onnxgen.verify.check import Check
from onnxgen.verify.feeds import LOUDER, SPREADS, natural
from onnxgen.verify.oracle import Answer

F = np.float32


@pytest.mark.parametrize(("shape", "axis"), [((2, 3, 64, 96), 1), ((2, 64, 96, 3), 3), ((1, 1, 32, 320), 1)])
def test_a_picture_is_smooth_and_has_edges(shape: tuple[int, ...], axis: int) -> None:
    made = natural(np.random.default_rng(0), shape)
    assert made is not None and made.shape == shape and made.min() >= 0 and made.max() <= 1
    steps = np.abs(np.diff(np.moveaxis(made, axis, 1), axis=3))
    assert np.median(steps) < 0.05 and np.quantile(steps, 0.999) > 0.3 and made.std() > 0.1
    assert not (steps == 0).all(axis=(0, 1)).any(), "no two neighbours are equal everywhere"


@pytest.mark.parametrize("shape", [(2, 16000), (2, 1, 16000), (1, 44100, 1)])
def test_a_sound_has_tones(shape: tuple[int, ...]) -> None:
    made = natural(np.random.default_rng(0), shape)
    assert made is not None and made.shape == shape and np.abs(made).max() <= 1
    power = np.square(np.abs(np.fft.rfft(made.reshape(shape[0], -1)[0])))
    assert np.sort(power)[-len(power) // 50 :].sum() > 0.5 * power.sum()


@pytest.mark.parametrize("shape", [(), (8,), (2, 6), (2, 4, 64), (2, 3, 4, 64), (1024,), (2, 900, 120), (0, 512)])
def test_other_shapes_are_neither(shape: tuple[int, ...]) -> None:
    assert natural(np.random.default_rng(0), shape) is None


# finds dark strokes: the mean of a neighbourhood is far from what is in the middle
MAP = """<ir_version: 8, opset_import: ["" : 17]> net (float[n, 1, 64, 64] x) => (float[n, 1, 64, 64] y)
    <float far = {{-30}}, float gain = {{{gain}}}> {{
    smooth = AveragePool <kernel_shape = [5, 5], pads = [2, 2, 2, 2]> (x)
    wider = AveragePool <kernel_shape = [9, 9], pads = [4, 4, 4, 4]> (smooth)
    edge = Sub (smooth, wider)  large = Mul (edge, gain)  low = Add (large, far)  y = Sigmoid (low) }}"""


def test_a_map_that_noise_leaves_empty_is_seen_on_pictures(tmp_path: Path) -> None:
    path, other = tmp_path / "map.onnx", tmp_path / "other.onnx"
    onnx.save(parser.parse_model(MAP.format(gain=120.0)), path)
    onnx.save(parser.parse_model(MAP.format(gain=125.0)), other)
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    noise = np.random.default_rng(0).random((2, 1, 64, 64)).astype(F)
    (empty,) = session.run(None, {"x": noise})
    assert empty.max() < 1e-3, "noise shows something"
    for answer in Check(path, Options(), rtol=1e-3, atol=1e-5).answers(3, 0, None):
        (found,) = session.run(None, answer.feeds)
        assert found.std() > 0.01
    assert verify(path, load(path)).agrees
    assert not verify(path, load(other)).agrees


class _Told:
    """An oracle whose second output is mute but for the inputs of one spread; the first has no numbers to vary."""

    def __init__(self, first: Any) -> None:
        self.first = first

    def run(self, feeds: Mapping[str, Any]) -> list[Any]:
        return [self.first, np.linspace(0, 1, 4, dtype=F) * F(feeds["x"])]


def test_an_output_without_numbers_does_not_keep_others_from_telling_more() -> None:
    for first in (np.array([3, 1]), np.array([True]), np.array(["a"], object), None, [np.zeros(2, F)]):
        oracle = _Told(first)
        answer = Answer({}, 0, {"x": 0.0}, cast("Any", oracle), oracle.run({"x": 0.0}))
        for loud in LOUDER:
            found = vivid(answer, lambda spread, loud=loud: {"x": float(spread == loud)})
            assert found.feeds == {"x": 1.0}, first


def test_pictures_and_sounds_are_tried_before_other_noise() -> None:
    oracle, asked = _Told(None), list[str]()
    answer = Answer({}, 0, {"x": 0.0}, cast("Any", oracle), oracle.run({"x": 0.0}))

    def draw(spread: str) -> dict[str, float]:
        asked.append(spread)
        return {"x": 0.0}

    assert vivid(answer, draw) is answer and asked == [*LOUDER, *SPREADS]


def test_an_output_that_is_always_the_same_is_no_reason_to_refuse(tmp_path: Path) -> None:
    text = """<ir_version: 8, opset_import: ["" : 17]> net (float[n, 4] x) => (float[n, 4] y) {
        zero = Sub (x, x)  y = Add (zero, one) }"""
    model = parser.parse_model(text)
    model.graph.initializer.append(onnx.numpy_helper.from_array(np.ones(1, F), "one"))
    onnx.save(model, tmp_path / "same.onnx")
    assert verify(tmp_path / "same.onnx", load(tmp_path / "same.onnx")).agrees
