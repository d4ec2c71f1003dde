"""ModelGen: a script says what [tool.onnxgen] says, and gets the same files."""

from __future__ import annotations

import dataclasses
import os
import subprocess
import sys
from pathlib import Path

import pytest

import onnxgen
from onnxgen import Limits, ModelGen, OnnxgenError, Options
from onnxgen.build_hooks.build import build_project
from onnxgen.build_hooks.settings import read_project
from tests.build_hooks.projects import compare, save_model
from tests.conftest import ROOT


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with two models, which the process is in."""
    monkeypatch.setenv("ONNXGEN_CACHE_DIR", str(tmp_path / "cache"))
    folder = tmp_path / "here"
    for seed, name in enumerate(("a", "b")):
        save_model(folder / f"{name}.onnx", seed, external=seed > 0)
    monkeypatch.chdir(folder)
    return folder


def files(folder: Path) -> dict[str, bytes]:
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_it_is_found_by_both_names() -> None:
    from onnxgen.build_hooks import ModelGen as of_the_hooks

    assert onnxgen.ModelGen is of_the_hooks is ModelGen


def test_several_models_go_into_a_folder(here: Path) -> None:
    built = ModelGen().input("a.onnx").input(Path("b.onnx")).out_dir("model").run()
    assert [b.status for b in built] == ["written", "written"]
    assert [b.files for b in built] == [
        (here / "model" / f"{name}.py", here / "model" / f"{name}.safetensors") for name in "ab"
    ]
    compare({"a": here / "a.onnx", "b": here / "b.onnx"}, here, path=here / "model")


def test_what_is_fresh_is_not_made_again(here: Path) -> None:
    models = ModelGen().input("*.onnx").out_dir("model/")
    assert not models.check() and not (here / "model").exists()
    models.run()
    before = {path: path.stat().st_mtime_ns for path in (here / "model").iterdir()}
    os.utime(here / "a.onnx")
    assert models.check() and [b.status for b in models.run()] == ["fresh", "fresh"]
    assert {path: path.stat().st_mtime_ns for path in (here / "model").iterdir()} == before
    save_model(here / "a.onnx", seed=5)
    assert not models.check() and [b.status for b in models.run()] == ["written", "fresh"]


def test_without_a_place_the_module_lies_beside_its_file(here: Path) -> None:
    (built,) = ModelGen().input("a.onnx").run()
    assert built.files[0] == here / "a.py"


def test_out_names_one_module_or_many(here: Path) -> None:
    (built,) = ModelGen().input("a.onnx").out("nets/first.py").weights("nets/1.safetensors").run()
    assert built.files == (here / "nets/first.py", here / "nets/1.safetensors")
    many = ModelGen().input("a.onnx").input("b.onnx").out("nets/net_{stem}.py").run()
    assert [b.files[0].name for b in many] == ["net_a.py", "net_b.py"]
    with pytest.raises(OnnxgenError, match=r"ModelGen: input\[1\]\.output: .*one\.py is the output of input\[0\]"):
        ModelGen().input("a.onnx").input("b.onnx").out("one.py").run()
    assert not (here / "one.py").exists()


def test_the_last_of_out_and_out_dir_counts(here: Path) -> None:
    assert ModelGen().input("a.onnx").out("x.py").out_dir("y").run()[0].files[0] == here / "y/a.py"
    assert ModelGen().input("a.onnx").out_dir("y").out("x.py").run()[0].files[0] == here / "x.py"


def test_calls_in_lines_of_their_own_count_like_a_chain(here: Path) -> None:
    models = ModelGen()
    models.input("a.onnx")
    models.embed_states(True)
    (built,) = models.run()
    assert built.files == (here / "a.py",)  # no sidecar


# ---- options ---------------------------------------------------------------------------------------------------------

SAID = {
    "class_name": "Net",
    "weights": "w.safetensors",
    "dtype": "float16",
    "task": "detection",
    "embed": True,
    "input_shapes": {"x": (2, 4)},
    "flat": True,
    "annotate": True,
    "style": "timm",
    "trainable": "fc1.*",
    "frozen": "fc2.*",
    "tied": "fc3.*",
    "untied": "fc4.*",
    "dynamic_batch": True,
    "batch_axes": {"x": 1, "y": None},
    "inputs": ("a", "b"),
    "outputs": ("h",),
    "restore_batchnorm": True,
    "quantized": "float",
    "dropout": {"fc1": 0.5},
    "const": {"x": (1.0, 2.0)},
    "nchwc_block": 16,
    "shard_size": 1000,
    "templates": "templates",
    "plugins": ("acme.ops",),
    "allow_unsupported": True,
    "paranoid": True,
    "limits": Limits(nodes=7),
}


def said(name: str, value: object) -> Options:
    """The options of an entry when one was said (and what it needs)."""
    models = ModelGen().input("a.onnx")
    if name == "batch_axes":
        models.dynamic_batch()
    assert getattr(models, name)(value) is models
    (entry,) = models._project().entries
    return entry.options


def test_every_option_has_a_method_of_its_name() -> None:
    assert set(SAID) == {field.name for field in dataclasses.fields(Options)}


@pytest.mark.parametrize("name", SAID)
def test_an_option_is_what_was_said(name: str, here: Path) -> None:
    (here / "templates").mkdir()
    expected = here / str(SAID[name]) if name in ("weights", "templates") else SAID[name]
    assert getattr(said(name, SAID[name]), name) == expected != getattr(Options(), name)


def test_flags_are_on_unless_they_are_said_to_be_off() -> None:
    for name in ("embed", "embed_states", "flat", "annotate", "dynamic_batch", "restore_batchnorm"):
        on = getattr(ModelGen().input("a.onnx"), name)()._project().entries[0].options
        off = getattr(ModelGen().input("a.onnx"), name)(False)._project().entries[0].options
        assert (on, off) == (dataclasses.replace(Options(), **{name.removesuffix("_states"): True}), Options())


def test_a_size_may_be_text() -> None:
    assert said("shard_size", "5MB").shard_size == 5_000_000


def test_limits_hold(here: Path) -> None:
    with pytest.raises(OnnxgenError, match=r"ModelGen: input\[0\]\.limit: a\.onnx: the file has 3 nodes"):
        ModelGen().input("a.onnx").limits(Limits(nodes=2)).run()


def test_it_makes_what_the_table_makes(here: Path, tmp_path: Path) -> None:
    """The same files, byte for byte; and either finds fresh what the other made."""
    project = tmp_path / "project"
    save_model(project / "a.onnx", 0)
    (project / "pyproject.toml").write_text(
        '[[tool.onnxgen.models]]\nsource = "a.onnx"\noutput = "model/"\nclass-name = "Net"\ndtype = "float16"\n'
        "flat = true\ndropout = {fc1 = 0.25}\ninput-shape = {x = [8, 4]}\nshard-size = 100\n"
    )
    settings = read_project(project)
    assert settings is not None
    build_project(settings)
    models = ModelGen().input("a.onnx").out_dir("model").class_name("Net").dtype("float16").flat()
    models.dropout({"fc1": 0.25}).input_shapes({"x": (8, 4)}).shard_size(100).run()
    assert files(here / "model") == files(project / "model")
    assert len(files(here / "model")) > 2  # shards
    again = ModelGen(project).input("a.onnx").out_dir("model").class_name("Net").dtype("float16").flat()
    assert again.dropout({"fc1": 0.25}).input_shapes({"x": (8, 4)}).shard_size(100).check()


# ---- modules that were edited ----------------------------------------------------------------------------------------


def edit(module: Path) -> str:
    text = module.read_text().replace("return", "print()\n        return", 1)
    module.write_text(text)
    return text


def test_an_edited_module_is_kept_or_refused_or_forced(here: Path) -> None:
    models = ModelGen().input("a.onnx")
    module = models.run()[0].files[0]
    mine = edit(module)
    assert models.run()[0].status != "written" and module.read_text() == mine
    save_model(here / "a.onnx", seed=5)
    assert not models.check() and models.run()[0].status == "merged" and models.check()
    assert "print()" in module.read_text()
    mine = module.read_text().replace("nn.Linear(4, 16)", "nn.Linear(4, 16, bias=True)")
    module.write_text(mine)
    save_model(here / "a.onnx", seed=5, hidden=8)
    with pytest.raises(OnnxgenError, match="edited by hand") as caught:
        models.run()
    assert caught.value.exit_code == 3 and module.read_text() == mine
    assert models.run(force=True)[0].status == "written" and module.read_text() != mine


def test_an_adopted_module_is_never_touched(here: Path) -> None:
    models = ModelGen().input("a.onnx").edited("mine")
    module = models.run()[0].files[0]
    mine = edit(module)
    save_model(here / "a.onnx", seed=5, hidden=8)
    assert models.run()[0].status == "kept" and module.read_text() == mine


# ---- bad input -------------------------------------------------------------------------------------------------------


def test_errors_name_every_bad_input(here: Path) -> None:
    with pytest.raises(OnnxgenError) as caught:
        ModelGen().input("a.onnx").input("missing.onnx").input("none/*.onnx").run()
    assert [p.what for p in caught.value.problems] == [
        "ModelGen: input[1].source: 'missing.onnx' is missing",
        "ModelGen: input[2].source: no file matches 'none/*.onnx'",
    ]
    assert not (here / "a.py").exists()


def test_a_broken_file_leaves_its_module_and_no_other_waits_for_it(here: Path) -> None:
    models = ModelGen().input("a.onnx").input("b.onnx").out_dir("model")
    models.run()
    before = files(here / "model")
    (here / "a.onnx").write_bytes(b"no model")
    save_model(here / "b.onnx", seed=9, external=True)
    with pytest.raises(OnnxgenError, match=r"ModelGen: input\[0\]\.source: .*a\.onnx"):
        models.run()
    after = files(here / "model")
    assert {name for name in before if after[name] != before[name]} == {"b.py", "b.safetensors"}


def test_bad_options_name_theirs() -> None:
    with pytest.raises(OnnxgenError, match=r"ModelGen: input\[0\]\.dtype: dtype must be one of .*, not 'int8'"):
        ModelGen().input("a.onnx").dtype("int8").run()
    with pytest.raises(OnnxgenError, match=r"ModelGen: input\[0\]\.edited: must be"):
        ModelGen().input("a.onnx").edited("yours").check()


def test_no_input_is_an_error() -> None:
    with pytest.raises(OnnxgenError, match="ModelGen has no input"):
        ModelGen().out_dir("model").run()


# ---- scripts ---------------------------------------------------------------------------------------------------------


def python(*arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    return subprocess.run(
        [sys.executable, *arguments], cwd=cwd, env=environment, capture_output=True, text=True, timeout=120
    )


def test_paths_of_a_script_are_relative_to_it(here: Path, tmp_path: Path) -> None:
    """Wherever it is started; and its process imports no torch, and when all is fresh nothing that generates."""
    (here / "tools").mkdir()
    (here / "tools" / "models.py").write_text(
        "import sys\nfrom onnxgen import ModelGen\n"
        "built = ModelGen().input('../a.onnx').out_dir('../model').run_from_script()\n"
        "print([b.status for b in built], sorted({'torch', 'onnx', 'black', 'numpy'} & set(sys.modules)))\n"
    )
    for expected in ("['written'] ['black', 'numpy', 'onnx']", "['fresh'] []"):
        done = python(str(here / "tools" / "models.py"), cwd=tmp_path)
        assert (done.stdout.strip(), done.stderr) == (expected, "")
    assert (here / "model" / "a.py").is_file()


def test_where_there_is_no_script_it_says_so(here: Path) -> None:
    done = python("-c", "from onnxgen import ModelGen; ModelGen().input('a.onnx').run_from_script()", cwd=here)
    assert done.returncode != 0 and "must be called from a script" in done.stderr.splitlines()[-1]
    assert not (here / "a.py").exists()
