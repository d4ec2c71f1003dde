"""`--lora`: adapters by peft, kept alone, merged exactly, and exported; onnxruntime is the oracle."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
import torch.nn.functional as F
from onnx import helper, numpy_helper
from safetensors.torch import load_file
from torch import Tensor, nn

from onnxgen import generate
from onnxgen.cli import run as cli
from onnxgen.errors import OnnxgenError
from onnxgen.export.adapter import _factors_of, write_adapter
from onnxgen.training import evaluate, fit, open_model
from onnxgen.training.finetune.adapters import add_adapter, attach, load_adapter, merge, trained_names
from tests.training.test_fit_options import CPU

pytest.importorskip("peft", reason="peft is not installed: adapters were not trained")
SHORT = ("--workers", "0", "--device", "cpu", "--quiet", "--lr", "0.02")


class Mixed(nn.Module):
    """Ids [batch, 6] -> scores [batch, 10]; every kind of layer, and two weights that are used outside their layers."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens, self.kinds = nn.Embedding(10, 8), nn.Embedding(10, 8)
        self.mix, self.depth = nn.Conv1d(8, 8, 3, padding=1), nn.Conv1d(8, 8, 3, padding=1, groups=8)
        self.norm = nn.BatchNorm1d(8)
        self.attention = nn.MultiheadAttention(8, 2, batch_first=True)
        self.fc, self.reused = nn.Linear(8, 8), nn.Linear(8, 8, bias=False)
        self.image, self.volume = nn.Conv2d(1, 2, 3, padding=1), nn.Conv3d(1, 2, (3, 1, 1), padding=(1, 0, 0))

    def forward(self, ids: Tensor) -> Tensor:
        x = (self.tokens(ids) + self.kinds(ids)).transpose(1, 2)
        x = self.norm(self.depth(self.mix(x))).transpose(1, 2)
        x = x + self.attention(x, x, x, need_weights=False)[0]
        x = x + self.image(x[:, None]).sum(1) + self.volume(x[:, None, None]).sum((1, 2))
        x = self.reused(torch.tanh(self.fc(x)))
        return F.linear(F.linear(x, self.reused.weight.T), self.tokens.weight).mean(1)


ALL = ("mix", "attention", "fc", "image", "volume")
NAMED = ("kinds",)


def mixed() -> nn.Module:
    torch.manual_seed(0)
    return Mixed().eval()


@pytest.mark.parametrize("dora", [False, True], ids=["lora", "dora"])
def test_an_adapter_on_any_layer_is_merged_exactly(tmp_path: Path, dora: bool) -> None:
    model, ids = mixed(), torch.arange(12).view(2, 6) % 10
    before = {name: value.clone() for name, value in model.state_dict().items()}
    expected = model(ids)
    targets = [name for name in (*ALL, *NAMED) if not (dora and name == "attention")]
    adapter = add_adapter(model, 2, *targets, dora=dora, example=ids)
    packed = set() if dora else {"attention.in_proj_weight"}
    assert {*adapter.layers, *adapter.packed} == {*targets, *packed} - {"attention"}
    torch.testing.assert_close(model(ids), expected)
    assert all("lora_" in name for name in trained_names(model))
    optimizer = torch.optim.Adam([p for p in model.parameters() if p.requires_grad], lr=0.05)
    for _ in range(3):
        optimizer.zero_grad()
        F.cross_entropy(model.train()(ids), torch.tensor([3, 4])).backward()
        optimizer.step()
    trained = model.eval()(ids)
    assert (trained - expected).abs().max() > 0.05
    merge(model)
    torch.testing.assert_close(model(ids), trained, rtol=1e-4, atol=1e-5)
    assert model.state_dict().keys() == before.keys()
    changed = {n for n, value in model.state_dict().items() if not torch.equal(value, before[n])}
    assert changed == {n if n.endswith("in_proj_weight") else f"{n}.weight" for n in (*adapter.layers, *adapter.packed)}


def test_a_weight_that_is_used_outside_its_layer_is_left_out() -> None:
    ids = torch.arange(12).view(2, 6) % 10
    adapter = add_adapter(mixed(), 2, example=ids)
    assert {*adapter.layers, *adapter.packed} == {"mix", "attention.in_proj_weight", "fc", "image", "volume"}
    for name in ("tokens", "reused"):  # one is the matrix of the scores, too
        with pytest.raises(OnnxgenError, match="also used outside its layer"):
            add_adapter(mixed(), 2, name, example=ids)
    for name in ("norm", "depth"):
        with pytest.raises(OnnxgenError, match=f"'{name}' matches no layer that can be adapted"):
            add_adapter(mixed(), 2, name, example=ids)


class Classifier(nn.Module):
    """[batch, 6] -> scores [batch, 3]."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(6, 32), nn.Tanh(), nn.Linear(32, 32), nn.Tanh())
        self.head = nn.Linear(32, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.body(x))


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with `net.onnx`, its module `net.py`, and data of three and of two classes."""
    monkeypatch.chdir(tmp_path)
    make(0)
    rng = np.random.default_rng(0)
    x = rng.normal(size=(120, 6)).astype(np.float32)
    np.savez("d.npz", x=x, label=x[:, :3].argmax(1))
    np.savez("two.npz", x=x, label=(x[:, 0] > 0).astype(np.int64))
    return tmp_path


def make(seed: int) -> None:
    torch.manual_seed(seed)
    axes = {"x": {0: "n"}, "scores": {0: "n"}}
    given = {"input_names": ["x"], "output_names": ["scores"], "dynamic_axes": axes, "opset_version": 17}
    torch.onnx.export(Classifier().eval(), (torch.zeros(2, 6),), "net.onnx", dynamo=False, **given)
    generate("net.onnx", "net.py", force=True)


def scores(file: Path | str, x: np.ndarray, adapter: Path | str = "") -> np.ndarray:
    options = onnxruntime.RunOptions()
    if adapter:
        loaded = onnxruntime.LoraAdapter()
        loaded.Load(str(adapter))
        options.add_active_adapter(loaded)
    quiet = onnxruntime.SessionOptions()
    quiet.log_severity_level = 3
    return onnxruntime.InferenceSession(str(file), quiet).run(None, {"x": x}, run_options=options)[0]


def test_a_run_keeps_the_adapter_alone_and_exports_it_both_ways(here: Path) -> None:
    sidecar, x = Path("net.safetensors").read_bytes(), np.load("d.npz")["x"]
    for number, rate in ((1, "0.02"), (2, "0.005")):
        assert cli(["train", "net.py", "--data", "d.npz", "--lora", "2", "--epochs", "3", *SHORT, "--lr", rate]) == 0
        run = Path(f"runs/net-{number}")
        assert all("lora_" in key for key in load_file(run / "best.safetensors"))
        model = open_model(run)
        assert model.state_dict().keys() == open_model("net.py").state_dict().keys()
        assert cli(["export", str(run), "-o", f"merged{number}.onnx", "-q"]) == 0
        assert cli(["export", str(run), "-o", f"base{number}.onnx", "--adapter", "-q"]) == 0
        with torch.no_grad():
            np.testing.assert_allclose(
                scores(f"merged{number}.onnx", x), model(torch.from_numpy(x)), rtol=1e-4, atol=1e-5
            )
    assert Path("net.safetensors").read_bytes() == sidecar
    assert Path("base1.onnx").read_bytes() == Path("base2.onnx").read_bytes()
    np.testing.assert_array_equal(scores("base1.onnx", x), scores("net.onnx", x))
    for number in (1, 2):  # one base, two adapters in turn
        found = scores("base1.onnx", x, f"base{number}.onnx_adapter")
        np.testing.assert_allclose(found, scores(f"merged{number}.onnx", x), rtol=1e-4, atol=1e-5)
        assert abs(found - scores("net.onnx", x)).max() > 0.05


@pytest.mark.parametrize(("rows", "columns", "rank"), [(10, 64, 8), (64, 10, 8), (48, 80, 3), (64, 64, 13)])
def test_the_rank_of_a_change_does_not_depend_on_its_numbers(rows: int, columns: int, rank: int) -> None:
    """Adapters of one kind fit one base only if each has the rank that it was trained with."""
    for seed in range(20):
        rng = np.random.default_rng(seed)
        before = rng.normal(size=(rows, columns)).astype(np.float32)
        change = rng.normal(size=(rows, rank)) @ rng.normal(size=(rank, columns)) * rng.choice((0.01, 0.3))
        after = before + change.astype(np.float32)
        found = _factors_of(before, after)
        assert found is not None and found[0].shape == (rows, rank) and found[1].shape == (rank, columns)
        np.testing.assert_allclose(before + found[0] @ found[1], after, atol=4e-6)


def test_an_older_file_declares_an_input_once(here: Path) -> None:
    """Files of IR version 3 list every initializer as an input; a bias that is trained is one already."""
    tuned, original = onnx.load("net.onnx"), onnx.load("net.onnx")
    for stored in tuned.graph.initializer:
        stored.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(stored) + np.float32(0.01), stored.name))
    for model in (tuned, original):
        for stored in model.graph.initializer:
            value = helper.make_tensor_value_info(stored.name, stored.data_type, stored.dims)
            model.graph.input.append(value)
        model.ir_version = 3
    onnx.save(tuned, "tuned.onnx"), onnx.save(original, "old.onnx")
    assert write_adapter(Path("old.onnx"), Path("tuned.onnx"), Path("base.onnx"))[1] == 6
    inputs = [value.name for value in onnx.load("base.onnx").graph.input]
    assert len(inputs) == len({*inputs})
    x = np.load("d.npz")["x"]
    np.testing.assert_allclose(scores("base.onnx", x), scores("old.onnx", x), rtol=1e-5, atol=1e-6)
    found = scores("base.onnx", x, "base.onnx_adapter")
    np.testing.assert_allclose(found, scores("tuned.onnx", x), rtol=1e-4, atol=1e-5)
    form = onnxruntime.AdapterFormat.read_adapter("base.onnx_adapter")
    assert (form.get_adapter_version(), form.get_model_version()) == (1, 1)


def test_an_older_onnxruntime_is_told_in_one_line(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(onnxruntime, "AdapterFormat")
    with pytest.raises(OnnxgenError, match="has no adapters -> install onnxruntime 1.20 or newer"):
        write_adapter(Path("net.onnx"), Path("net.onnx"), Path("base.onnx"))
    assert not Path("base.onnx").exists()


@pytest.mark.parametrize("more", [{"groups": 2}, {"dilation": 2, "padding": 2}, {"padding_mode": "reflect"}])
def test_a_convolution_that_peft_gets_wrong_is_left_out(more: dict[str, Any]) -> None:
    made = {"padding": 1, **more}
    model = nn.Sequential(nn.Conv2d(4, 4, 3, padding=1), nn.Conv2d(4, 4, 3, **made)).eval()
    x = torch.randn(1, 4, 8, 8, generator=torch.Generator().manual_seed(0))
    assert add_adapter(model, 2, example=x).layers == ("0",)
    merge(model)
    with pytest.raises(OnnxgenError, match="'1' matches no layer that can be adapted -> .*Conv without groups and"):
        add_adapter(model, 2, "1", example=x)


def test_a_stopped_run_goes_on_to_the_same_adapter(here: Path) -> None:
    options = {"lora": 2, "batch_size": 16, "lr": 0.01, **CPU}
    whole = fit("net.py", "d.npz", epochs=3, out=here / "whole", **options)
    fit("net.py", "d.npz", epochs=3, max_hours=1e-9, out=here / "cut", **options)
    assert (here / "cut" / "checkpoints" / "last.ckpt").stat().st_size < 64_000
    rest = fit("net.py", "d.npz", epochs=3, resume=True, out=here / "cut", **options)
    for name, value in whole.model.state_dict().items():
        assert torch.equal(rest.model.state_dict()[name], value)
        assert torch.equal(open_model(here / "whole").state_dict()[name], value)


def test_a_new_head_is_trained_as_a_whole(here: Path) -> None:
    result = fit("net.py", "two.npz", lora=2, replace_head=2, epochs=4, lr=0.02, out=here / "run", **CPU)
    assert result.history[-1]["val_accuracy"] > 0.8
    model = open_model(here / "run")
    assert model.head.out_features == 2
    assert evaluate(model, "two.npz", device="cpu") == evaluate(result.model, "two.npz", device="cpu")
    assert cli(["export", "run", "-o", "two.onnx", "-q"]) == 0
    x = np.load("two.npz")["x"]
    with torch.no_grad():
        np.testing.assert_allclose(scores("two.onnx", x), model(torch.from_numpy(x)), rtol=1e-4, atol=1e-5)
    assert cli(["export", "run", "-o", "apart.onnx", "--adapter", "-q"]) == 2


def test_an_adapter_is_refused_on_other_weights(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli(["train", "net.py", "--data", "d.npz", "--lora", "2", "--epochs", "1", *SHORT]) == 0
    with pytest.raises(OnnxgenError, match="has an adapter, and a second one can't be put on it"):
        fit("runs/net-1", lora=2, **CPU)
    with pytest.raises(OnnxgenError, match="does not fit the model"):
        load_adapter(open_model("net.py"), Path("runs/net-1/best.safetensors"))
    with pytest.raises(OnnxgenError, match="has no adapter, but whole weights"):
        attach(open_model("net.py"), Path("net.safetensors"))
    make(1)
    capsys.readouterr()
    assert cli(["export", "runs/net-1"]) == 2
    assert "was trained with other weights than those that the model has" in capsys.readouterr().err
    Path("net.py").unlink()
    with pytest.raises(OnnxgenError, match=r"has an adapter alone, and net\.py is gone"):
        open_model("runs/net-1")


@pytest.mark.parametrize(
    "given, said",
    [
        ({"lora": 0}, "lora must be at least 1"),
        ({"lora": 2, "freeze": "body"}, "freeze and lora exclude each other"),
        ({"lora": 2, "from_scratch": True}, "from_scratch and lora exclude each other"),
        ({"dora": True}, "lora_target and dora need lora"),
        ({"lora": 2, "lora_target": "bdy"}, "no module or parameter is called 'bdy' -> there are body"),
    ],
)
def test_what_does_not_fit_an_adapter_is_refused(here: Path, given: dict[str, object], said: str) -> None:
    with pytest.raises(OnnxgenError, match=said):
        fit("net.py", "d.npz", out=here / "run", **given, **CPU)
    assert not (here / "run").exists()
