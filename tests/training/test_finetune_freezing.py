"""`freeze` and `unfreeze` affect parameters and statistics, in training mode and in copies."""

from __future__ import annotations

import copy
import io

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from onnxgen import OnnxgenError
from onnxgen.training import freeze, unfreeze, unfreeze_next
from tests.training.test_finetune import Tower, images, step


@pytest.mark.parametrize(
    ("pattern", "expected"),
    [
        ("layer1.*", "layer1."),
        ("layer1", "layer1."),
        ("layer1.**", "layer1."),
        ("layer1.0.0.weight", "layer1.0.0.weight"),
        ("stem.?", "stem."),
        ("**.bias", "bias"),
    ],
)
def test_patterns_select_what_is_frozen(pattern: str, expected: str) -> None:
    model = Tower(3)
    names = freeze(model, pattern)
    frozen = {name for name, p in model.named_parameters() if not p.requires_grad}
    assert frozen == set(names) == {name for name, _ in model.named_parameters() if expected in name} and frozen


@pytest.mark.parametrize("copied", ["itself", "deepcopy", "pickle"])
def test_a_frozen_layer_does_not_change(copied: str) -> None:
    """Its parameters and statistics stay the same in training mode, also in copies. The state dict has no new keys."""
    model = Tower(3)
    keys = list(model.state_dict())
    freeze(model, "stem", "layer1.*")
    if copied == "deepcopy":
        model = copy.deepcopy(model)
    elif copied == "pickle":
        file = io.BytesIO()
        torch.save(model, file)
        file.seek(0)
        model = torch.load(file, weights_only=False)
    assert list(model.state_dict()) == keys
    before = {key: value.clone() for key, value in model.state_dict().items()}
    step(model, images())
    assert model.training and model.layer2[0][1].training and not model.layer1[0][1].training
    assert model.layer1[0][3].training, "Dropout stays"
    for key, value in model.state_dict().items():
        held = key.startswith(("stem.", "layer1."))
        assert torch.equal(value, before[key]) == held, key
    # it normalises with its statistics, as in evaluation
    x, norm = torch.randn(8, 4, 5, 5), model.layer1[0][1]
    torch.testing.assert_close(norm(x), F.batch_norm(x, norm.running_mean, norm.running_var, norm.weight, norm.bias))


def test_a_frozen_layer_does_not_change_in_a_compiled_model() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Linear(4, 2))
    freeze(model, "0", "1")
    before = {key: value.clone() for key, value in model.state_dict().items()}
    compiled = torch.compile(model, backend="eager").train()
    compiled(torch.randn(8, 4)).sum().backward()
    torch.optim.SGD(model.parameters(), lr=0.1).step()
    assert [k for k, v in model.state_dict().items() if not torch.equal(v, before[k])] == ["2.weight", "2.bias"]


def test_unfreezing_undoes_freezing() -> None:
    model = Tower(3)
    freeze(model)
    assert not any(p.requires_grad for p in model.parameters())
    unfreeze(model)
    assert all(p.requires_grad for p in model.parameters()) and all(m.training for m in model.modules())
    before = {key: value.clone() for key, value in model.state_dict().items()}
    step(model, images())
    assert all(not torch.equal(value, before[key]) for key, value in model.state_dict().items())


def test_unfreezing_block_by_block() -> None:
    model = Tower(3)
    freeze(model)
    assert {name.rsplit(".", 1)[0] for name in unfreeze_next(model)} == {"fc"}
    seen = [name for _ in range(20) for name in unfreeze_next(model)]
    assert [n for n in seen if n.endswith("1.weight")] == [
        "layer2.1.1.weight", "layer2.0.1.weight", "layer1.1.1.weight", "layer1.0.1.weight", "stem.1.weight",
    ]  # fmt: skip
    assert all(p.requires_grad for p in model.parameters()) and unfreeze_next(model) == []


def test_a_name_that_is_none_of_the_models_parts_is_told_these() -> None:
    """Layers far inside may be spelled more like it, and say less."""
    model = nn.Sequential()
    for name in ("stem", "stage1", "heads"):
        model.add_module(name, nn.ModuleDict({f"backblock{n}": nn.Linear(2, 2) for n in range(12)}))
    with pytest.raises(OnnxgenError) as error:
        freeze(model, "backbone")
    assert str(error.value).endswith("-> there are stem, stage1, heads, ...")
    with pytest.raises(OnnxgenError, match="-> there are stage1, stem, heads"):
        freeze(model, "stage2")
    with pytest.raises(OnnxgenError, match=r"-> there are heads\.backblock3"):
        freeze(model, "heads.backblok3")


def test_a_pattern_that_matches_nothing() -> None:
    model = Tower(3)
    with pytest.raises(OnnxgenError, match=r"'layer7\.\*'.* -> there are .*layer1") as error:
        freeze(model, "layer7.*", "stem")
    assert "\n" not in str(error.value) and all(p.requires_grad for p in model.parameters())


def test_a_module_with_two_names() -> None:
    model = nn.ModuleDict({"a": nn.Linear(2, 2), "b": nn.Linear(2, 2)})
    model["c"] = model["a"]
    freeze(model, "c")
    assert not model["a"].weight.requires_grad and model["b"].weight.requires_grad
