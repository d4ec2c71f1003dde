"""Which architecture a file is. Truth is the module that a file was exported from.

The steps of a file are compared with those of the module, which `benchmarks/tracing.py` reads from PyTorch's calls: no
code is shared but the list of steps.
"""

from __future__ import annotations

import json
import random
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import nn

import onnxgen
from benchmarks.identify import STRANGERS, Encoder, residual, stripped
from benchmarks.tracing import steps_of_module
from onnxgen.cli import run
from onnxgen.errors import OnnxgenError
from onnxgen.identify import table
from onnxgen.identify.answering import _Tables, answer
from onnxgen.identify.families import Family, bind, families, value_of
from onnxgen.identify.reading import steps_of
from onnxgen.identify.steps import Bag, Network, Table, digest, layers, weights_digest
from tests.conftest import ROOT

IMAGE = (1, 3, 32, 32)


class Squeeze(nn.Module):
    """Gates of a channel, hard functions, groups, and two ways that are concatenated."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Sequential(nn.Conv2d(3, 8, 3, 2, 1), nn.BatchNorm2d(8), nn.Hardswish())
        self.gate = nn.Sequential(
            nn.AdaptiveAvgPool2d(1), nn.Conv2d(8, 4, 1), nn.ReLU(), nn.Conv2d(4, 8, 1), nn.Hardsigmoid()
        )
        self.wide = nn.Sequential(
            nn.Conv2d(8, 8, 3, 1, 2, dilation=2, groups=8), nn.SiLU(), nn.ConvTranspose2d(8, 6, 2, 2)
        )
        self.other = nn.Sequential(
            nn.Conv2d(8, 6, 1), nn.LeakyReLU(0.1), nn.Upsample(scale_factor=2), nn.GroupNorm(2, 6)
        )
        self.last = nn.Sequential(
            nn.Conv2d(12, 10, 3), nn.PReLU(), nn.ReLU6(), nn.MaxPool2d(2), nn.Flatten(), nn.LazyLinear(5)
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.first(x)
        x = x * self.gate(x)
        return self.last(torch.cat([self.wide(x), self.other(x)], 1))


class Sequences(nn.Module):
    """Recurrent layers, a gated unit, a norm and a scale."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.cells = nn.Conv1d(4, 8, 3, padding=1), nn.LSTM(8, 6, 2, batch_first=True, bidirectional=True)
        self.other, self.norm = nn.GRU(12, 7, batch_first=True), nn.LayerNorm(7)
        self.scale, self.last = nn.Parameter(torch.rand(7)), nn.Linear(7, 6)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.cells(self.first(x).transpose(1, 2))[0]
        x = self.norm(self.other(x)[0])
        return nn.functional.glu(self.last(self.scale * x), -1)


NETS: dict[str, Callable[[], tuple[nn.Module, torch.Tensor]]] = {
    "residual": lambda: (residual((2, 1), 8), torch.randn(IMAGE)),
    "squeeze": lambda: (Squeeze(), torch.randn(IMAGE)),
    "sequences": lambda: (Sequences(), torch.randn(1, 4, 9)),
    "encoder": lambda: (Encoder(False, True, 16), torch.randint(0, 500, (1, 9))),
    "encoder, norms first": lambda: (Encoder(True, False, 16), torch.randint(0, 500, (1, 9))),
}


def file_of(module: nn.Module, x: torch.Tensor, path: Path) -> Path:
    torch.onnx.export(module.eval(), (x,), str(path), dynamo=False, opset_version=17)
    return path


def body_of(module: nn.Module, x: torch.Tensor, depth: int = 1) -> Bag:
    return steps_of_module(module, x).body(depth)


@pytest.mark.parametrize("name", NETS)
def test_the_steps_of_a_file_are_those_of_its_module(name: str, tmp_path: Path) -> None:
    torch.manual_seed(0)
    module, x = NETS[name]()
    module(x)
    read = steps_of(file_of(module, x, tmp_path / "net.onnx")).network
    for depth in (0, 1, 2):
        assert read.body(depth) == body_of(module, x, depth)
    stripped(tmp_path / "net.onnx", tmp_path / "stripped.onnx")
    assert steps_of(tmp_path / "stripped.onnx").network.body(0) == read.body(0)


def test_neither_head_nor_input_size_is_of_the_body_but_width_depth_strides_and_sums_are() -> None:
    def of(*args: object, size: int = 32, classes: int = 10, **kwargs: object) -> str:
        module = residual(*args, **kwargs)  # type: ignore[arg-type]
        module[-1] = nn.Linear(module[-1].in_features, classes)  # type: ignore[index, operator]
        return digest(body_of(module, torch.randn(1, 3, size, size)))

    same = of((2, 1), 8)
    assert same == of((2, 1), 8, size=48) == of((2, 1), 8, classes=77)
    others = [of((2, 2), 8), of((2, 1), 12), of((2, 1), 8, joined=False), of((2, 1), 8, stem=5)]
    others += [of((2, 1), 8, act=nn.SiLU())]
    assert len({same, *others}) == 6


def test_dense_layers_of_one_input_count_as_one() -> None:
    apart, fused = Network(), Network()
    for network, widths in ((apart, (8, 8, 8)), (fused, (24,))):
        first = network.add("norm", "layer 8", ())
        parts = [network.dense(8, width, first) for width in widths]
        network.outputs = network.attention("2", parts[0], parts[-1], parts[-1])
    assert apart.body(0) == fused.body(0)


def test_lists_that_grow_are_one_list() -> None:
    grown, whole = Network(), Network()
    for network in (grown, whole):
        a, b, c = (network.add("conv", str(n), ()) for n in range(3))
        pair = network.join("cat", "", (a, b)) if network is grown else None
        network.outputs = network.join("cat", "", (pair, c) if pair else (a, b, c))
    assert grown.body(0) == whole.body(0)


# ---- families ----


@pytest.mark.parametrize("family", families(), ids=lambda f: f"{f.name}-{len(f.lines)}")
def test_the_sizes_of_a_family_are_found_again(family: Family) -> None:
    drawn = random.Random(0)
    for _ in range(20):
        heads = drawn.choice((1, 2, 3, 4, 8, 12))
        groups = drawn.choice((1, 2, 4))
        sizes = {"h": heads, "k": drawn.choice([n for n in range(1, heads + 1) if heads % n == 0]), "g": groups}
        sizes["d"] = heads * groups * 2 * drawn.randint(1, 40)
        sizes |= {name: drawn.randint(1, 900) for name in "fesb"} | {
            "p": drawn.randint(1, 32),
            "L": drawn.randint(1, 30),
        }
        bag = family.bag(sizes)
        assert bag is not None
        found = family.solve(bag)
        assert found is not None and family.bag(found) == bag
        assert {name: found[name] for name in ("d", "L")} == {name: sizes[name] for name in ("d", "L")}
        label = drawn.choice(sorted(bag))
        assert family.solve(bag + Bag({label: 1})) != sizes
        assert family.solve(bag + Bag({"relu < product": 1})) is None


def test_expressions() -> None:
    assert value_of("d+2*k*d/h", {"d": 12, "k": 1, "h": 3}) == 20
    assert value_of("2*L-1", {"L": 4}) == 7 and value_of("d/h", {"d": 7, "h": 2}) is None
    sizes: dict[str, int] = {}
    assert bind("3*d", 12, sizes) and sizes == {"d": 4}
    assert not bind("3*e", 13, sizes) and not bind("d", 5, sizes)


@pytest.mark.parametrize(
    ("tables", "names"),
    [
        (((500, "a"), (2, "b"), (64, "")), {"BertModel"}),
        (((500, "a"), (1, "a"), (64, "a")), {"RobertaModel", "XLMRobertaModel"}),
        (((500, "a"), (64, "a")), {"MPNetModel"}),
        (((500, "a"), (64, "")), {"DistilBertModel", "BartModel.encoder"}),
        (((500, "a"),), {"BertModel", "DistilBertModel", "BartModel.encoder"}),  # all others were folded
    ],
)
def test_tables_tell_encoders_of_the_same_steps_apart(tables: tuple[tuple[int, str], ...], names: set[str]) -> None:
    seen = _Tables.of([Table(rows, 16, frozenset(by)) for rows, by in tables], 16)
    first = next(family for family in families() if family.name == "BertModel")
    alike = [family for family in families() if family.lines == first.lines]
    assert {family.name for family in alike if seen.fit(family)} == names


# ---- the tables ----


def test_the_tables_have_networks_of_each_library_and_every_row_is_read() -> None:
    known = table.architectures()
    names = {
        f"{entry.library} {name}" for entries in known.bodies.values() for entry in entries for name in entry.names
    }
    assert {"torchvision resnet18", "torchvision densenet121", "published YOLOv8n"} <= names
    small = [entry for entries in known.bodies.values() for entry in entries if entry.layers < 6]
    assert not small
    ours = [entry for entries in known.bodies.values() for entry in entries if entry.library == "torchvision"]
    assert {"resnet18", "resnet34"}.isdisjoint(
        {name for entry in ours if "resnet50" in entry.names for name in entry.names}
    )


def test_a_table_is_read_as_it_was_written() -> None:
    body = body_of(residual((2, 1), 8), torch.randn(IMAGE))
    entries = [
        table.Entry(digest(body), weights_digest(body), layers(body), name, (name,)) for name in ("timm", "torchvision")
    ]
    known = table.read([table.written(entries, ["timm 1.2"])])
    assert known.bodies == {digest(body): entries} and known.versions == {"timm": "1.2"}


def test_torchvisions_networks_have_the_rows_of_the_table() -> None:
    models = pytest.importorskip("torchvision.models")
    known = table.architectures()
    for name in ("resnet18", "squeezenet1_1", "mobilenet_v3_small"):
        with torch.device("meta"):
            body = body_of(models.get_model(name, weights=None), torch.empty(1, 3, 64, 64))
        assert name in {each for entry in known.bodies[digest(body)] for each in entry.names}


# ---- answers ----


@pytest.fixture
def known(monkeypatch: pytest.MonkeyPatch) -> Path:
    """A table that has one small network."""
    body = body_of(residual((1, 1, 1), 8), torch.randn(IMAGE))
    rows = [table.Entry(digest(body), weights_digest(body), layers(body), "torchvision", ("small",))]
    rows += [table.Entry(digest(body), weights_digest(body), layers(body), "timm", ("little",))]
    made = table.read([table.written(rows, ["timm 1", "torchvision 1"])])
    monkeypatch.setattr("onnxgen.identify.answering.architectures", lambda: made)
    return Path()


def test_a_known_network_is_named(known: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = file_of(residual((1, 1, 1), 8), torch.randn(IMAGE), tmp_path / "net.onnx")
    found = onnxgen.identify(path)
    assert [each.build for each in found.networks] == [
        "torchvision.models.small(num_classes=10)",
        "timm.create_model('little', num_classes=10)",
    ]
    assert found.evidence[0] == "9 of 9 layers of the body, and all 20 steps with them"
    assert [each.name for each in onnxgen.identify(path, ["timm"]).networks] == ["little"]
    assert run(["identify", str(path)]) == 0
    out = capsys.readouterr().out
    assert out.startswith("torchvision.models.small(num_classes=10)\n")
    assert f"onnxgen transplant {path} --into torchvision.models:small --arg num_classes=10" in out
    assert run(["identify", str(path), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["named"] is True
    assert run(["inspect", str(path)]) == 0
    assert (
        "architecture: torchvision.models.small(num_classes=10), or 1 more: onnxgen identify" in capsys.readouterr().out
    )


def test_the_same_layers_joined_otherwise_are_none(
    known: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = file_of(residual((1, 1, 1), 8, joined=False), torch.randn(IMAGE), tmp_path / "net.onnx")
    assert run(["identify", str(path)]) == 1
    assert capsys.readouterr().out.startswith("none: no known network has the same steps\n")
    other = residual((1, 1, 1), 8, act=nn.SiLU())
    assert run(["identify", str(file_of(other, torch.randn(IMAGE), tmp_path / "other.onnx"))]) == 1
    assert "nearest, not the same (its layers, joined otherwise): torchvision small" in capsys.readouterr().out


@pytest.mark.parametrize("name", STRANGERS)
def test_a_network_of_no_library_has_no_name(name: str, tmp_path: Path) -> None:
    module, x = STRANGERS[name]()
    module(x)
    assert onnxgen.identify(file_of(module, x, tmp_path / "net.onnx")).networks == ()


def test_a_limit_that_integers_replace_is_looked_for_in_quantised_files_alone(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    plain = body_of(residual((1, 1, 1), 8), torch.randn(IMAGE))
    body = Bag({label.replace("relu", "relu6"): count for label, count in plain.items()})
    entry = table.Entry(digest(body), weights_digest(body), layers(body), "torchvision", ("limited",))
    made = table.read([table.written([entry], ["torchvision 1"])])
    monkeypatch.setattr("onnxgen.identify.answering.architectures", lambda: made)
    path = file_of(residual((1, 1, 1), 8), torch.randn(IMAGE), tmp_path / "net.onnx")
    reading = steps_of(path)
    assert not reading.quantised and not answer(reading).networks
    reading.quantised = True
    assert [known.name for known in answer(reading).networks] == ["limited"]
    assert "the file has ReLU where the network has ReLU6: the limit is that of its integers" in answer(reading).differs


def test_nothing_is_said_of_a_few_layers() -> None:
    assert onnxgen.identify(ROOT / "samples" / "mnist" / "mnist.onnx").networks == ()


def test_layers_that_no_result_needs_do_not_count() -> None:
    network = Network()
    network.outputs = network.add("conv", "1", ())
    network.add("conv", "2", network.outputs)
    assert network.body(0) == {"conv 1 < ": 1}


def test_an_unknown_library_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(OnnxgenError, match="there is no table of keras"):
        onnxgen.identify(ROOT / "samples" / "mnist" / "mnist.onnx", ["keras"])
    assert run(["identify", str(ROOT / "samples" / "mnist" / "mnist.onnx"), "--libraries", "keras"]) == 2


def test_identifying_imports_no_torch() -> None:
    code = "import sys, onnxgen; onnxgen.identify('samples/mnist/mnist.onnx'); sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], cwd=ROOT).returncode == 0
