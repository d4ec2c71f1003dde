"""Without a package that a command needs: one line that says how to install it."""

from __future__ import annotations

import importlib.metadata
import json
import os
import re
import subprocess
import sys
from functools import cache
from pathlib import Path

import numpy as np
import pytest

from onnxgen.cli import run
from onnxgen.common import paths
from tests.conftest import ROOT
from tests.support.forked import Server
from tests.training.small import network

WITHOUT = """
import importlib.abc, sys
missing, *args = sys.argv[1:]
class Missing(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path, target=None):
        if name.partition(".")[0] == missing:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
sys.meta_path.insert(0, Missing())
from importlib import util
found = util.find_spec
util.find_spec = lambda name, *given: None if name.partition(".")[0] == missing else found(name, *given)
from onnxgen.cli import main
main(args)
"""


Out = pytest.CaptureFixture[str]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("missing")
    network(folder, x=("float32", ["n", 5]))
    np.savez(folder / "data.npz", x=np.zeros((20, 5), np.float32), y=np.arange(20) % 3)
    (folder / "photos" / "a").mkdir(parents=True)
    (folder / "photos" / "a" / "1.png").touch()
    return folder


@pytest.mark.parametrize(
    ("missing", "command", "extra"),
    [
        ("torch", "small.onnx -o new.py --verify", "[verify]"),
        ("torch", "train small.py", "[torch]"),
        ("lightning", "train small.py --data data.npz", "[train]"),
        ("safetensors", "train small.py --data data.npz", ""),
        ("torchmetrics", "train small.py --data data.npz", "[train]"),
    ],
)
def test_a_package_that_is_imported_first(missing: str, command: str, extra: str, folder: Path) -> None:
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    words = ["-c", WITHOUT, missing, *command.split()]
    if missing == "torch" or not hasattr(os, "fork"):
        call = [sys.executable, *words]
        made = subprocess.run(call, cwd=folder, env=environment, capture_output=True, text=True, timeout=300)
        hold(made.returncode, made.stderr, extra)
    else:
        hold(*with_torch().run(words, cwd=folder, env=environment), extra)


@cache
def with_torch() -> Server:
    """A process that has torch, which takes long to import, and nothing of what is missing."""
    return Server(Path(sys.executable), ["torch"], os.environ)


@pytest.mark.parametrize(
    ("missing", "command", "extra"),
    [
        ("torch", "verify small.onnx small.py", "[verify]"),
        ("torch", "devices", "[torch]"),
        ("onnxruntime", "export small.py", "[verify]"),
        ("tensorboard", "train small.py --data data.npz", "[train]"),
        ("matplotlib", "train small.py --data data.npz", "[train]"),
        ("sklearn", "train small.py", "[train]"),
        ("PIL", "train small.py --data photos", "[train]"),
    ],
)
def test_a_package_that_is_imported_later(
    missing: str, command: str, extra: str, folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: Out
) -> None:
    monkeypatch.chdir(folder)
    monkeypatch.setitem(sys.modules, missing, None)
    hold(run(command.split()), capsys.readouterr().err, extra)
    assert not Path("runs").exists(), "nothing was trained, only to find that there is no report"


def hold(code: int, errors: str, extra: str) -> None:
    """Check for one line that says how to install the package."""
    (line,) = errors.splitlines()
    way = f"'{ROOT}{extra}'" if extra else str(ROOT)
    assert code == 2 and line.startswith("error: ") and " -> pip install " in line, line
    assert re.search(rf" -> pip install (-c \S+/constraints.txt )?{re.escape(way)}", line), line


def test_verify_without_onnxruntime(folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: Out) -> None:
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    assert run(["verify", str(folder / "small.onnx"), str(folder / "small.py")]) == 0
    said = capsys.readouterr().out
    assert "onnx.reference" in said and "onnxruntime is not installed" in said


class Recorded:
    """An installed distribution."""

    def __init__(self, url: str | None) -> None:
        self.url = url

    def read_text(self, name: str) -> str | None:
        assert name == "direct_url.json"
        return self.url and json.dumps({"url": self.url})


@pytest.mark.parametrize(
    ("url", "plain", "extra"),
    [
        (None, "pip install onnxgen", "pip install 'onnxgen[verify]'"),  # from an index, by its name
        (
            "file:///a%20b/x.whl",
            "pip install file:///a%20b/x.whl",
            "pip install 'onnxgen[verify] @ file:///a%20b/x.whl'",
        ),
    ],
)
def test_an_installed_onnxgen_is_installed_from_where_it_came_from(
    url: str | None, plain: str, extra: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(paths, "_HERE", tmp_path / "site" / "onnxgen")
    monkeypatch.setattr("importlib.metadata.distribution", lambda name: Recorded(url))
    assert paths.installing("") == plain and paths.installing("verify") == extra


@pytest.mark.parametrize(
    ("lines", "kept"),
    [
        ("# a comment\nnumpy=={numpy}\nonnxgen-none==1.0\n", True),
        ("numpy==0.1\n", False),  # other versions are chosen there: pip must not replace them
        ("onnxgen-none==1.0\n", False),
        (None, False),
    ],
)
def test_the_versions_of_a_checkout_stay(
    lines: str | None, kept: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(paths, "_HERE", tmp_path / "onnxgen")
    (tmp_path / "pyproject.toml").touch()
    if lines is not None:
        (tmp_path / "constraints.txt").write_text(lines.format(numpy=np.__version__))
    constraints = f"-c {tmp_path}/constraints.txt " if kept else ""
    assert paths.installing("detection") == f"pip install {constraints}'{tmp_path}[detection]'"


def test_a_copy_of_a_checkout_keeps_its_versions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`pip install '.[train]'` copies the package, and records the folder."""
    checkout = tmp_path / "a b"
    checkout.mkdir()
    (checkout / "constraints.txt").write_text(f"numpy=={np.__version__}\n")
    real = importlib.metadata.distribution
    copied = {"onnxgen": Recorded(checkout.as_uri())}
    monkeypatch.setattr(paths, "_HERE", tmp_path / "site" / "onnxgen")
    monkeypatch.setattr("importlib.metadata.distribution", lambda name: copied.get(name) or real(name))
    way = f"pip install -c '{checkout}/constraints.txt' 'onnxgen[detection] @ {checkout.as_uri()}'"
    assert paths.installing("detection") == way
