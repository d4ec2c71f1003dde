"""What is shipped gives the module's answers in its own runtime, or is refused; the card and the bill are complete."""

from __future__ import annotations

import json
import shutil
import sys
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import onnxruntime
import pytest
import torch
from torch import Tensor, nn

import onnxgen
from onnxgen.cli import run as command
from onnxgen.errors import OnnxgenError
from onnxgen.ship import line_of, ship
from onnxgen.ship.card import MARK
from onnxgen.ship.comparison import DiffersError, difference, in_pieces
from onnxgen.ship.target import SHIPS, Job
from onnxgen.ship.targets import TARGETS, target_of
from onnxgen.ship.targets.mobile import run_litert
from onnxgen.ship.targets.torch_files import exported, one_size
from onnxgen.training import fit
from tests.conftest import ROOT
from tests.quantized.test_spelled import spelled

EXACT = [name for name in SHIPS if not TARGETS[name].rounds]
DATA = np.random.default_rng(0)
COLUMNS = {"image": DATA.random((40, 1, 28, 28), np.float32), "digit": np.arange(40) % 10}


@pytest.fixture(scope="module")
def digits(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of the sample's network, trained for one epoch on drawn images, of which ten are held back."""
    folder = tmp_path_factory.mktemp("ship")
    shutil.copy(ROOT / "samples" / "mnist" / "mnist.onnx", folder / "mnist.onnx")
    onnxgen.generate(folder / "mnist.onnx", folder / "model.py")
    np.savez(folder / "data.npz", **COLUMNS)
    given: dict[str, Any] = {"epochs": 1, "val": 0.25, "show": "nothing", "device": "cpu", "target": "digit"}
    fit(folder / "model.py", folder / "data.npz", out=folder / "run", **given)
    return folder / "run"


@pytest.mark.parametrize("to", EXACT)
def test_a_file_gives_the_modules_answers(to: str, digits: Path, tmp_path: Path) -> None:
    target = TARGETS[to]
    if any(find_spec(module) is None for module in target.needs.values()):
        pytest.skip(f"{', '.join(target.needs)} is not installed")
    report = ship(digits, to, tmp_path / f"net{target.suffix}")
    assert Path(report.out).exists() and report.size > 1_000_000
    if target.open is None:
        assert report.compared == 0 and "was not run" in " ".join(report.notes)
        return
    assert report.compared == 10 and report.difference < 1e-5 and min(report.seconds) > 0
    assert report.after == pytest.approx(report.before, rel=1e-4) and "accuracy" in report.after
    assert report.batch == (1 if target.one else 0)


def test_integers_are_measured(digits: Path, tmp_path: Path) -> None:
    report = ship(digits, "onnx-int8", tmp_path / "net.onnx")
    assert report.size < 500_000 and 0 < report.difference < 0.2
    assert report.after["loss"] == pytest.approx(report.before["loss"], rel=0.1)
    session = onnxruntime.InferenceSession(tmp_path / "net.onnx", providers=["CPUExecutionProvider"])
    facts = session.get_modelmeta().custom_metadata_map
    assert json.loads(facts["onnxgen.preprocessing"])["outputs"][0]["names"] == [str(n) for n in range(10)]


def test_trained_weights_are_rounded_to_the_integers_of_the_original(tmp_path: Path) -> None:
    """That is no fault: the report says it, and the metrics what it costs. Of floats nothing is rounded."""
    weight = DATA.integers(-127, 128, (6, 4)).astype(np.int8)
    spelled(tmp_path / "net.onnx", weight, np.full((1, 4), 0.02, np.float32))
    onnxgen.generate(tmp_path / "net.onnx", tmp_path / "net.py", onnxgen.Options(quantized="float"))
    data = {"x": DATA.normal(size=(40, 6)).astype(np.float32), "wanted": DATA.normal(size=(40, 4)).astype(np.float32)}
    np.savez(tmp_path / "data.npz", **data)
    given: dict[str, Any] = {"epochs": 1, "lr": 0.01, "val": 0.25, "show": "nothing", "device": "cpu"}
    fit(tmp_path / "net.py", tmp_path / "data.npz", target="wanted", out=tmp_path / "run", **given)
    for to, rounded in (("onnx", True), ("pt2", False)):
        report = ship(tmp_path / "run", to, tmp_path / f"new{TARGETS[to].suffix}")
        assert any("1 trained tensor rounded" in note for note in report.notes) is rounded
        assert (1e-4 < report.difference < 0.02) if rounded else report.difference < 1e-5
        assert report.after["loss"] == pytest.approx(report.before["loss"], rel=0.02)


def test_inputs_of_litert_are_paired_by_their_names(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its converter leaves out an argument that nothing reads, and lists the others in any order."""

    class Runner:
        def get_input_details(self) -> dict[str, Any]:
            return {name: {"dtype": np.int32, "shape": np.array([1])} for name in ("c_1", "a")}

        def get_output_details(self) -> dict[str, Any]:
            return {"z": {}, "y": {}}

        def __call__(self, **given: Any) -> dict[str, Any]:
            assert all(x.dtype == np.int32 for x in given.values())
            return {"z": given["c_1"], "y": given["a"]}

    def interpreter(model_path: str) -> Any:
        return SimpleNamespace(allocate_tensors=lambda: None, get_signature_runner=Runner)

    monkeypatch.setitem(sys.modules, "ai_edge_litert", SimpleNamespace())
    monkeypatch.setitem(sys.modules, "ai_edge_litert.interpreter", SimpleNamespace(Interpreter=interpreter))
    job: Any = SimpleNamespace(called=lambda: (["a", "b", "c_1"], ["y", "z"]))
    run = run_litert(job, Path("net.tflite"))
    assert [y.item() for y in run([torch.tensor([n]) for n in (1, 2, 3)])] == [1, 3]
    with pytest.raises(OnnxgenError, match=r"takes a \[1\], and a sample has \[2\]"):
        run([torch.tensor([1, 1]), torch.tensor([2]), torch.tensor([3])])


def test_metadata_are_where_readers_look(digits: Path, tmp_path: Path) -> None:
    ship(digits, "torchscript", tmp_path / "net.pt")
    ship(digits, "pt2", tmp_path / "net.pt2")
    script, program = {"preprocessing": "", "run": ""}, {"preprocessing": "", "run": ""}
    torch.jit.load(str(tmp_path / "net.pt"), _extra_files=script)
    torch.export.load(tmp_path / "net.pt2", extra_files=program)
    texts = [text.decode() if isinstance(text, bytes) else text for text in script.values()]
    assert texts == [program[key] for key in script] and json.loads(texts[0])["inputs"][0]["name"] == "image"


def test_what_differs_is_not_written(digits: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def wrong(job: Job, path: Path) -> Any:
        own = type(job.model).forward  # while the file is measured, the module's `forward` is what we return
        return lambda arguments: [own(job.model, *arguments).detach() * 1.01]

    monkeypatch.setitem(TARGETS, "pt2", TARGETS["pt2"].__class__(**{**vars(TARGETS["pt2"]), "open": wrong}))
    with pytest.raises(DiffersError, match="differs from the module's by"):
        ship(digits, "pt2", tmp_path / "net.pt2")
    assert [*tmp_path.iterdir()] == []


def test_what_can_not_be_written_is_refused(digits: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def failing(job: Job, path: Path) -> list[str]:
        job.model(torch.zeros(2, 3))
        return []

    monkeypatch.setitem(TARGETS, "pt2", TARGETS["pt2"].__class__(**{**vars(TARGETS["pt2"]), "write": failing}))
    with pytest.raises(OnnxgenError, match=r"--to pt2 can't be written at model.py:\d+: .*-> change that line"):
        ship(digits, "pt2", tmp_path / "net.pt2")
    assert [*tmp_path.iterdir()] == []


def test_a_place_in_a_message_is_found() -> None:
    class Doubled(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x * 2

    line = Doubled.forward.__code__.co_firstlineno + 1
    error = RuntimeError(f'while executing File "{__file__}", line {line}, in forward')
    assert line_of(error, Doubled()) == f" at test_ship.py:{line}: return x * 2"
    assert line_of(RuntimeError("no place"), Doubled()) == ""


def test_missing_packages_and_names(monkeypatch: pytest.MonkeyPatch) -> None:
    assert set(TARGETS) == set(SHIPS)
    with pytest.raises(OnnxgenError, match=r"nothing is shipped as 'tflite' -> --to onnx\|onnx-int8"):
        target_of("tflite")
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(OnnxgenError, match=r"litert-torch.*is not installed -> pip install 'onnxgen\[litert\]'"):
        target_of("litert")


def test_a_fixed_batch_is_run_piece_by_piece() -> None:
    """The second argument has no batch axis; the output has it behind."""
    sizes = []

    def run(arguments: Any) -> list[Tensor]:
        x, w = arguments
        sizes.append(len(x))
        return [(x @ w).T, w]

    x, w = torch.randn(5, 3), torch.randn(3, 2)
    y, same = in_pieces(run, [x, w], [0, None, 1, None], 1)
    assert sizes == [1] * 5 and torch.allclose(y, (x @ w).T) and torch.equal(same, w)


def test_differences() -> None:
    a = torch.tensor([1.0, 100.0])
    assert difference([a], [a + 0.05], ["y"]) == pytest.approx(5e-4, rel=1e-3)
    for b, why in (
        (a + 0.2, "differs"), (a[:1], "shape"), (a * torch.nan, "NaN"), (a.new_tensor([1, torch.inf]), "infinite"),
    ):  # fmt: skip
        with pytest.raises(DiffersError, match=why):
            difference([a], [b], ["y"])
    infinite = torch.tensor([1.0, torch.inf])
    for b in (infinite * -1, infinite * torch.nan, torch.tensor([1.0, torch.nan])):
        with pytest.raises(DiffersError):
            difference([infinite], [b], ["y"])
    assert difference([infinite], [infinite], ["y"]) == 0
    boxes = torch.tensor([[600.0, 400.0, 0.9], [20.0, 30.0, 0.1]])  # scores beside pixels
    with pytest.raises(DiffersError, match="differs"):
        difference([boxes], [boxes * torch.tensor([1, 1, 0.5])], ["y"])
    with pytest.raises(DiffersError, match="other numbers"):
        difference([torch.tensor([1, 2])], [torch.tensor([1, 3])], ["index"])
    with pytest.raises(DiffersError, match="2 outputs, and the file 1"):
        difference([a, a], [a], ["y", "z"])


def test_a_program_of_one_size_says_so() -> None:
    """The size of the middle axis is that of the rows that are added; torch.export then leaves it fixed."""

    class Added(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x + torch.ones(5, 8)

    job: Any = SimpleNamespace(
        model=Added(), example=(torch.zeros(2, 5, 8),), inputs={"x": ("N", "T", 8)}, batch=0, facts={}
    )
    (note,) = one_size(job, exported(job))
    assert note.startswith("the file takes one size only: x [") and note.endswith(", 5, 8]")
    job.inputs = {"x": ("N", 5, 8)}
    assert one_size(job, exported(job)) == []


def test_the_card_and_the_bill(digits: Path, tmp_path: Path) -> None:
    report = ship(digits, "pt2", tmp_path / "net.pt2")
    card, bill = (tmp_path / "README.md").read_text(), (tmp_path / "net.pt2.cdx.json").read_text()
    assert report.wrote == [tmp_path / "net.pt2", tmp_path / "README.md", tmp_path / "net.pt2.cdx.json"]
    front = card.split("---")[1]
    assert "license: unknown" in front and "library_name: pytorch" in front and 'type: "accuracy"' in front
    assert "data.npz" in card and "| accuracy |" in card and "all parts" in card
    made = json.loads(bill)["metadata"]["component"]
    assert made["pedigree"]["ancestors"][0]["name"] == "mnist.onnx" and len(made["hashes"][0]["content"]) == 64
    strict = pytest.importorskip("cyclonedx.validation.json")
    from cyclonedx.schema import SchemaVersion

    try:
        assert strict.JsonStrictValidator(SchemaVersion.V1_6).validate_str(bill) is None
    except ImportError as error:  # it comes without the packages of its own checks
        pytest.skip(str(error))


def test_an_export_of_a_run_has_a_card(digits: Path, tmp_path: Path) -> None:
    assert command(["export", str(digits), "-o", str(tmp_path / "net.onnx"), "-q"]) == 0
    card = (tmp_path / "README.md").read_text()
    noted = json.loads((digits / "run.json").read_text())["result"]["best"]["val_accuracy"]
    assert "library_name: onnx" in card and f"| accuracy | {noted:.6g} |" in card
    assert json.loads((tmp_path / "net.onnx.cdx.json").read_text())["specVersion"] == "1.6"


def test_a_readme_of_a_person_stays(digits: Path, tmp_path: Path) -> None:
    (tmp_path / "README.md").write_text("Mine.\n")
    ship(digits, "pt2", tmp_path / "net.pt2")
    assert (tmp_path / "README.md").read_text() == "Mine.\n" and MARK in (tmp_path / "net.README.md").read_text()


def test_the_command(digits: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = str(tmp_path / "net.pt2")
    assert command(["ship", str(digits), "--to", "pt2", "-o", out]) == 0
    shown = capsys.readouterr().out
    assert f"wrote {out}" in shown and "any number of samples" in shown and "val part" in shown
    assert command(["ship", str(digits), "--to", "pt2", "-o", out]) == 2
    assert "exists -> --force overwrites it" in capsys.readouterr().err
    assert command(["ship", str(digits), "--to", "pt2", "-o", out, "--force", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["compared"] == 10
    assert command(["ship", str(tmp_path), "--to", "pt2"]) == 2
