"""What setuptools calls wherever onnxgen is installed, in every build of every project. So this module imports nothing,
and costs a project without models one look into its pyproject.toml. `setuptools_build` is for those that have some.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from setuptools import Distribution


def finalize(distribution: Distribution) -> None:
    """Entry point of `setuptools.finalize_distribution_options`: called when setup() begins, before it reads a file."""
    if _may_have_models(f"{distribution.src_root or '.'}/pyproject.toml"):
        _hook(distribution)


# Before other plugins (their order is 0): one of them may create the command that is to have another sub-command.
finalize.order = -100  # type: ignore[attr-defined]


def models_keyword(distribution: Distribution, attribute: str, value: object) -> None:
    """Entry point of `distutils.setup_keywords`: called if setup() was given `onnxgen_models`."""
    _hook(distribution)


def _hook(distribution: Distribution) -> None:
    from .setuptools_build import hook

    hook(distribution)


def _may_have_models(file: str) -> bool:
    """Whether a pyproject.toml may have `[tool.onnxgen]`, however it is spelled; it is parsed later, if at all."""
    try:
        with open(file, "rb") as opened:
            text = opened.read()
    except (OSError, ValueError):  # setuptools says what is wrong with it, if that matters to anyone
        return False
    if b"onnxgen" not in text:  # of most projects; what follows takes far longer of a large file
        return False
    text = text.translate(None, b" \t\"'")
    apart = b"[tool]" in text or b"tool={" in text
    return apart or b"tool.onnxgen" in text
