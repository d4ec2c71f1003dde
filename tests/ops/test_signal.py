"""Fourier transforms and mel filters against onnxruntime, numpy and ONNX's stated outputs."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from onnxgen.helpers.signal import dft, stft
from tests.ops.harness import run_node, unbound_names

NAMES = ["DFT", "STFT", "MelWeightMatrix"]


@pytest.mark.parametrize("name", NAMES)
def test_every_schema_version_binds(name: str) -> None:
    assert unbound_names(name) == []


def signal(*shape: int) -> np.ndarray:
    return np.random.default_rng(1).standard_normal(shape).astype(np.float32)


@pytest.mark.parametrize("axis", [None, 0, 1, -2])
@pytest.mark.parametrize("length", [None, 5, 12])
@pytest.mark.parametrize("parts", [1, 2])
def test_dft(axis: int | None, length: int | None, parts: int) -> None:
    x = signal(6, 8, parts)
    inputs = [x, None if length is None else np.array(length), None if axis is None else np.array(axis)]
    for attrs in ({}, {"inverse": 1}) if parts == 2 else ({}, {"onesided": 1}):
        ran = run_node("DFT", inputs, attrs, initializers={i for i in (1, 2) if inputs[i] is not None}, atol=2e-5)
        assert not list(ran.model.buffers()), "stored numbers are written"
        run_node("DFT", inputs, attrs, dynamic=True, atol=2e-5)
        old = {**attrs, "axis": 1 if axis is None else axis}
        run_node("DFT", inputs[:2], old, opset=17, dynamic=True, atol=2e-5)


@pytest.mark.parametrize("length", [None, 7, 8])
def test_the_one_sided_inverse_is_real(length: int | None) -> None:
    x = signal(3, 5, 2)
    expected = np.fft.irfft(x[..., 0] + 1j * x[..., 1], length, axis=1)[..., None].astype(np.float32)
    inputs = [x, None if length is None else np.array(length)]
    run_node("DFT", inputs, {"onesided": 1, "inverse": 1}, opset=20, expected=[expected])


@pytest.mark.parametrize("kind", ["float64", "float16"])
def test_dft_types(kind: str) -> None:
    x = signal(2, 6, 1).astype(kind)
    made = np.fft.fft(x[..., 0].astype(np.float64), axis=1)
    expected = np.stack([made.real, made.imag], -1).astype(kind)
    run_node("DFT", [x], opset=20, expected=[expected], atol=1e-2 if kind == "float16" else None)


@pytest.mark.parametrize("onesided", [0, 1])
@pytest.mark.parametrize("windowed", [False, True])
@pytest.mark.parametrize("length", [None, 16])
def test_stft(onesided: int, windowed: bool, length: int | None) -> None:
    x, window = signal(2, 67, 1), np.hanning(16).astype(np.float32)
    inputs = [x, np.array(5), window if windowed else None, None if length is None else np.array(length)]
    if not windowed and length is None:
        return  # onnxruntime asks for one of them
    stored = {i for i in (1, 2, 3) if inputs[i] is not None}
    run_node("STFT", inputs, {"onesided": onesided}, initializers=stored, atol=2e-5)
    run_node("STFT", inputs, {"onesided": onesided}, dynamic=True, atol=2e-5)


def test_stft_of_a_signal_of_two_axes_has_real_numbers() -> None:
    x, window = signal(2, 67, 1)[..., 0], np.hanning(16).astype(np.float32)
    for dynamic in (False, True):
        run_node("STFT", [x, np.array(5), window], initializers={1, 2}, dynamic=dynamic, atol=2e-5)


def test_stft_of_complex_numbers_and_of_the_whole_signal() -> None:
    x = signal(1, 9, 2)
    made = np.fft.fft(x[..., 0] + 1j * x[..., 1], axis=1)
    expected = np.stack([made.real, made.imag], -1)[:, None].astype(np.float32)
    run_node("STFT", [x, np.array(3)], {"onesided": 0}, expected=[expected])


def test_a_window_is_no_parameter() -> None:
    x, window = signal(2, 67, 1), np.blackman(40).astype(np.float32)
    frames = np.lib.stride_tricks.sliding_window_view(x[..., 0], 40, axis=1)[:, ::5] * window
    made = np.fft.rfft(frames.astype(np.float64))
    expected = np.stack([made.real, made.imag], -1).astype(np.float32)
    ran = run_node("STFT", [x, np.array(5), window], initializers={1, 2}, expected=[expected])
    assert list(ran.model.parameters()) == []


@pytest.mark.parametrize("sizes", [(8, 16, 8192), (40, 512, 16000), (80, 400, 16000), (128, 1024, 44100), (3, 30, 100)])
@pytest.mark.parametrize("edges", [(0.0, 1.0), (0.01, 0.4), (0.1, 0.9)])
@pytest.mark.parametrize("stored", [True, False])
def test_mel_weights(sizes: tuple[int, int, int], edges: tuple[float, float], stored: bool) -> None:
    limits = [np.array(e * sizes[2] / 2, np.float32) for e in edges]
    inputs: list[Any] = [*map(np.array, sizes), *limits]
    run_node("MelWeightMatrix", inputs, initializers={*range(5)} if stored else frozenset(), atol=1e-7)


def test_mel_weights_as_integers_and_doubles() -> None:
    inputs: list[Any] = [np.array(8), np.array(64), np.array(8000), np.array(0, np.float32), np.array(3900, np.float32)]
    run_node("MelWeightMatrix", inputs, {"output_datatype": 7})
    run_node("MelWeightMatrix", inputs, {"output_datatype": 11}, rtol=1e-6)


def test_gradients() -> None:
    x = torch.randn(2, 7, 1, dtype=torch.float64, requires_grad=True)
    z = torch.randn(2, 7, 2, dtype=torch.float64, requires_grad=True)
    window = torch.randn(4, dtype=torch.float64, requires_grad=True)
    check = torch.autograd.gradcheck
    assert check(lambda t: dft(t, 9, onesided=True), x) and check(lambda t: dft(t, 5), x)
    assert check(lambda t: dft(t, inverse=True), z) and check(lambda t: dft(t, 9, -2, True, True), z)
    assert check(lambda t, w: stft(t, 2, w), (x, window)) and check(lambda t: stft(t, 2, length=3, onesided=False), z)
