"""Little projects that ship models, in every layout, and what tests do with them: build, install, run, compare."""

from __future__ import annotations

import csv
import json
import os
import subprocess
import sys
import sysconfig
import tarfile
import venv
import zipfile
from base64 import urlsafe_b64encode
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from hashlib import sha256
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from tests.build_hooks import computed
from tests.build_hooks.wheelhouse import clean_environment, isolated
from tests.support import forked

SETUPTOOLS = '[build-system]\nrequires = ["setuptools", "onnxgen"]\nbuild-backend = "setuptools.build_meta"\n'
HATCHLING = (
    '[build-system]\nrequires = ["hatchling", "onnxgen"]\nbuild-backend = "hatchling.build"\n\n'
    "[tool.hatch.build.hooks.onnxgen]\n"
)


@dataclass(frozen=True)
class Layout:
    """Where a project has its two models, and the modules that are made of them, by file in the project.

    Attributes:
        outputs: the modules to generate, relative to the project, by ONNX file.
        modules: how the installed modules are imported, in the same order.
        files: further files of the project with their text: packages, settings.
        settings: lines for pyproject.toml.
    """

    outputs: Mapping[str, str]
    modules: Sequence[str]
    files: Mapping[str, str] = field(default_factory=dict)
    settings: str = ""


LAYOUTS = {
    "src": Layout(
        {"models/one.onnx": "src/pkg/one.py", "models/two.onnx": "src/pkg/nets/two.py"},
        ["pkg.one", "pkg.nets.two"],
        {"src/pkg/__init__.py": "", "src/pkg/nets/__init__.py": ""},
    ),
    # The models lie in the package: beside it, setuptools would take their folder for a second package.
    "flat": Layout(
        {"pkg/one.onnx": "pkg/one.py", "pkg/nets/two.onnx": "pkg/nets/two.py"},
        ["pkg.one", "pkg.nets.two"],
        {"pkg/__init__.py": "", "pkg/nets/__init__.py": ""},
    ),
}


def write_project(root: Path, layout: Layout, backend: str = SETUPTOOLS, *, settings: str = "") -> Path:
    """Write a project "pkg" of version 1.0 with two models, the second with its data beside it; returns `root`.

    Args:
        root: the folder to make.
        layout: see `LAYOUTS`.
        backend: the beginning of pyproject.toml.
        settings: further lines for pyproject.toml.
    """
    root.mkdir(parents=True)
    for name, text in layout.files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    tables = [f'[[tool.onnxgen.models]]\nsource = "{s}"\noutput = "{o}"\n' for s, o in layout.outputs.items()]
    project = '[project]\nname = "pkg"\nversion = "1.0"\n'
    (root / "pyproject.toml").write_text("\n".join([backend, project, *tables, layout.settings, settings]))
    for seed, source in enumerate(layout.outputs):
        save_model(root / source, seed, external=seed > 0)
    return root


def save_model(path: Path, seed: int, *, external: bool = False, hidden: int = 16) -> None:
    """Write `x` [batch, 4] float32 -> `y` [batch, 3], two linear layers; equal bytes for equal arguments.

    With `external`, the weights lie in `<stem>.data` beside it.
    """
    random = np.random.default_rng(seed)
    shapes = {"fc1.weight": (hidden, 4), "fc1.bias": (hidden,), "fc2.weight": (3, hidden), "fc2.bias": (3,)}
    weights = [
        numpy_helper.from_array(random.standard_normal(shape, dtype=np.float32), name) for name, shape in shapes.items()
    ]
    nodes = [
        helper.make_node("Gemm", ["x", "fc1.weight", "fc1.bias"], ["h"], "fc1", transB=1),
        helper.make_node("Relu", ["h"], ["a"], "relu"),
        helper.make_node("Gemm", ["a", "fc2.weight", "fc2.bias"], ["y"], "fc2", transB=1),
    ]
    inputs = [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["batch", 4])]
    outputs = [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["batch", 3])]
    graph = helper.make_graph(nodes, "net", inputs, outputs, weights)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    path.parent.mkdir(parents=True, exist_ok=True)
    data = path.with_suffix(".data")
    data.unlink(missing_ok=True)  # onnx would append to it
    onnx.save_model(model, path, save_as_external_data=external, location=data.name, size_threshold=0)


# ---- processes -------------------------------------------------------------------------------------------------------


def run(*command: str | Path, cwd: Path, env: Mapping[str, str], fails: bool = False) -> str:
    """What a command prints, both streams together; it must succeed, or fail if it is said to."""
    done = subprocess.run(
        [str(c) for c in command],
        cwd=cwd,
        env=dict(env),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=600,
    )
    assert (done.returncode != 0) == fails, done.stdout
    return done.stdout


# Back ends, what onnxgen imports, and its generator. Whoever asks what a build imports needs a process of its own.
PRELOADED = (
    *("numpy", "onnx", "onnx_ir", "black", "jinja2", "rich", "safetensors.numpy"),
    *("setuptools.build_meta", "hatchling.build", "hatchling.builders.wheel", "hatchling.builders.sdist"),
    *("pdm.backend", "onnxgen.pipeline", "onnxgen.build_hooks.build"),
)


@cache
def _server(python: Path) -> forked.Server:
    return forked.Server(python, PRELOADED, clean_environment())


def execute(python: Path, *words: str | Path, cwd: Path, env: Mapping[str, str], fails: bool = False) -> str:
    """As `run`, with the interpreter of the fixture `builder`: in a fork of a process that has the back ends."""
    if not hasattr(os, "fork"):
        return run(python, *words, cwd=cwd, env=env, fails=fails)
    code, printed = _server(python).run(words, cwd=cwd, env=env)
    assert (code != 0) == fails, printed
    return printed


# What `pip --python` runs with the other interpreter: to begin with it saves a process.
PIP_RUNNER = Path(sysconfig.get_path("purelib"), "pip", "__pip-runner__.py")


def pip(
    *arguments: str | Path, cwd: Path, env: Mapping[str, str], fails: bool = False, python: Path | None = None
) -> str:
    """Run pip of the test environment; its own packages are not seen by what is built in isolation.

    Args:
        arguments: words of the command.
        cwd: where to run.
        env: variables.
        fails: whether it must fail.
        python: of the environment that it acts on, if that is another one.
    """
    command = [sys.executable, "-m", "pip"] if python is None else [python, PIP_RUNNER]
    return run(*command, *arguments, cwd=cwd, env=env, fails=fails)


def pip_wheel(project: Path, into: Path, env: Mapping[str, str], *options: str) -> Path:
    """The wheel that `pip wheel` makes of a project, in isolation."""
    pip("wheel", "--no-deps", *options, "-w", into, ".", cwd=project, env=isolated(dict(env)))
    (wheel,) = into.glob("*.whl")
    return wheel


def backend(
    hook: str,
    project: Path,
    into: Path,
    python: Path,
    env: Mapping[str, str],
    settings: Mapping[str, str] | None = None,
) -> Path:
    """What a hook of setuptools ("build_wheel", "build_sdist", "build_editable") makes; without pip, and quick.

    Args:
        hook: its name.
        project: what to build.
        into: the folder to put it into.
        python: that of the fixture `builder`.
        env: variables.
        settings: as of `--config-settings`.
    """
    into.mkdir(parents=True, exist_ok=True)
    code = "import sys, json\nfrom setuptools import build_meta\n"
    code += "print(getattr(build_meta, sys.argv[1])(sys.argv[2], json.loads(sys.argv[3])))"
    printed = execute(python, "-c", code, hook, into, json.dumps(settings), cwd=project, env=env)
    return into / printed.split()[-1]


def make_venv(folder: Path, builder: Path | None = None) -> Path:
    """An empty virtual environment, without pip (`pip --python` installs into it); returns its interpreter.

    With the interpreter of a `builder`, it sees the packages of that environment too, for builds without isolation.
    """
    venv.create(folder, with_pip=False, symlinks=sys.platform != "win32")
    if builder is not None:
        ours, theirs = (next(environment.rglob("site-packages")) for environment in (folder, builder.parents[1]))
        (ours / "builder.pth").write_text(str(theirs))
    return interpreter(folder)


def site_of(python: Path) -> Path:
    """The folder of a virtual environment that packages are installed in."""
    return next(python.parents[1].rglob("site-packages"))


def interpreter(venv: Path) -> Path:
    return venv / ("Scripts/python.exe" if sys.platform == "win32" else "bin/python")


# ---- wheels ----------------------------------------------------------------------------------------------------------


def members(wheel: Path) -> set[str]:
    """The files of a wheel but for its metadata."""
    with zipfile.ZipFile(wheel) as archive:
        return {name for name in archive.namelist() if ".dist-info/" not in name}


def unpack(wheel: Path, into: Path) -> Path:
    """Unpack a wheel; returns the folder to import from."""
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(into)
    return into


def unpack_sdist(sdist: Path, into: Path) -> Path:
    """Unpack an sdist; returns the folder that it has everything in."""
    with tarfile.open(sdist) as archive:
        archive.extraction_filter = getattr(tarfile, "data_filter", None)  # not in Python 3.11.2, Debian 12's
        archive.extractall(into)
    (project,) = into.iterdir()
    return project


def check_record(wheel: Path) -> None:
    """RECORD names every file of the wheel once, with its size and SHA-256 (binary distribution format)."""
    with zipfile.ZipFile(wheel) as archive:
        names = [name for name in archive.namelist() if not name.endswith("/")]
        (record,) = [n for n in names if n.endswith(".dist-info/RECORD") and n.count("/") == 1]  # some vendor others
        rows = {row[0]: row[1:] for row in csv.reader(archive.read(record).decode().splitlines())}
        assert sorted(rows) == sorted(names)
        for name in set(names) - {record}:
            content = archive.read(name)
            digest = urlsafe_b64encode(sha256(content).digest()).rstrip(b"=").decode()
            assert rows[name] == [f"sha256={digest}", str(len(content))], name


# ---- what was built, run ---------------------------------------------------------------------------------------------


# Prints where modules would be imported from.
FIND = "import importlib.util as util, sys\nfor name in sys.argv[1:]: print(util.find_spec(name).origin)"


def compare(
    modules: Mapping[str, Path], cwd: Path, *, python: str | Path = sys.executable, path: Path | None = None
) -> dict[str, Path]:
    """Import installed modules in another process, and hold what they compute to onnxruntime on their ONNX files.

    Args:
        modules: the ONNX file by the module's name.
        cwd: where to run; not the project.
        python: whose packages are seen, besides torch and onnxruntime of the test environment. That of the tests is
            forked from a process that has these two already.
        path: a folder to import from, as from `site-packages`.

    Returns:
        The file of each module.
    """
    given = [json.dumps({name: str(source) for name, source in modules.items()}), *([str(path)] if path else [])]
    env = {**clean_environment(), "OMP_NUM_THREADS": "1"}
    if python == sys.executable:
        done = forked.run([computed.__file__, *given], cwd=cwd, env=env)
        assert done.returncode == 0, done.stderr
        printed = done.stdout
    else:
        folders = [sysconfig.get_path("purelib"), sysconfig.get_path("platlib")]
        env["PYTHONPATH"] = os.pathsep.join(folders)
        printed = run(python, computed.__file__, *given, cwd=cwd, env=env)
    return {name: Path(file) for name, file in (line.split(" ", 1) for line in printed.splitlines())}
