"""Fits without what DirectML lacks, and on a simulated device that checks the placement of tensors."""

from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import _disable_current_modes

from onnxgen.training import Settings, choose, report
from onnxgen.training.checkpoint import callback
from onnxgen.training.devices import choice, prepare_for
from onnxgen.training.prepare import Plan, prepare
from onnxgen.training.running import run
from onnxgen.training.task import Meter
from tests.training.standin.lacking import LackedByDirectML, Lacking
from tests.training.standin.nets import Net, data
from tests.training.standin.started import matches_the_cpu, simulating

# ---- (a) torch_directml with the CPU for its device, under a mode that raises where DirectML lacks something ---------


@pytest.fixture
def standin(monkeypatch: pytest.MonkeyPatch) -> None:
    module = SimpleNamespace(
        is_available=lambda: True,
        device_count=lambda: 1,
        device=lambda index=0: torch.device("cpu"),
        device_name=lambda index: "Stand-in",
    )
    monkeypatch.setitem(sys.modules, "torch_directml", module)
    monkeypatch.setattr(choice, "_verdict", lambda text, name, imports: ("ok", ()))
    # Metrics are summed and drawn on the CPU in float64; the simulated device below shows that it is the CPU.
    monkeypatch.setattr(callback, "_sums", _disable_current_modes()(callback._sums))
    for name in ("__init__", "add", "means"):
        monkeypatch.setattr(Meter, name, _disable_current_modes()(getattr(Meter, name)))
    monkeypatch.setattr(report, "finish", _disable_current_modes()(report.finish))


@pytest.mark.parametrize("optimizer", ["adamw", "sgd", "nadam"])
def test_a_fit_uses_nothing_that_directml_lacks(standin: None, tmp_path: Path, optimizer: str) -> None:
    torch.manual_seed(0)
    model, before = Net(), Net().state_dict().keys()
    plan = planned(model, tmp_path, optimizer=optimizer, schedule="OneCycleLR")
    with Lacking():
        result = run(plan, ())
    assert len(result.history) == 2 and result.history[-1]["val_loss"] > 0
    assert model.state_dict().keys() == before
    assert int(model.norm.num_batches_tracked) in (3, 6)  # of the best epoch


def planned(model: nn.Module, out: Path, device: str = "directml", **more: Any) -> Plan:
    """Plan the run outside the mode: this happens on the CPU, which has float64 and recurrent kernels."""
    x, y = data(64)
    parts = {"train": (x[:48], y[:48]), "val": (x[48:], y[48:])}
    common = {"epochs": 2, "batch_size": 16, "lr": 0.01, "clip": 1.0, "workers": 0}
    return prepare(model, parts, Settings(device=device, out=out, **common, **more))


class Pair:
    """Calls that need what DirectML lacks, which `Lacking` must refuse."""

    x = torch.ones(3, 2, 4)
    w = [torch.ones(2, requires_grad=True), torch.ones(2, requires_grad=True)]
    CALLS = {
        "float64 made": lambda: torch.zeros(2, dtype=torch.float64),
        "float64 cast": lambda: Pair.x.double(),
        "complex128": lambda: torch.zeros(2, dtype=torch.complex128),
        "lerp": lambda: torch.lerp(Pair.x, Pair.x, 0.5),
        "lerp_": lambda: Pair.x.clone().lerp_(Pair.x, torch.tensor(0.5)),
        "foreach": lambda: torch._foreach_add([Pair.x, Pair.x], 1.0),
        "foreach norm": lambda: torch._foreach_norm([Pair.x]),
        "fused": lambda: Pair.step(fused=True),
        "Adam": lambda: Pair.step(foreach=False),
        "LSTM": lambda: nn.LSTM(4, 4)(Pair.x),
        "scaled gradients": lambda: torch._amp_foreach_non_finite_check_and_unscale_(
            [torch.ones(2)], torch.zeros(1), torch.ones(1)
        ),
    }

    @staticmethod
    def step(**options: Any) -> None:
        sum(w.sum() for w in Pair.w).backward()
        torch.optim.Adam(Pair.w, **options).step()


@pytest.mark.parametrize("name", Pair.CALLS)
def test_the_stand_in_refuses_what_directml_lacks(name: str) -> None:
    with pytest.raises(LackedByDirectML, match="DirectML has no"), Lacking():
        Pair.CALLS[name]()


def test_the_same_fit_on_the_plain_cpu_is_refused_by_the_stand_in(standin: None, tmp_path: Path) -> None:
    """The same fit on the plain CPU uses what DirectML lacks."""
    plan = planned(Net(), tmp_path, device="cpu")
    with pytest.raises(LackedByDirectML), Lacking():
        run(plan, ())


def test_directml_is_chosen_and_the_model_prepared(standin: None) -> None:
    device = choose("directml")
    assert (device.text, device.name, choose("auto").kind) == ("directml:0", "Stand-in", "directml")
    model = prepare_for(Net(), device)
    assert not any(type(module) in (nn.LSTM, nn.GRU) for module in model.modules())
    assert torch.float64 not in {tensor.dtype for tensor in model.state_dict().values()}


# ---- (b) a device that is simulated: its tensors mix with no others --------------------------------------------------


@simulating
@pytest.mark.slow
def test_a_fit_on_a_simulated_device_matches_the_cpu(tmp_path: Path) -> None:
    """Of an external back end; `long_directml.py` has DirectML."""
    matches_the_cpu(tmp_path, "ocl:0", "ocl", ["float64", "lerp", "foreach"], "simulated_ocl")
