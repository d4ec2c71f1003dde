"""Sizes that are free in the ONNX file: a shipped file takes others, too, or says which it takes. Names go along."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from onnxgen import generate
from onnxgen.ship import ship
from onnxgen.ship.comparison import DIFFERS, FAILS, other_sizes
from onnxgen.ship.targets import TARGETS
from onnxgen.training import fit
from tests.zoo.export import quiet

RANDOM = np.random.default_rng(0)
QUIET: dict[str, Any] = {"epochs": 1, "val": 0.25, "show": "nothing", "device": "cpu", "task": "outputs"}


class Lines(nn.Module):
    """Lines [N, 3, 8, W] of any width -> scores at each place [N, W / 2, 5]."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.fc = nn.Conv2d(3, 6, 3, stride=(1, 2), padding=1), nn.Linear(6, 5)

    def forward(self, image: Tensor) -> Tensor:
        return self.fc(torch.relu(self.conv(image)).mean(2).transpose(1, 2))


class State(nn.Module):
    """Two arguments of one shape that are not alike, and two outputs of one shape."""

    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(4, 4)

    def forward(self, state: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
        return self.fc(x) - state, 3 * state


def exported(folder: Path, net: nn.Module, examples: Any, free: dict[str, dict[int, str]]) -> Path:
    """Export a network with free axes, and generate its module. `free`: of the inputs, then of the output."""
    torch.manual_seed(0)
    count = len(examples) if isinstance(examples, tuple) else 1
    inputs, outputs = [*free][:count], [*free][count:]
    with quiet():
        torch.onnx.export(
            net.eval(), examples, folder / "net.onnx", input_names=inputs, output_names=outputs, dynamo=False,
            dynamic_axes=free, opset_version=17,
        )  # fmt: skip
    generate(folder / "net.onnx", folder / "model.py")
    return folder / "model.py"


@pytest.fixture(scope="module")
def lines(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Any]:
    folder = tmp_path_factory.mktemp("lines")
    free = {"image": {0: "batch", 3: "width"}, "y": {0: "batch", 1: "places"}}
    module = exported(folder, Lines(), torch.zeros(2, 3, 8, 20), free)
    data = {"image": RANDOM.random((20, 3, 8, 20), np.float32), "y": RANDOM.random((20, 10, 5), np.float32)}
    fit(module, data, out=folder / "run", target="y", loss="mse", **QUIET)
    return folder / "run", data


def need(to: str) -> None:
    if any(find_spec(module) is None for module in TARGETS[to].needs.values()):
        pytest.skip(f"{', '.join(TARGETS[to].needs)} is not installed")


@pytest.mark.parametrize("to", ["onnx", "pt2", "torchscript", "executorch", "coreml", "litert"])
def test_a_free_width(to: str, lines: tuple[Path, Any], tmp_path: Path) -> None:
    need(to)
    run, data = lines
    report = ship(run, to, tmp_path / f"net{TARGETS[to].suffix}", data=data)
    said, card = "\n".join(report.notes), (tmp_path / "README.md").read_text()
    free, fixed = "the file takes image [1, 3, 8, up to 40]", "the file takes one size only: image [1, 3, 8, 20]"
    assert (free in said) is (to in ("executorch", "coreml"))
    assert (fixed in said) is (to == "litert") is ("takes one size only: image" in card)


def test_another_width_runs_in_executorch(lines: tuple[Path, Any], tmp_path: Path) -> None:
    need("executorch")
    from executorch.runtime import Runtime

    from onnxgen.training import load

    run, data = lines
    ship(run, "executorch", tmp_path / "net.pte", data=data)
    model, image = load(run, device="cpu").model, torch.randn(1, 3, 8, 32)
    method = Runtime.get().load_program(tmp_path / "net.pte").load_method("forward")
    (found,) = method.execute([image])
    assert torch.allclose(found, model(image), atol=1e-5)


@pytest.mark.parametrize("to", ["onnx", "pt2", "executorch", "coreml", "litert"])
def test_arguments_of_one_shape_keep_their_places(to: str, tmp_path: Path) -> None:
    """Names that are no identifiers are spelled as such where a runtime takes no others; the report says so."""
    need(to)
    free = dict.fromkeys(["state.1", "a_x", "x/y", "a_state"], {0: "batch"})
    module = exported(tmp_path, State(), (torch.zeros(2, 4),) * 2, free)
    data = {name: RANDOM.random((20, 4), np.float32) for name in ("s", "x", "y", "t")}
    fit(
        module, data, inputs={"state.1": "s", "a_x": "x"}, target={"x/y": "y", "a_state": "t"}, loss="mse",
        out=tmp_path / "run", **QUIET,
    )  # fmt: skip
    report = ship(tmp_path / "run", to, tmp_path / "out" / f"net{TARGETS[to].suffix}", data=data)
    assert report.compared == (5 if TARGETS[to].open else 0)
    told = "names in the file: state.1 is state_1, x/y is x_y"
    assert (told in report.notes) is (to in ("coreml", "litert"))
    if to == "litert":
        from ai_edge_litert.interpreter import Interpreter

        (signature,) = Interpreter(report.out).get_signature_list().values()
        assert {*signature["inputs"]} == {"state_1", "a_x"} and {*signature["outputs"]} == {"x_y", "a_state"}


def test_what_a_file_does_with_other_sizes_is_found() -> None:
    """A trace keeps a number that the module computes from a size."""

    class Job:
        free, inputs, example = {"x": {1: 8}}, {"x": ("N", "T")}, (torch.rand(2, 4),)

        @staticmethod
        def model(x: Tensor) -> Tensor:
            return x / x.shape[1]

    job: Any = Job
    assert other_sizes(job, lambda arguments: [arguments[0] / 4]) == DIFFERS
    assert other_sizes(job, lambda arguments: [arguments[0].reshape(2, 4) / 4]) == FAILS
    assert other_sizes(job, lambda arguments: [job.model(*arguments)]) == "equal"
