"""Signals: discrete Fourier transforms and mel filters. A complex number is a last axis of 2."""

from __future__ import annotations

import math

import torch
from torch import Tensor


def as_spectrum(x: Tensor) -> Tensor:
    """Convert [..., 1] to real, [..., 2] to complex numbers without the last axis.

    Half precision becomes float32.
    """
    x = x.float() if x.dtype in (torch.float16, torch.bfloat16) else x
    return x.squeeze(-1) if x.shape[-1] == 1 else torch.view_as_complex(x.contiguous())


def dft(x: Tensor, length: int | None = None, axis: int = -2, inverse: bool = False, onesided: bool = False) -> Tensor:
    """ONNX DFT (20) along `axis` of x, [..., 1] or [..., 2].

    Args:
        length: to which the signal is cut or padded with zeros.
        onesided: return only the first half of the frequencies of a real x; with
            `inverse`, x is such a half.

    Returns:
        [..., 2]; [..., 1] for the one-sided inverse. In x's dtype.
    """
    axis = axis % x.dim()
    signal = as_spectrum(x)
    made: Tensor
    if inverse and onesided:
        made = torch.fft.irfft(signal, length, axis).unsqueeze(-1)
    else:
        transform = torch.fft.ifft if inverse else torch.fft.rfft if onesided else torch.fft.fft
        made = torch.view_as_real(transform(signal, length, axis).resolve_conj())  # as `ifft` of real numbers is
    return made.to(x.dtype)


def stft(
    x: Tensor, step: int, window: Tensor | None = None, length: int | None = None, onesided: bool = True
) -> Tensor:
    """ONNX STFT (17): the Fourier transforms of frames that begin every `step` samples.

    Args:
        x: [batch, samples, 1], or [batch, samples, 2] for complex numbers.
        window: [length], by which each frame is multiplied.
        length: of a frame; default: that of the window, else of the signal.
        onesided: return only the first half of the frequencies.

    Returns:
        [batch, frames, frequencies, 2], in x's dtype.
    """
    if length is None:
        length = x.shape[1] if window is None else window.shape[0]
    frames = as_spectrum(x).unfold(1, length, step)
    if window is not None:
        frames = frames * window.to(frames.real.dtype)
    made = torch.fft.fft(frames) if frames.is_complex() or not onesided else torch.fft.rfft(frames)
    made = made[..., : length // 2 + 1] if onesided else made
    return torch.view_as_real(made).to(x.dtype)


def mel_weights(bins: int, length: int, rate: int, low: float, high: float, device: torch.device) -> Tensor:
    """ONNX MelWeightMatrix (17): triangular filters, evenly spaced on the mel scale.

    Args:
        bins: the number of filters.
        length: of the Fourier transform.
        rate: samples per second.
        low, high: the range in hertz.

    Returns:
        float32 [length // 2 + 1, bins].
    """
    first, last = (2595 * math.log10(1 + hertz / 700) for hertz in (low, high))
    mels = [first + i * ((last - first) / (bins + 2)) for i in range(bins + 2)]
    edges = torch.tensor(
        [math.floor((length + 1) * (700 * (10 ** (mel / 2595) - 1)) / rate) for mel in mels], device=device
    )
    start, center, end = edges[:-2], edges[1:-1], edges[2:]
    at = torch.arange(length // 2 + 1, device=device).unsqueeze(1)
    rising = (at - start) / (center - start).clamp(min=1)
    falling = (end - at) / (end - center).clamp(min=1)
    weights = torch.where((at >= start) & (at <= center), rising, 0.0)
    weights = torch.where((center == start) & (at == center), 1.0, weights)
    return torch.where((at >= center) & (at < end), falling, weights)
