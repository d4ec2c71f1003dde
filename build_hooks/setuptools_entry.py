"""Entry points that setuptools calls in every build of every project, wherever onnxgen is installed."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from setuptools import Distribution


def finalize(distribution: Distribution) -> None:
    """Entry point of `setuptools.finalize_distribution_options`, called when setup() begins, before it reads a file."""
    if _may_have_models(f"{distribution.src_root or '.'}/pyproject.toml"):
        _hook(distribution)


# Run before other plugins, whose order is 0: one of them may create the command that gets the sub-command.
finalize.order = -100  # type: ignore[attr-defined]


def models_keyword(distribution: Distribution, attribute: str, value: object) -> None:
    """Entry point of `distutils.setup_keywords`, called if setup() was given `onnxgen_models`."""
    _hook(distribution)


def _hook(distribution: Distribution) -> None:
    from .setuptools_build import hook

    hook(distribution)


def _may_have_models(file: str) -> bool:
    """Return True if a pyproject.toml may have `[tool.onnxgen]` in any spelling. It is parsed later, if at all."""
    try:
        with open(file, "rb") as opened:
            text = opened.read()
    except (OSError, ValueError):  # setuptools reports what is wrong with the file
        return False
    if b"onnxgen" not in text:  # true for most projects; parsing a large file takes far longer
        return False
    text = text.translate(None, b" \t\"'")
    apart = b"[tool]" in text or b"tool={" in text
    return apart or b"tool.onnxgen" in text
