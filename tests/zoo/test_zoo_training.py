"""Generated modules train as their originals do: they take each other's checkpoints, and learn in the same steps."""

from __future__ import annotations

import copy
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.zoo.pairs import ARCHITECTURES, Pair, curve, gradients, pair

WHOLE = bool(os.environ.get("ONNXGEN_WHOLE_ZOO"))
DYNAMO = {"resnet18", "vit", "llama", "hf_bert"}  # by default: an export takes it seconds
# The largest element of a tensor's gradient is the measure for all of them: sums in another order differ by its
# rounding, and what cancels to nearly nothing has no digits of its own. The floor: gradients that are but rounding.
RTOL, FLOOR = 1e-4, 1e-6
# Keys of the original that are nowhere in the file: of a tied tensor the dynamo exporter writes one name that is used.
UNKNOWN = {("hf_t5", "dynamo"): "model.shared.weight"}


def cases() -> Iterator[Any]:
    for exporter in ("legacy", "dynamo"):
        for name in ARCHITECTURES:
            skipped = exporter == "dynamo" and name not in DYNAMO and not WHOLE
            marks = pytest.mark.skipif(skipped, reason="only with ONNXGEN_WHOLE_ZOO=1")
            yield pytest.param(name, exporter, id=f"{name}-{exporter}", marks=marks)


@pytest.mark.parametrize(("name", "exporter"), list(cases()))
def test_trains_as_the_original(name: str, exporter: str, tmp_path: Path) -> None:
    made = pair(name, exporter, tmp_path)
    assert_same_checkpoint(made)
    assert_same_gradients(made)
    assert_same_curve(made)


def assert_same_checkpoint(made: Pair) -> None:
    """`strict=True`, and every tensor is then the original's."""
    state = made.original.state_dict()
    state.pop(UNKNOWN.get((made.name, made.exporter), ""), None)
    made.generated.load_state_dict(state, strict=True)
    mine = made.generated.state_dict()
    assert {k: (v.shape, v.dtype) for k, v in mine.items()} == {k: (v.shape, v.dtype) for k, v in state.items()}
    for key, tensor in state.items():
        assert torch.equal(mine[key], tensor), key


def frozen(made: Pair) -> set[str]:
    """Parameters that the original does not train, which no ONNX file records (Whisper's table of sines)."""
    return {n for n, p in made.original.named_parameters() if not p.requires_grad}


def assert_same_gradients(made: Pair) -> None:
    inputs = made.entry.inputs(4)
    theirs, ours = gradients(copy.deepcopy(made.original), inputs), gradients(copy.deepcopy(made.generated), inputs)
    assert set(ours) - frozen(made) == set(theirs) - {UNKNOWN.get((made.name, made.exporter))}
    for name in ours.keys() & theirs.keys():
        expected = theirs[name]
        most = float(expected.abs().max())
        torch.testing.assert_close(
            ours[name], expected, rtol=RTOL, atol=RTOL * most + FLOOR, msg=lambda text, n=name: f"{n}: {text}"
        )


def assert_same_curve(made: Pair) -> None:
    inputs = made.entry.inputs(4)
    theirs, ours = curve(made.original, inputs), curve(made.generated, inputs, frozen(made))
    assert theirs[-1] < theirs[0]
    assert ours == pytest.approx(theirs, rel=1e-4)
