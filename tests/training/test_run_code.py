"""A run's folder runs its own `model.py` and nothing else: what its records name is not run unasked."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from onnxgen import OnnxgenError
from onnxgen.cli import run as cli
from onnxgen.training import fit, load
from onnxgen.training.runs.record import is_same_code
from tests.training.small import network

Out = pytest.CaptureFixture[str]
QUIET: dict[str, Any] = {"show": "nothing", "workers": 0, "device": "cpu", "loggers": "none"}
EVIL = """
from pathlib import Path
import numpy as np
Path(__file__).with_name("ran").touch()
def go(*args):
    return {"x": np.zeros((40, 4), np.float32), "y": np.arange(40) % 3}
"""


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a module, its data, a run of it, one with an adapter, and a module that nobody should run."""
    folder = tmp_path_factory.mktemp("code")
    network(folder, x=("float32", ["n", 4]))
    rng = np.random.default_rng(0)
    np.savez(folder / "d.npz", x=rng.normal(size=(40, 4)).astype(np.float32), y=np.arange(40) % 3)
    for name, more in (("run", {}), ("lora", {"lora": 1})):
        fit(folder / "small.py", folder / "d.npz", epochs=1, test=0.2, out=folder / name, **QUIET, **more)
    (folder / "evil.py").write_text(EVIL)
    return folder


@pytest.fixture
def here(trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of the folder, which is the current one."""
    shutil.copytree(trained, tmp_path / "copy")
    monkeypatch.chdir(tmp_path / "copy")
    return tmp_path / "copy"


def doctor(run: Path, **changes: Any) -> None:
    """Change keys of a record: those of the settings by `settings__NAME`."""
    record = json.loads((run / "run.json").read_text())
    for name, value in changes.items():
        part, _, key = name.rpartition("__")
        (record[part] if part else record)[key] = value
    (run / "run.json").write_text(json.dumps(record))


def configure(run: Path, name: str, value: str) -> None:
    """Change a key of a run's `config.toml`."""
    lines = (run / "config.toml").read_text().splitlines()
    kept = [line for line in lines if not line.startswith(f"{name} =")]
    (run / "config.toml").write_text("\n".join([*kept, f"{name} = {value}"]))


@pytest.mark.parametrize("command", ["evaluate run", "train run --out new --epochs 1"])
@pytest.mark.parametrize(
    ("changes", "option"),
    [
        ({"data": "evil:go"}, "--data evil:go"),
        ({"settings__task": "evil:go"}, "--task evil:go"),
        ({"teacher": "../evil.py"}, "--teacher evil.py"),
        ({"teacher": "../other"}, "--teacher other"),
        ({"settings__imports": ["evil"]}, "--import evil"),
    ],
)
def test_a_record_names_code(command: str, changes: dict[str, Any], option: str, here: Path, capsys: Out) -> None:
    doctor(here / "run", **changes)
    shutil.copytree(here / "run", here / "other")
    shutil.copy("evil.py", "other/model.py")
    code = cli(command.split())
    lines = capsys.readouterr().err.splitlines()
    if command.startswith("evaluate") and "imports" in option.replace("--import", "imports"):
        assert code == 0, "the device of a training is not that of an evaluation"
    else:
        assert code == 2 and len(lines) == 1 and f"if you trust it, name it yourself: {option}" in lines[0]
    assert not list(here.rglob("ran"))


@pytest.mark.parametrize(
    ("name", "value"),
    [("data", '"evil:go"'), ("task", '"evil:go"'), ("teacher", '"../evil.py"'), ("imports", '["evil"]')],
)
def test_a_configuration_of_a_run_names_code(name: str, value: str, here: Path, capsys: Out) -> None:
    configure(here / "run", name, value)
    assert cli(["train", "--resume", "--out", "run", "--epochs", "2"]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert "run names code outside of its folder, which is not run unasked" in line and "ran" not in line.split()[-1:]
    assert not list(here.rglob("ran"))


@pytest.mark.parametrize("place", ["../evil.py", "evil.py"])
def test_a_module_that_is_not_that_of_the_run(place: str, here: Path, capsys: Out) -> None:
    """Neither on a resume, nor as the base of an adapter, nor for an export."""
    from onnxgen.record.base import code_digest

    shutil.copy("evil.py", "run/evil.py")
    shutil.copy("evil.py", "lora/evil.py")
    configure(here / "run", "model", f'"{place}"')
    for name in ("run", "lora"):
        doctor(here / name, origin=place, code=code_digest(EVIL))
    for command in ("train --resume --out run --epochs 2", "evaluate lora", "predict lora d.npz", "export lora"):
        assert cli(command.split()) == 2
        (line,) = capsys.readouterr().err.splitlines()
        assert "whose code is not that of its model.py: it is not run unasked" in line
    assert cli(["export", "run", "--onnx", "small.onnx", "-o", "out.onnx", "-q"]) == 0, "the run has its own module"
    assert not list(here.rglob("ran"))


def test_what_is_named_is_run(here: Path) -> None:
    doctor(here / "run", data="evil:go", settings__task="evil:go")
    learner = load("run", task="evil:go")
    with pytest.raises(OnnxgenError, match="evil.go"):  # it runs, and returns no loss
        learner.evaluate("evil:go")
    assert (here / "ran").is_file()
    with pytest.raises(OnnxgenError, match="was trained with the task evil:go, not evil:come"):
        load("run", task="evil:come")


def test_the_module_that_was_trained_is_known(here: Path) -> None:
    """A resume, an adapter and an export take the module that the run was made from, as long as it is the same code."""
    assert cli(["train", "--resume", "--out", "run", "--epochs", "2", "--quiet"]) == 0
    assert cli(["evaluate", "lora", "--quiet"]) == cli(["export", "lora", "--quiet"]) == 0


WEIGHTS = 'WEIGHTS = Path(__file__).with_name("small.safetensors")'
CHANGES: dict[str, tuple[Callable[[str], str], bool]] = {
    "as it is": (str, True),
    "another place of the weights": (lambda t: t.replace("small.safetensors", "other.safetensors"), True),
    "another number of classes": (lambda t: t.replace("nn.Linear(1, 3)", "nn.Linear(1, 7)"), True),
    "a comment": (lambda t: t + "# more\n", True),
    "a statement": (lambda t: t + "print()\n", False),
    "a call for the weights": (lambda t: t.replace(WEIGHTS, 'WEIGHTS = Path(__file__).with_name(str("s"))'), False),
    "a second text": (
        lambda t: t.replace(WEIGHTS, 'WEIGHTS = """\nx\n"""\nprint()\n"""\n""".replace("\\n", "")'),
        False,
    ),
    "a number in forward": (lambda t: t.replace("return ", "return 1 and ", 1), False),
    "no Python": (lambda t: t + "(", False),
}


@pytest.mark.parametrize("change", CHANGES)
def test_what_counts_as_the_same_code(change: str, here: Path) -> None:
    make, same = CHANGES[change]
    text = (here / "small.py").read_text()
    assert WEIGHTS in text and (make is str or make(text) != text)
    (here / "small.py").write_text(make(text))
    assert is_same_code(here / "small.py", here / "run") == same
