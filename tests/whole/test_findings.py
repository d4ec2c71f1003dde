"""Small files that broke a promise once: each is right, as onnxruntime has it, or refused in one line."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import onnxgen
from onnxgen.errors import OnnxgenError
from tests.conftest import SHARED

FOLDER = SHARED / "findings"
REFUSED = {  # the file, and what the line says
    "c05_celu_alpha_0": "by which the operator divides",
    "r3_conv_bias_len1": "conv.bias has the shape [1], and nn.Conv2d takes [4]",
    "F_concat_bomb": "the size of the file allows",
    "c02_input_without_rank_softmax11": "no rank for x: give all dims, such as --input-shape x=",
    "r25_shadow_outer_init": "one branch stores a tensor w, and another one takes the outer value of that name",
}


def findings() -> list[Any]:
    if not FOLDER.is_dir():
        return [pytest.param(Path(), id="absent", marks=pytest.mark.skip(reason=f"no small files in {FOLDER}"))]
    return [pytest.param(path, id=path.stem) for path in sorted(FOLDER.glob("*.onnx"))]


@pytest.mark.parametrize("path", findings())
def test_it_is_right_or_refused(path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ONNXGEN_STRICT", "1")
    if path.stem in REFUSED:
        with pytest.raises(OnnxgenError) as caught:
            onnxgen.generate(path, tmp_path / "model.py")
        assert len(caught.value.problems) == 1 and REFUSED[path.stem] in str(caught.value)
        return
    onnxgen.generate(path, tmp_path / "model.py")
    report = onnxgen.verify(path, tmp_path / "model.py")
    assert not report.differs, str(report)
