"""Text never becomes code: what is generated is parsed and walked before anything runs, and then run under watch."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from onnxgen.cli import run as command
from onnxgen.options import Options
from onnxgen.pipeline import generate
from tests.conftest import ROOT
from tests.injection.attacks import CODE, MARK, PLACES, PROJECT, TEXTS, attacks
from tests.injection.holding import hold
from tests.support import forked
from tests.support.clean_source import assert_safe

OPTIONS = Options(annotate=True, allow_unsupported=True)
# Imports every module and builds it: what it opens, starts or writes meanwhile is told.
WATCH = """
import importlib.util, json, os, sys
import numpy, torch, safetensors.torch
torch.nn.Linear(2, 2)

seen = []
def heard(event, arguments):
    if event == "open":
        path, mode, flags = arguments
        if any(c in mode for c in "wax+") if mode else flags & (os.O_WRONLY | os.O_RDWR | os.O_CREAT):
            seen.append(f"{event} {path}")
    elif event.startswith(("os.system", "os.exec", "os.fork", "os.posix_spawn", "subprocess.", "socket.", "os.remove")):
        seen.append(f"{event} {arguments}"[:200])
    elif event in ("os.rename", "os.mkdir", "os.rmdir", "os.link", "os.symlink", "os.truncate", "os.chmod"):
        seen.append(event)

sys.dont_write_bytecode = True
sys.addaudithook(heard)
built = 0
for path in sys.argv[1:]:
    spec = importlib.util.spec_from_file_location("attacked", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    try:
        module.Model.from_pretrained()
        built += 1
    except NotImplementedError:
        pass
    if seen:
        print(json.dumps([path, seen]))
        sys.exit(1)
print(json.dumps(built))
"""


@pytest.mark.filterwarnings("ignore:Ignoring unknown external data")
@pytest.mark.parametrize("part", range(3))
@pytest.mark.parametrize("kind", TEXTS)
def test_every_attack_fails(kind: str, part: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    made = []
    for number, (name, model) in enumerate([*attacks(kind).items()][part::3]):
        folder = tmp_path / str(number)
        folder.mkdir()
        (folder / "w.bin").write_bytes(bytes(range(64)))
        (folder / "net.onnx").write_bytes(model.SerializeToString())
        hold(generate(folder / "net.onnx", folder / "net.py", OPTIONS).source, name)
        made.append(folder / "net.py")
    assert len(made) == len(range(len(PLACES))[part::3])
    assert watched(made, tmp_path) == len(made)
    assert not list(tmp_path.rglob(MARK))


def watched(modules: list[Path], folder: Path) -> int:
    """How many modules could be built by a process that is watched for what it does besides."""
    done = forked.run(["-c", WATCH, *modules], cwd=folder)
    assert done.returncode == 0, done.stdout + done.stderr[-3000:]
    return int(json.loads(done.stdout))


def test_the_watch_sees_an_attack(tmp_path: Path) -> None:
    (tmp_path / "bad.py").write_text(f"{CODE}\nclass Model:\n    from_pretrained = print\n")
    done = forked.run(["-c", WATCH, tmp_path / "bad.py"], cwd=tmp_path)
    assert done.returncode == 1 and f"open {MARK}" in done.stdout
    with pytest.raises(AssertionError):
        assert_safe(f'"""Fine."""\n\nimport torch\n{CODE}\n')


def projects() -> Iterator[tuple[str, str]]:
    """`[tool.onnxgen]` with an attack in one value."""
    values = {
        "dropout": "{{{} = 0.1}}",
        "input-shape": "{{{} = [1, 4]}}",
        "plugins": "[{}]",
    }
    for key in PROJECT:
        for kind, text in TEXTS.items():
            value = values.get(key, "{}").format(json.dumps(text))
            output = "" if key == "output" else 'output = "net.py"\n'
            yield f"{key}: {kind}", f'[[tool.onnxgen.models]]\nsource = "net.onnx"\n{output}{key} = {value}\n'


def test_no_project_gets_code_into_a_module(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from tests.support.reader_models import ADD, model, weight

    made = []
    for number, (name, text) in enumerate(projects()):
        folder = tmp_path / str(number)
        folder.mkdir()
        monkeypatch.chdir(folder)
        (folder / "net.onnx").write_bytes(model([ADD], [weight("w", 4)]).SerializeToString())
        (folder / "pyproject.toml").write_text(text, encoding="utf-8")
        code = command(["build"])
        said = capsys.readouterr()
        assert code in (0, 2), (name, code, said.err)
        modules = list(folder.rglob("*.py"))
        assert bool(modules) == (code == 0), (name, said.err)
        for path in modules:
            hold(path.read_text(encoding="ascii"), name)
            made.append(path)
    assert made and not list(tmp_path.rglob(MARK))
    assert watched(made, tmp_path) == len(made)


def test_the_page_names_tests_that_are_there() -> None:
    named = re.findall(r"`(tests/[\w/.]+)`", (ROOT / "SECURITY.md").read_text(encoding="utf-8"))
    assert len(named) > 8 and all((ROOT / path).exists() for path in named)
