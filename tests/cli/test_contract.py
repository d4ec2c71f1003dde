"""What the command promises of the files it writes: what is kept, replaced, refused, and that sources survive."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import black
import numpy as np
import onnx
import pytest
from onnx import helper as h

from onnxgen.cli import run

FORCED = pytest.mark.parametrize("force", [[], ["--force"]], ids=["plain", "force"])


def network(last: str = "Relu", weight: float = 1.0) -> onnx.ModelProto:
    """`relu(x @ fc.weight.T + fc.bias)`, or another activation or weights."""
    rng = np.random.default_rng(0)
    stored = {"fc.weight": weight * rng.standard_normal((3, 4)).astype(np.float32), "fc.bias": np.ones(3, np.float32)}
    tensors = [onnx.numpy_helper.from_array(array, name) for name, array in stored.items()]
    nodes = [h.make_node("Gemm", ["x", "fc.weight", "fc.bias"], ["h"], transB=1), h.make_node(last, ["h"], ["y"])]
    ports = [h.make_tensor_value_info(n, onnx.TensorProto.FLOAT, s) for n, s in (("x", ["n", 4]), ("y", ["n", 3]))]
    graph = h.make_graph(nodes, "g", ports[:1], ports[1:], tensors)
    return h.make_model(graph, opset_imports=[h.make_opsetid("", 17)], ir_version=8)


class Place:
    """A folder with a model and what was generated from it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.model, self.out, self.weights = folder / "m.onnx", folder / "model.py", folder / "model.safetensors"
        onnx.save(network(), self.model)
        assert self() == 0

    def __call__(self, *options: object) -> int:
        return run([str(arg) for arg in (self.model, "-o", self.out, *options)])

    def files(self) -> dict[str, bytes]:
        return {p.name: p.read_bytes() for p in self.folder.iterdir() if p.is_file()}

    def edit(self) -> None:
        """Change what the module does."""
        text = self.out.read_text()
        assert "F.relu(" in text
        self.out.write_text(text.replace("F.relu(", "F.gelu("))


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path)


Out = pytest.CaptureFixture[str]


# ---- sources survive -------------------------------------------------------------------------------------------------


def _refused(place: Place, capsys: Out, *options: object) -> str:
    """Run, and hold it to: exit code 2, one line, nothing changed."""
    before = place.files()
    capsys.readouterr()
    code = run([str(arg) for arg in (place.model, *options)])
    said = capsys.readouterr()
    assert code == 2 and said.out == "" and said.err.count("\n") == 1, said
    assert place.files() == before
    return said.err


@FORCED
def test_the_model_is_never_written_over(place: Place, capsys: Out, force: list[str]) -> None:
    assert "is not a Python file" in _refused(place, capsys, "-o", place.model, *force)
    assert "is the ONNX model or holds its data" in _refused(
        place, capsys, "-o", place.out, "--weights", place.model, *force
    )
    (place.folder / "alias.py").symlink_to(place.model)
    assert "is the ONNX model or holds its data" in _refused(place, capsys, "-o", place.folder / "alias.py", *force)


@FORCED
def test_the_models_data_is_never_written_over(place: Place, capsys: Out, force: list[str]) -> None:
    onnx.save(network(), place.model, save_as_external_data=True, location="data.safetensors", size_threshold=0)
    data = place.folder / "data.safetensors"
    assert "holds its data" in _refused(place, capsys, "-o", place.folder / "data.py", *force)
    assert "is not a Python file" in _refused(place, capsys, "-o", data, *force)
    assert "holds its data" in _refused(place, capsys, "-o", place.out, "--weights", data, *force)
    assert place() == 0


# ---- paths that are no place for a module ----------------------------------------------------------------------------


@FORCED
def test_only_plain_files_are_replaced(place: Place, capsys: Out, force: list[str]) -> None:
    (place.folder / "sub").mkdir()
    os.mkfifo(place.folder / "pipe")
    os.mkfifo(place.folder / "pipe.py")
    assert "a folder" in _refused(place, capsys, "-o", place.folder / "sub", *force)
    assert "a path is neither empty" in _refused(place, capsys, "-o", "", *force)
    assert "not a regular file" in _refused(place, capsys, "-o", place.folder / "pipe.py", *force)
    assert "not a regular file" in _refused(
        place, capsys, "-o", place.out, "--weights", place.folder / "pipe", "--force"
    )
    assert "onnxgen-tmp" not in _refused(place, capsys, "-o", place.out / "under.py", *force)
    assert "--weights" in _refused(place, capsys, "-o", place.out, "--weights", "", *force)


def test_a_file_of_someone_else_is_kept(place: Place, capsys: Out) -> None:
    place.out.write_text("print('mine')\n")
    assert place() == 3
    said = capsys.readouterr().err
    assert "was not written by onnxgen" in said and "edited" not in said and "Traceback" not in said
    assert place.out.read_text() == "print('mine')\n" and "class M(" in (place.folder / "model.py.new").read_text()
    assert place("--force") == 0 and "class M(" in place.out.read_text()


def test_weights_of_someone_else_are_kept(place: Place, capsys: Out) -> None:
    other = place.folder / "notes.txt"
    other.write_text("not weights at all")
    assert "did not write" in _refused(place, capsys, "-o", place.out, "--weights", other)


def test_an_empty_file_is_nobodys_work(place: Place) -> None:
    place.out.write_text("")
    assert place("--check") == 1 and place.out.read_text() == ""
    assert place() == 0 and place("--check") == 0


# ---- what counts as an edit ------------------------------------------------------------------------------------------


def _header_gone(text: str) -> str:
    return '"""My own words."""' + text[text.index('"""', 3) + 3 :]


REFORMATTED: dict[str, Callable[[str], str]] = {
    "black": lambda text: black.format_str(text, mode=black.Mode(line_length=60)),
    "CRLF": lambda text: text.replace("\n", "\r\n"),
    "CR": lambda text: text.replace("\n", "\r"),
    "BOM": lambda text: "\ufeff" + text,
    "comments": lambda text: text.replace("    def forward", "    # mine\n    def forward") + "# the end\n",
    "docstring": lambda text: text.replace('"""M, ', '"""My words: M, '),
    "header": _header_gone,
}


@pytest.mark.parametrize("change", REFORMATTED.values(), ids=REFORMATTED)
def test_formatting_is_no_edit(place: Place, change: Callable[[str], str]) -> None:
    place.out.write_bytes(change(place.out.read_bytes().decode()).encode())
    before = place.files()
    assert place("--check") == 0 and place() == 0
    assert place.files() == before
    if change is not _header_gone:  # without it nobody can tell any more what was generated
        onnx.save(network("Sigmoid"), place.model)
        assert place("--check") == 1 and place() == 0 and "sigmoid" in place.out.read_text()


def test_edited_alone_is_kept(place: Place) -> None:
    place.edit()
    before = place.files()
    assert place() == 0 and place("--check") == 0 and place.files() == before
    assert place("--force") == 0 and "F.relu(" in place.out.read_text()


@pytest.mark.parametrize("broken", [None, b"", b"garbage", "short"])
def test_edited_and_its_weights_lost(place: Place, capsys: Out, broken: bytes | str | None) -> None:
    good = place.weights.read_bytes()
    place.edit()
    edited = place.out.read_bytes()
    if broken is None:
        place.weights.unlink()
    else:
        place.weights.write_bytes(good[:-5] if isinstance(broken, str) else broken)
    assert place("--check") == 1 and place() == 0
    assert place.weights.read_bytes() == good and place.out.read_bytes() == edited
    assert "kept; wrote" in capsys.readouterr().out


def test_both_changed(place: Place, capsys: Out) -> None:
    place.edit()
    onnx.save(network("Sigmoid"), place.model)
    before = place.files()
    assert place("--check") == 1 and place.files() == before
    assert place() == 3
    said = capsys.readouterr().err
    assert "+++ model.py.new" in said and "--force" in said
    now = place.files()
    assert "F.gelu(" in now["model.py.new"].decode() and "torch.sigmoid(" in now.pop("model.py.new").decode()
    assert now == before
    assert place("--force") == 0 and "F.gelu(" not in place.out.read_text() and place("--check") == 0


# ---- stale or fresh --------------------------------------------------------------------------------------------------


OTHER_OPTIONS = [
    ["--class-name", "Other"], ["--dtype", "float16"], ["--embed"], ["--flat"], ["--frozen", "bias"],
    ["--input-shape", "x=2,4"], ["--shard-size", "20B"], ["--weights", "other.safetensors"],
]  # fmt: skip


@pytest.mark.parametrize("options", OTHER_OPTIONS, ids=[o[0] for o in OTHER_OPTIONS])
def test_other_options_are_stale(place: Place, options: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(place.folder)
    before = place.files()
    assert place("--check", *options) == 1 and place.files() == before
    assert place(*options) == 0 and place("--check", *options) == 0 and place("--check") == 1


def test_changes_make_it_stale(place: Place) -> None:
    def stale() -> None:
        before = place.files()
        assert place("--check") == 1 and place.files() == before
        assert place() == 0 and place("--check") == 0

    for changed in (network(weight=2.0), network("Sigmoid")):
        onnx.save(changed, place.model)
        stale()
    data = bytearray(place.weights.read_bytes())
    data[-1] ^= 1
    place.weights.write_bytes(data)
    stale()
    place.weights.write_bytes(data[:-10])
    stale()
    place.weights.unlink()
    stale()
    place.out.unlink()
    stale()


def test_weights_of_another_model_are_refused(place: Place, capsys: Out) -> None:
    other = place.weights.read_bytes()
    onnx.save(network("Sigmoid"), place.model)
    assert place() == 0
    place.weights.write_bytes(other)
    capsys.readouterr()
    assert run(["verify", str(place.model), str(place.out)]) == 2
    assert "does not belong here" in capsys.readouterr().err
    assert place() == 0 and run(["verify", str(place.model), str(place.out)]) == 0


def test_the_same_bytes_from_everywhere(place: Place, tmp_path_factory: pytest.TempPathFactory) -> None:
    there = tmp_path_factory.mktemp("elsewhere")
    (there / "m.onnx").write_bytes(place.model.read_bytes())
    os.utime(there / "m.onnx", (0, 0))
    environment = {
        **os.environ,
        "PYTHONPATH": str(Path(__file__).parents[2]),
        "PYTHONHASHSEED": "7",
        "TZ": "Asia/Tokyo",
    }
    command = [sys.executable, "-m", "onnxgen", "m.onnx", "-o", "model.py", "-q"]
    subprocess.run(command, cwd=there, env=environment, check=True, timeout=120)
    assert {p.name: p.read_bytes() for p in there.iterdir()} == place.files()
