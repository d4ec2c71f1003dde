"""What the README of samples/package shows is there; `long_sample_package.py` installs and runs the sample."""

from __future__ import annotations

from tests.conftest import ROOT
from tests.docs.blocks import blocks

SAMPLE = ROOT / "samples" / "package"
README = (SAMPLE / "README.md").read_text(encoding="utf-8")


def test_the_settings_are_those_of_the_readme() -> None:
    settings = (SAMPLE / "pyproject.toml").read_text(encoding="utf-8")
    (table,) = (block.text for block in blocks(SAMPLE / "README.md") if block.kind == "toml")
    assert table in settings
    assert f"{(SAMPLE / 'models/digits.onnx').stat().st_size / 1000:.0f} KB" in README
