"""The sample that measures what speeds a training up. It compiles a network, which takes most of the time."""

from __future__ import annotations

import re

from onnxgen.training import devices
from samples.speed import run as speed
from tests.training.conftest import Sample


def test_speed(sample: Sample) -> None:
    """All nine are measured or tell why not. Saved memory does not depend on the machine's load."""
    header, *rows = sample(speed, "--seconds", "0.01")
    named = [dict(zip(header, row, strict=True)) for row in rows]
    assert len(named) == 9
    for row in named:
        if row["speed-up"] == "device" and len(devices()) == 1:
            assert row["after"] == "not run: no such device" and not row["ratio"]
        else:
            assert float(row["ratio"]) > 0
    for name in ("accumulation", "detached losses"):
        memory = next(row["memory"] for row in named if row["speed-up"] == name)
        before, after = (float(m.replace(",", "")) for m in re.findall(r"[\d,]+", memory))
        assert before > 2 * after
