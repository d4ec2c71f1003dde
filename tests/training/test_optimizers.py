"""Optimizers and schedules by name; without lerp they are compared with torch's."""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import pytest
import torch
from torch import nn
from torch.optim import lr_scheduler
from torch.utils._python_dispatch import TorchDispatchMode

from onnxgen.errors import OnnxgenError
from onnxgen.training.devices.probe import Device
from onnxgen.training.optimizers import make_optimizer, make_schedule, optimizer_class
from onnxgen.training.settings import Settings

CPU = Device("cpu", 0, "cpu", None, torch.device("cpu"))
CUDA = Device("cuda", 0, "stand-in", None, torch.device("cuda"))
DIRECTML = Device("directml", 0, "stand-in", None, torch.device("cpu"))
CLASSES = [c for c in vars(torch.optim).values() if inspect.isclass(c) and c is not torch.optim.Optimizer]
NAMES = sorted(c.__name__ for c in CLASSES if issubclass(c, torch.optim.Optimizer))
DENSE = [name for name in NAMES if name != "SparseAdam"]


class Lacking(TorchDispatchMode):
    """Fails on lerp, foreach and fused kernels."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func.overloadpacket.__name__
        assert not name.startswith(("lerp", "_foreach", "_fused")), f"{name} is called"
        return func(*args, **(kwargs or {}))


def net(name: str) -> nn.Sequential:
    torch.manual_seed(1)
    bias = name != "Muon"  # which takes matrices only
    return nn.Sequential(nn.Linear(6, 8, bias=bias), nn.Tanh(), nn.Linear(8, 3, bias=bias)).double()


def train(model: nn.Module, optimizer: torch.optim.Optimizer, steps: int = 50) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(2)
    for _ in range(steps):
        x, y = torch.randn(16, 6, generator=generator).double(), torch.randint(3, (16,), generator=generator)

        def closure(x: torch.Tensor = x, y: torch.Tensor = y) -> float:
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(x), y)
            loss.backward()
            return loss

        optimizer.step(closure)
    return [p.detach() for p in model.parameters()]


# ---- by name ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("case", [str, str.lower, str.upper])
def test_every_optimizer_of_torch_is_found_by_its_name(name: str, case: Callable[[str], str]) -> None:
    assert optimizer_class(case(name)) is getattr(torch.optim, name)


def test_an_unknown_optimizer_is_refused_with_similar_names() -> None:
    with pytest.raises(OnnxgenError, match="no optimizer is called 'adamv'.*perhaps.*Adam"):
        optimizer_class("adamv")
    with pytest.raises(OnnxgenError, match="one of ASGD"):
        optimizer_class("zzz")


@pytest.mark.parametrize("name", DENSE)
@pytest.mark.parametrize("device", [CPU, DIRECTML], ids=lambda d: d.kind)
def test_every_optimizer_trains_like_torchs(name: str, device: Device) -> None:
    """50 steps with the same class, or on DirectML with one without lerp, are equal except for rounding."""
    ours, theirs = net(name), net(name)
    optimizer = make_optimizer([{"params": list(ours.parameters())}], Settings(optimizer=name), device)
    original = getattr(torch.optim, name)
    plain = {"foreach": False} if "foreach" in inspect.signature(original).parameters else {}
    steps = 50 if name != "LBFGS" else 3
    expected = train(theirs, original(theirs.parameters(), **plain), steps)
    with Lacking() if device is DIRECTML else nullcontext():
        got = train(ours, optimizer, steps)
    start = list(net(name).parameters())
    assert any(not torch.equal(a, b) for a, b in zip(got, start))
    for a, b in zip(got, expected):
        torch.testing.assert_close(a, b, rtol=1e-9, atol=1e-10 if name != "Muon" else 1e-4)  # Muon computes in bfloat16


@pytest.mark.parametrize(
    "name, arguments",
    [
        ("adadelta", {"weight_decay": 0.1, "maximize": True}),
        ("adam", {"weight_decay": 0.1, "betas": (0.4, 0.9)}),
        ("adam", {"amsgrad": True, "maximize": True}),
        ("adamax", {"weight_decay": 0.1}),
        ("adamw", {}),
        ("adamw", {"weight_decay": 0.3, "betas": (0.5, 0.999), "eps": 1e-4, "amsgrad": True}),
        ("rmsprop", {"weight_decay": 0.1, "centered": True, "momentum": 0.9}),
        ("sgd", {}),
        ("sgd", {"momentum": 0.9, "nesterov": True, "weight_decay": 0.1}),
        ("sgd", {"momentum": 0.5, "dampening": 0.1, "maximize": True}),
    ],
)
def test_foreach_on_small_parameters_gives_the_same_bits(name: str, arguments: dict[str, Any]) -> None:
    ours, theirs = net(name).float(), net(name).float()
    settings = Settings(optimizer=name, lr=0.03, optimizer_args=arguments)
    optimizer = make_optimizer([{"params": list(ours.parameters())}], settings, CPU)
    plain = optimizer_class(name)(theirs.parameters(), lr=0.03, foreach=False, **arguments)
    for step in range(50):
        generator = torch.Generator().manual_seed(step)
        for a, b in zip(ours.parameters(), theirs.parameters()):
            a.grad = torch.randn(a.shape, generator=generator)
            b.grad = a.grad.clone()
        optimizer.step()
        plain.step()
    assert all(group["foreach"] for group in optimizer.param_groups)
    assert all(torch.equal(a, b) for a, b in zip(ours.parameters(), theirs.parameters()))
    large = make_optimizer([{"params": [nn.Parameter(torch.zeros(1024, 1024))]}], settings, CPU)
    assert not large.param_groups[0]["foreach"]


@pytest.mark.parametrize(
    "given, fused",
    [
        ({"optimizer": "adamw"}, True),
        ({"optimizer": "sgd"}, True),
        ({"optimizer": "rmsprop"}, None),  # torch has no fused one
        ({"optimizer": "adamw", "precision": "bf16-mixed"}, True),
        ({"optimizer": "adamw", "precision": "16-mixed"}, None),
        ({"optimizer": "adamw", "optimizer_args": {"foreach": True}}, None),
        ({"optimizer": "adamw", "optimizer_args": {"fused": False}}, False),
    ],
)
def test_steps_on_cuda_are_fused(given: dict[str, Any], fused: bool | None) -> None:
    group = {"params": [nn.Parameter(torch.zeros(2))]}
    assert make_optimizer([group], Settings(lr=0.1, **given), CUDA).param_groups[0].get("fused") is fused


@pytest.mark.parametrize(
    "name, arguments",
    [
        ("adam", {"weight_decay": 0.1, "betas": (0.4, 0.9)}),
        ("adam", {"amsgrad": True, "eps": 1e-3}),
        ("adam", {"maximize": True}),
        ("adamw", {"weight_decay": 0.3, "betas": (0.5, 0.999), "eps": 1e-4, "amsgrad": True}),
        ("nadam", {"weight_decay": 0.1, "momentum_decay": 0.01}),
        ("radam", {"betas": (0.6, 0.99)}),
        ("rmsprop", {"centered": True, "alpha": 0.4, "momentum": 0.9}),
        ("sgd", {"momentum": 0.9, "nesterov": True, "weight_decay": 0.1}),
    ],
)
def test_arguments_mean_the_same_without_lerp(name: str, arguments: dict[str, Any]) -> None:
    ours, theirs = net(name), net(name)
    settings = Settings(optimizer=name, lr=0.01, optimizer_args=arguments)
    with Lacking():
        got = train(ours, make_optimizer([{"params": list(ours.parameters())}], settings, DIRECTML))
    expected = train(theirs, optimizer_class(name)(theirs.parameters(), lr=0.01, foreach=False, **arguments))
    for a, b in zip(got, expected):
        torch.testing.assert_close(a, b, rtol=1e-9, atol=1e-10)


def test_torchs_adam_uses_lerp() -> None:
    """Otherwise the tests above would prove nothing."""
    model = net("adam")
    with pytest.raises(AssertionError, match="lerp_ is called"), Lacking():
        train(model, torch.optim.Adam(model.parameters(), foreach=False), 1)
    with pytest.raises(AssertionError, match="_foreach.* is called"), Lacking():
        train(model, torch.optim.SGD(model.parameters(), foreach=True), 1)


def test_hooks_of_a_step_run_once_without_lerp() -> None:
    model, calls = net("adamw"), []
    optimizer = make_optimizer([{"params": list(model.parameters())}], Settings(), DIRECTML)
    torch.optim.AdamW(net("adamw").parameters())  # now torch's own class is hooked, too
    optimizer.register_step_pre_hook(lambda *_: calls.append("before"))
    optimizer.register_step_post_hook(lambda *_: calls.append("after"))
    train(model, optimizer, 2)
    assert calls == ["before", "after"] * 2


def test_the_state_without_lerp_loads_into_torchs_optimizer() -> None:
    ours, settings = net("adamw"), Settings(lr=0.01)
    optimizer = make_optimizer([{"params": list(ours.parameters())}], settings, DIRECTML)
    train(ours, optimizer, 5)
    theirs = copy.deepcopy(ours)
    original = torch.optim.AdamW(theirs.parameters(), lr=0.01, foreach=False)
    original.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    for a, b in zip(train(ours, optimizer, 5), train(theirs, original, 5)):
        torch.testing.assert_close(a, b, rtol=1e-9, atol=1e-10)


# ---- groups and arguments --------------------------------------------------------------------------------------------


def test_values_of_a_group_override_the_settings() -> None:
    model = net("sgd")
    groups = [{"params": [model[0].weight], "lr": 0.5}, {"params": [model[2].weight], "weight_decay": 0.0}]
    optimizer = make_optimizer(groups, Settings(optimizer="SGD", lr=0.1, weight_decay=0.01), CPU)
    assert [(g["lr"], g["weight_decay"]) for g in optimizer.param_groups] == [(0.5, 0.01), (0.1, 0.0)]


def test_the_default_rate_is_the_optimizers_own() -> None:
    optimizer = make_optimizer([{"params": list(net("x").parameters())}], Settings(optimizer="adadelta"), CPU)
    assert optimizer.param_groups[0]["lr"] == inspect.signature(torch.optim.Adadelta).parameters["lr"].default


@pytest.mark.parametrize(
    "settings, message",
    [
        (Settings(optimizer="sgd", optimizer_args={"betas": (0.9, 0.99)}), "SGD has no argument 'betas'.*momentum"),
        (Settings(optimizer="lbfgs", weight_decay=0.1), "LBFGS has no argument 'weight_decay'"),
        (Settings(optimizer="adam", optimizer_args={"params": []}), "Adam has no argument 'params'"),
        (Settings(optimizer="sparseadam"), "SparseAdam needs sparse gradients"),
        (Settings(optimizer="muon"), "Muon: .*2D"),
    ],
)
def test_wrong_arguments_are_refused_in_one_line(settings: Settings, message: str) -> None:
    if not hasattr(torch.optim, "Muon") and settings.optimizer == "muon":
        pytest.skip("this torch has no Muon")
    with pytest.raises(OnnxgenError, match=message) as caught:
        make_optimizer([{"params": list(net("adam").parameters())}], settings, CPU)
    assert "\n" not in str(caught.value)


def test_lbfgs_joins_groups_but_refuses_different_rates() -> None:
    model = net("lbfgs")
    groups = [{"params": [model[0].weight], "lr": 0.5}, {"params": [model[2].weight], "lr": 0.5, "weight_decay": 0.0}]
    assert len(make_optimizer(groups, Settings(optimizer="lbfgs"), CPU).param_groups[0]["params"]) == 2
    groups[1]["lr"] = 5.0
    with pytest.raises(OnnxgenError, match="one learning rate"):
        make_optimizer(groups, Settings(optimizer="lbfgs"), CPU)


# ---- schedules -------------------------------------------------------------------------------------------------------

EXTRA: dict[str, dict[str, Any]] = {
    "StepLR": {"step_size": 2},
    "MultiStepLR": {"milestones": [1, 3]},
    "ExponentialLR": {"gamma": 0.9},
    "LambdaLR": {"lr_lambda": lambda epoch: 0.9**epoch},
    "MultiplicativeLR": {"lr_lambda": lambda epoch: 0.9},
    "CosineAnnealingWarmRestarts": {"T_0": 2},
    "CyclicLR": {"base_lr": 0.01, "step_size_up": 4},
}
SCHEDULES = [
    n
    for n, c in vars(lr_scheduler).items()
    if inspect.isclass(c)
    and issubclass(c, lr_scheduler.LRScheduler)
    and not n.startswith("_")
    and n not in ("LRScheduler", "SequentialLR", "ChainedScheduler")
]


def sgd(lr: float = 0.1, **arguments: Any) -> torch.optim.SGD:
    return torch.optim.SGD(net("sgd").parameters(), lr=lr, **arguments)


@pytest.mark.parametrize("name", sorted({*SCHEDULES, "ReduceLROnPlateau"}))
def test_every_schedule_of_torch_runs_a_whole_run(name: str) -> None:
    """The rate changes over 20 steps, 5 in each epoch."""
    optimizer = sgd()
    made = make_schedule(optimizer, Settings(schedule=name.lower(), schedule_args=EXTRA.get(name, {})), 20)
    assert made is not None and type(made["scheduler"]).__name__ == name
    rates = [0.1, optimizer.param_groups[0]["lr"]]
    for _ in range(20 if made["interval"] == "step" else 4):
        optimizer.step()
        made["scheduler"].step(*([1.0] if "monitor" in made else []))
        rates.append(optimizer.param_groups[0]["lr"])
    assert ("monitor" in made) == (name == "ReduceLROnPlateau")
    if name != "ReduceLROnPlateau":  # whose patience is longer
        assert len(set(rates)) > 1


def rates(name: str, steps: int, **arguments: Any) -> tuple[list[float], str]:
    optimizer = sgd()
    made = make_schedule(optimizer, Settings(schedule=name, schedule_args=arguments), 20)
    assert made is not None
    found = []
    for _ in range(steps):
        found.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        made["scheduler"].step()
    return [*found, optimizer.param_groups[0]["lr"]], made["interval"]


def test_the_default_length_of_a_schedule_is_the_whole_run_in_steps() -> None:
    cosine, interval = rates("CosineAnnealingLR", 20)
    assert interval == "step" and cosine[10] == pytest.approx(0.05) and cosine[20] == pytest.approx(0.0)
    linear, interval = rates("LinearLR", 20, start_factor=1.0, end_factor=0.5)
    assert interval == "step" and linear[10] == pytest.approx(0.075) and linear[20] == pytest.approx(0.05)
    cycle, interval = rates("OneCycleLR", 19, pct_start=0.5)  # its first rate is set before the first step
    assert interval == "step" and max(cycle) == pytest.approx(0.1) and cycle[-1] < 1e-4


def test_a_given_length_of_a_schedule_counts_epochs() -> None:
    cosine, interval = rates("CosineAnnealingLR", 4, T_max=4)
    assert interval == "epoch" and cosine[2] == pytest.approx(0.05) and cosine[4] == pytest.approx(0.0)


def test_each_group_has_its_own_max_lr() -> None:
    model = net("sgd")
    groups = [{"params": [model[0].weight], "lr": 1.0}, {"params": [model[2].weight], "lr": 10.0}]
    optimizer = torch.optim.SGD(groups, lr=0.1, momentum=0.9)
    made = make_schedule(optimizer, Settings(schedule="onecyclelr"), 20)
    assert made is not None
    highest = [0.0, 0.0]
    for _ in range(19):
        optimizer.step()
        made["scheduler"].step()
        highest = [max(h, g["lr"]) for h, g in zip(highest, optimizer.param_groups)]
    assert highest == pytest.approx([1.0, 10.0], rel=0.05)


@pytest.mark.parametrize(
    ("metric", "falls"),
    [("val_accuracy", False), ("val_accuracy_glossary", False), ("val_f1", False), ("val_loss", True)],
)
def test_a_plateau_schedule_knows_which_metrics_should_rise(metric: str, falls: bool) -> None:
    settings = Settings(schedule="ReduceLROnPlateau", schedule_args={"patience": 0})
    optimizer = sgd()
    made = make_schedule(optimizer, settings, 20, monitor=metric)
    assert made is not None and made["monitor"] == metric
    for value in (1.0, 2.0):
        made["scheduler"].step(value)
    assert (optimizer.param_groups[0]["lr"] < 0.1) == falls


def test_no_schedule_is_none() -> None:
    assert make_schedule(sgd(), Settings(), 20) is None


@pytest.mark.parametrize(
    "name, arguments, message",
    [
        ("steplr", {}, "StepLR needs 'step_size'"),
        ("steplr", {"step": 1}, "StepLR has no argument 'step'.*step_size"),
        ("cosine", {}, "no schedule is called 'cosine'.*perhaps CosineAnnealingLR"),
        ("bogus", {}, "no schedule is called 'bogus' -> one of ConstantLR, .*, StepLR$"),
        ("sequentiallr", {}, "no schedule is called"),
        ("onecyclelr", {"total_steps": -1}, "OneCycleLR: "),
        ("lambdalr", {"lr_lambda": 3}, "LambdaLR: "),
    ],
)
def test_a_wrong_schedule_is_refused_in_one_line(name: str, arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(OnnxgenError, match=message) as caught:
        made = make_schedule(sgd(), Settings(schedule=name, schedule_args=arguments), 20)
        assert made is not None
        made["scheduler"].step()
    assert "\n" not in str(caught.value)
