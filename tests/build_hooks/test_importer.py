"""`import onnxgen.importer`: modules from ONNX files, without a trace beside them."""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import os
import pickle
import subprocess
import sys
import traceback
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
import torch

import onnxgen
from onnxgen import OnnxgenError, importer
from tests.build_hooks.projects import save_model
from tests.conftest import ROOT
from tests.support import forked


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("ONNXGEN_CACHE_DIR", str(tmp_path / "cache"))
    return tmp_path / "cache" / "imported"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder to import from, with a package `onnxpkg` in it that has `net.onnx`; no trace of it is left."""
    folder = tmp_path / "code"
    (folder / "onnxpkg").mkdir(parents=True)
    (folder / "onnxpkg" / "__init__.py").touch()
    save_model(folder / "onnxpkg" / "net.onnx", 0)
    monkeypatch.syspath_prepend(folder)
    before = set(sys.modules)
    importer.install()
    yield folder
    importer.uninstall()
    importer.options()
    importer.options("onnxpkg.net")
    for name in [n for n in set(sys.modules) - before if n.split(".")[0] in ("onnxpkg", "lonely", "spaces")]:
        del sys.modules[name]


def load(name: str = "onnxpkg.net") -> Any:
    return importlib.import_module(name)


def again(name: str = "onnxpkg.net") -> Any:
    """Import it as a new process would."""
    sys.modules.pop(name)
    return load(name)


def agrees(module: Any, source: Path) -> bool:
    """What onnxruntime computes from the file."""
    x = np.random.default_rng(3).standard_normal((5, 4), dtype=np.float32)
    (expected,) = onnxruntime.InferenceSession(str(source)).run(None, {"x": x})
    with torch.inference_mode():
        got = module.Model.from_pretrained().eval()(torch.from_numpy(x)).numpy()
    return np.allclose(got, expected, rtol=1e-5, atol=1e-6)


# ---- what is found ---------------------------------------------------------------------------------------------------


def test_a_module_from_an_onnx_file(folder: Path, cache: Path) -> None:
    before = sorted(folder.rglob("*"))
    module, source = load(), folder / "onnxpkg" / "net.onnx"
    assert agrees(module, source)
    assert module.__name__ == "onnxpkg.net" and module.__package__ == "onnxpkg"
    assert module.__spec__.origin == str(source)
    assert [p for p in sorted(folder.rglob("*")) if "__pycache__" not in p.parts] == before
    file = Path(module.__file__)
    assert file.is_relative_to(cache) and sorted(p.name for p in file.parent.glob("net.*")) == [
        "net.py",
        "net.safetensors",
    ]


def test_source_and_tracebacks(folder: Path) -> None:
    module = load()
    assert inspect.getsource(module) == Path(module.__file__).read_text()
    assert inspect.getsource(module.Model).startswith("class Net(nn.Module):")
    with pytest.raises(RuntimeError) as failed:
        module.Model()(torch.zeros(2, 9))
    shown = "".join(traceback.format_exception(failed.value))
    assert "F.relu(self.fc1(x))" in shown


def test_models_are_pickled(folder: Path) -> None:
    model = load().Model.from_pretrained()
    copy = pickle.loads(pickle.dumps(model))
    assert type(copy) is type(model) and torch.equal(copy.fc1.weight, model.fc1.weight)


@pytest.mark.parametrize("text", ["MINE = 1\n", "1 / 0\n"])
def test_a_python_file_wins(folder: Path, text: str) -> None:
    (folder / "onnxpkg" / "net.py").write_text(text)
    importlib.invalidate_caches()
    if "/" in text:
        with pytest.raises(ZeroDivisionError):
            load()
    else:
        assert load().MINE == 1


def test_a_package_wins(folder: Path) -> None:
    (folder / "onnxpkg" / "net").mkdir()
    (folder / "onnxpkg" / "net" / "__init__.py").write_text("MINE = 1")
    importlib.invalidate_caches()
    assert load().MINE == 1


def test_namespace_packages_and_no_package(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    other = tmp_path / "other"
    (folder / "spaces").mkdir()
    save_model(folder / "spaces" / "one.onnx", 1)
    save_model(other / "spaces" / "two.onnx", 2, external=True)
    save_model(other / "lonely.onnx", 3)
    monkeypatch.syspath_prepend(other)
    assert agrees(load("spaces.one"), folder / "spaces" / "one.onnx")
    assert agrees(load("spaces.two"), other / "spaces" / "two.onnx")
    monkeypatch.chdir(other)
    sys.path.insert(0, "")  # as in a session
    assert agrees(load("lonely"), other / "lonely.onnx")


def test_packages_in_a_zip_are_left_alone(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with zipfile.ZipFile(tmp_path / "a.zip", "w") as archive:
        archive.writestr("zipped/__init__.py", "")
        archive.write(folder / "onnxpkg" / "net.onnx", "zipped/net.onnx")
    monkeypatch.syspath_prepend(tmp_path / "a.zip")
    with pytest.raises(ModuleNotFoundError, match=r"No module named 'zipped\.net'"):
        load("zipped.net")
    sys.modules.pop("zipped")


@pytest.mark.parametrize("name", ["nothing", "Net", "NET", "my-net", "net.inner"])
def test_what_is_not_there(folder: Path, name: str) -> None:
    save_model(folder / "onnxpkg" / "my-net.onnx", 0)
    with pytest.raises(ModuleNotFoundError):
        load(f"onnxpkg.{name}")


def test_looking_for_it_generates_nothing(folder: Path, cache: Path) -> None:
    spec = importlib.util.find_spec("onnxpkg.net")
    assert spec is not None and spec.origin == str(folder / "onnxpkg" / "net.onnx")
    assert not cache.exists()


# ---- when it is generated --------------------------------------------------------------------------------------------


def test_an_unchanged_file_is_generated_once(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = Path(load().__file__)
    before = file.stat().st_mtime_ns
    os.utime(folder / "onnxpkg" / "net.onnx")
    monkeypatch.setattr("onnxgen.pipeline.build", None)  # whoever calls it fails
    assert Path(again().__file__) == file and file.stat().st_mtime_ns == before


def test_a_changed_file_is_generated_anew(folder: Path, cache: Path) -> None:
    source, files = folder / "onnxpkg" / "net.onnx", {Path(load().__file__)}
    for seed in range(1, importer.KEPT_VERSIONS + 3):
        save_model(source, seed)
        module = again()
        assert agrees(module, source)
        files.add(Path(module.__file__))
    assert len(files) == importer.KEPT_VERSIONS + 3
    assert len(list(cache.glob("*/*/net.py"))) == importer.KEPT_VERSIONS, "older ones are removed"
    save_model(source, importer.KEPT_VERSIONS + 1)
    assert agrees(again(), source)


def test_reload(folder: Path) -> None:
    source, module = folder / "onnxpkg" / "net.onnx", load()
    model = module.Model.from_pretrained()
    assert onnxgen.reload(module) is module and onnxgen.reload(model) is model
    save_model(source, 1, hidden=8)
    with pytest.warns(UserWarning, match=r"1 of 4 tensors carried over; .*fc1.weight is now \[8, 4\], was \[16, 4\]"):
        new: Any = onnxgen.reload(model)
    assert new.fc1.out_features == 8 and new.fc2.bias is model.fc2.bias
    assert agrees(module, source) and sys.modules["onnxpkg.net"] is module
    source.write_bytes(source.read_bytes()[:300])
    with pytest.raises(OnnxgenError, match="onnxpkg.net can't be reloaded: ImportError: .*net.onnx is not a readable"):
        onnxgen.reload(module)
    assert module.Model is type(new)


# ---- options ---------------------------------------------------------------------------------------------------------


def dtype(module: Any) -> torch.dtype:
    found: torch.dtype = module.Model.from_pretrained().fc1.weight.dtype
    return found


def test_options(folder: Path) -> None:
    importer.options(dtype="float64")
    importer.options("onnxpkg.net", dtype="float16", class_name="Half")
    assert dtype(load()) == torch.float16 and load().Model.__name__ == "Half"
    importer.options("onnxpkg.net")
    assert dtype(onnxgen.reload(load())) == torch.float64
    importer.options()
    assert dtype(onnxgen.reload(load())) == torch.float32
    with pytest.raises(OnnxgenError, match="--dtype must be one of float16, .*, not 'float8'"):
        importer.options(dtype="float8")
    with pytest.raises(TypeError, match="dtpye"):
        importer.options(dtpye="float16")


def test_options_of_the_project(folder: Path, cache: Path) -> None:
    table = '[[tool.onnxgen.models]]\nsource = "onnxpkg/{}.onnx"\noutput = "onnxpkg/{}.py"\ndtype = "float16"\n'
    settings = folder / "pyproject.toml"
    settings.write_text(table.format("net", "net"))
    module = load()
    assert dtype(module) == torch.float16 and Path(module.__file__).is_relative_to(cache)
    importer.options("onnxpkg.net", dtype="float64")
    assert dtype(onnxgen.reload(module)) == torch.float64
    importer.options("onnxpkg.net")
    save_model(folder / "onnxpkg" / "other.onnx", 1)
    settings.write_text(table.format("other", "other"))
    assert dtype(onnxgen.reload(module)) == torch.float32, "it is not listed"
    settings.write_text(table.format("nothing", "net"))
    with pytest.raises(ImportError, match=r"^pyproject.toml: tool.onnxgen.models\[0\].source: .*is missing"):
        again()


# ---- errors, and the way out -----------------------------------------------------------------------------------------


def test_errors_are_one_line(folder: Path) -> None:
    source = folder / "onnxpkg" / "net.onnx"
    source.write_bytes(source.read_bytes()[:300])
    with pytest.raises(ImportError) as failed:
        load()
    assert (
        str(failed.value)
        == f"{source} is not a readable ONNX file (truncated or damaged) -> download or export it again"
    )
    assert failed.value.name == "onnxpkg.net" and failed.value.path == str(source)
    assert failed.value.__suppress_context__ and "onnxpkg.net" not in sys.modules
    node = onnx.helper.make_node("NoSuchOperator", ["x"], ["y"], "node7")
    ports = [onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, [1]) for name in "xy"]
    onnx.save(onnx.helper.make_model(onnx.helper.make_graph([node], "g", ports[:1], ports[1:])), source)
    with pytest.raises(ImportError, match=r"node7 \(NoSuchOperator"):
        load()
    save_model(source, 0)
    assert agrees(load(), source)


def test_twice_is_once_and_off_is_off(folder: Path) -> None:
    def installed() -> list[Any]:
        return [finder for finder in sys.meta_path if type(finder).__name__ == "Finder"]

    others = [finder for finder in sys.meta_path if finder not in installed()]
    importer.install()
    importlib.reload(importer)
    assert len(installed()) == 1 and sys.meta_path == [*others, *installed()]
    importer.uninstall()
    importer.uninstall()
    assert sys.meta_path == others
    with pytest.raises(ModuleNotFoundError):
        load()
    importer.install()
    assert agrees(load(), folder / "onnxpkg" / "net.onnx")


def child(code: str, folder: Path) -> str:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), str(folder)])}
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=120, env=environment, cwd=folder.parent
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout.strip()


def test_what_it_imports(folder: Path) -> None:
    """Itself nothing heavy, and no more than a module's own imports when the module has been generated before."""
    heavy = "print(sorted({'onnx', 'numpy', 'torch', 'click', 'black', 'jinja2'} & set(sys.modules)))"
    assert child(f"import sys, onnxgen.importer; {heavy}", folder) == "[]"
    fake = "sys.modules['torch'] = None"  # a module can't be imported without it: so far it gets
    tried = f"import sys, onnxgen.importer\n{fake}\ntry:\n    import onnxpkg.net\nexcept ImportError:\n    {heavy}"
    assert child(tried, folder) == "['black', 'click', 'jinja2', 'numpy', 'onnx', 'torch']"
    assert child(tried, folder) == "['torch']"


def test_it_runs_as_a_program(folder: Path) -> None:
    """`python -m` and processes that are spawned find it as any other module."""
    code = "import onnxgen.importer, runpy; print({'FINGERPRINT', 'Model'} <= set(runpy.run_module('onnxpkg.net')))"
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), str(folder)])}
    done = forked.run(["-c", code], cwd=folder.parent, env=environment)
    assert (done.returncode, done.stdout.strip()) == (0, "True"), done.stderr
