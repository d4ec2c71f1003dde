"""The folder of wheels is one that pip can install from, and the little projects are what they say."""

from __future__ import annotations

from pathlib import Path

from tests.build_hooks.projects import check_record, save_model


def test_its_wheels_are_whole(wheelhouse: Path) -> None:
    wheels = sorted(wheelhouse.glob("*.whl"))
    assert {"onnxgen", "setuptools", "hatchling", "onnx", "numpy"} <= {w.name.split("-")[0] for w in wheels}
    for wheel in wheels:
        check_record(wheel)


def test_equal_arguments_make_equal_models(tmp_path: Path) -> None:
    for name, seed in (("a", 0), ("b", 0), ("c", 1)):
        save_model(tmp_path / name / "model.onnx", seed, external=True)
    a, b, c = ([(tmp_path / n / f).read_bytes() for f in ("model.onnx", "model.data")] for n in "abc")
    assert a == b and a[1] != c[1]
