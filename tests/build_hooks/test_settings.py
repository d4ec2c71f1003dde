"""What `[tool.onnxgen]` may say, and what is refused: every problem at once, each with its file and key."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import fields
from pathlib import Path
from typing import Any

import click
import pytest

from onnxgen.build_hooks.settings import KEYS, MAX_PROBLEMS_SHOWN, Entry, entries_from, read_project
from onnxgen.cli.options import generation_options, take_options
from onnxgen.errors import OnnxgenError
from onnxgen.options import Options
from tests.conftest import ROOT

ONE = '[[tool.onnxgen.models]]\nsource = "models/a.onnx"\noutput = "src/pkg/a.py"\n'


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A project whose ONNX files are empty: settings never look into them."""
    root = tmp_path / "project"
    for name in ("models/a.onnx", "models/b-2.onnx", "models/deep/c.onnx", "models/notes.txt"):
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).touch()
    return root


def entries(root: Path, text: str) -> tuple[Entry, ...]:
    (root / "pyproject.toml").write_text(text, encoding="utf-8")
    project = read_project(root)
    assert project is not None and (project.root, project.file) == (root, root / "pyproject.toml")
    return project.entries


def problems(root: Path, text: str) -> list[str]:
    with pytest.raises(OnnxgenError) as refused:
        entries(root, text)
    return [str(problem) for problem in refused.value.problems]


def one(root: Path, more: str) -> Options:
    """The options of one model with these lines."""
    (entry,) = entries(root, ONE + more)
    return entry.options


# ---- what may be said ------------------------------------------------------------------------------------------------


def test_no_settings(root: Path) -> None:
    assert read_project(root) is None
    for text in ("", "[project]\nname = 'x'\ndependencies = ['onnxgen']\n", "this is no TOML"):
        (root / "pyproject.toml").write_text(text)
        assert read_project(root) is None


def test_a_model(root: Path) -> None:
    (entry,) = entries(root, ONE)
    expected = Entry("tool.onnxgen.models[0]", root / "models/a.onnx", root / "src/pkg/a.py", root=root)
    assert entry == expected
    assert entry.weights == root / "src/pkg/a.safetensors" and entry.options == Options()
    assert entry.at("output") == "pyproject.toml: tool.onnxgen.models[0].output"


def test_every_option_of_the_command_is_a_key() -> None:
    """By the same name, for the same field of `Options`."""

    @click.command()
    @generation_options()
    def command(**_: Any) -> None: ...

    named = {p.opts[0]: p.name for p in command.params if isinstance(p, click.Option)}
    assert {about.option: field for field, about in KEYS.values()} == named
    assert {"--plugin" if key == "plugins" else f"--{key}" for key in KEYS} == set(named)
    assert set(named.values()) == {f.name for f in fields(Options)}


@pytest.mark.parametrize(
    ("lines", "arguments"),
    [
        ('class-name = "Net"', ["--class-name", "Net"]),
        ('dtype = "float16"\nflat = true\nannotate = true', ["--dtype", "float16", "--flat", "--annotate"]),
        ("embed = true", ["--embed"]),
        ('input-shape = {image = [1, 3, "?", -1]}', ["--input-shape", "image=1,3,?,-1"]),
        ('input_shape = {"a.b" = []}', ["--input-shape", "a.b="]),
        ("trainable = '^conv'\nfrozen = 'bn$'", ["--trainable", "^conv", "--frozen", "bn$"]),
        (
            'dynamic-batch = true\nbatch-axis = {frames = 1, scale = "none"}',
            ["--dynamic-batch", "--batch-axis", "frames=1", "--batch-axis", "scale=none"],
        ),
        ('inputs = ["a", "b"]', ["--inputs", "a", "--inputs", "b"]),
        ('outputs = ["h"]', ["--outputs", "h"]),
        ("restore-batchnorm = true", ["--restore-batchnorm"]),
        ('quantized = "float"', ["--quantized", "float"]),
        ('dropout = {"layer.*" = 0.1, head = 0}', ["--dropout", "layer.*=0.1", "--dropout", "head=0"]),
        ("nchwc-block = 16", ["--nchwc-block", "16"]),
        ("limit = {nodes = 7, name-length = 9}", ["--limit", "nodes=7", "--limit", "name_length=9"]),
        ('shard-size = "500 MB"', ["--shard-size", "500MB"]),
        ('plugins = ["acme.ops", "other"]', ["--plugin", "acme.ops", "--plugin", "other"]),
        ("shard-size = 4096", ["--shard-size", "4096"]),
    ],
)
def test_options_are_what_the_command_makes_of_them(root: Path, lines: str, arguments: list[str]) -> None:
    found: list[Options] = []

    @click.command()
    @generation_options()
    def command(**given: Any) -> None:
        found.append(take_options(given))

    command.main(arguments, standalone_mode=False)
    assert one(root, lines) == found[0]


def test_paths_of_options_are_relative_to_the_project(root: Path) -> None:
    (root / "frame").mkdir()
    found = one(root, 'weights = "src/pkg/data/w.safetensors"\ntemplates = "frame"')
    assert (found.weights, found.templates) == (root / "src/pkg/data/w.safetensors", root / "frame")


def test_options_for_all_models(root: Path) -> None:
    head = '[tool.onnxgen]\ndtype = "float16"\nedited = "mine"\ninclude_onnx = true\n'
    other = '[[tool.onnxgen.models]]\nsource = "models/b-2.onnx"\ndtype = "float32"\nedited = "refuse"\n'
    a, b = entries(root, head + ONE + other)
    assert (a.options.dtype, a.edited, a.include_onnx) == ("float16", "mine", True)
    assert (b.options.dtype, b.edited, b.include_onnx) == ("float32", "refuse", True)
    assert b.output == root / "models/b_2.py", "beside the source, by a name that can be imported"


@pytest.mark.parametrize("output", ["src/pkg/", "src/pkg/{stem}.py", "./src/../src/pkg/"])
def test_a_glob(root: Path, output: str) -> None:
    text = f'[[tool.onnxgen.models]]\nsource = "models/*.onnx"\noutput = "{output}"\n'
    found = entries(root, text)
    assert [(e.source.name, e.output) for e in found] == [
        ("a.onnx", root / "src/pkg/a.py"),
        ("b-2.onnx", root / "src/pkg/b_2.py"),
    ]
    assert {e.key for e in found} == {"tool.onnxgen.models[0]"}
    deep = entries(root, text.replace("models/*", "models/**/*"))
    assert [e.source.name for e in deep] == ["a.onnx", "b-2.onnx", "c.onnx"]


def test_a_name_that_looks_like_a_glob(root: Path) -> None:
    (root / "models/v[1].onnx").touch()
    (entry,) = entries(root, '[[tool.onnxgen.models]]\nsource = "models/v[1].onnx"\noutput = "v1.py"\n')
    assert entry.source.name == "v[1].onnx"


def test_a_model_may_be_a_path_alone(root: Path) -> None:
    found = entries(root, '[tool.onnxgen]\nmodels = ["models/a.onnx", {source = "models/b-2.onnx"}]\n')
    assert [e.output for e in found] == [root / "models/a.py", root / "models/b_2.py"]


def test_entries_of_a_script(root: Path, tmp_path: Path) -> None:
    """`setup(onnxgen_models=...)` and scripts say the same in Python: paths may be objects, lists tuples."""
    model = {"source": Path("models/a.onnx"), "output": "pkg/a.py", "input_shape": {"x": (1, 2)}, "batch-axis": {}}
    (entry,) = entries_from(root, [model], "onnxgen_models", file="setup.py")
    assert entry.options.input_shapes == {"x": (1, 2)} and entry.at() == "setup.py: onnxgen_models[0]"
    with pytest.raises(OnnxgenError, match=r"setup\.py: onnxgen_models\[0\]\.output: .*outside the project"):
        entries_from(root, [{**model, "output": str(Path("..", "a.py"))}], "onnxgen_models", file="setup.py")
    outside = {"source": root / "models/a.onnx", "output": tmp_path / "elsewhere" / "a.py"}
    (entry,) = entries_from(root, [outside], "ModelGen", inside=False)
    assert entry.output == tmp_path / "elsewhere" / "a.py"


def test_links_to_sources_are_followed(root: Path, tmp_path: Path) -> None:
    """As tools leave them that keep large files elsewhere; nothing is written there."""
    (tmp_path / "store.onnx").touch()
    (root / "models/a.onnx").unlink()
    (root / "models/a.onnx").symlink_to(tmp_path / "store.onnx")
    (entry,) = entries(root, ONE)
    assert entry.source == root / "models/a.onnx"


# ---- what is refused -------------------------------------------------------------------------------------------------

A = 'source = "models/a.onnx"\n'


REFUSED = [
    ('output = "a.py"', "", "has no source"),
    ("source = 3", ".source", "must be a path, not 3"),
    ('source = ""', ".source", "must be a path, not ''"),
    ('source = "models/no.onnx"', ".source", "'models/no.onnx' is missing"),
    ('source = "models"', ".source", "'models' is a folder"),
    ('source = "models/*.pt"', ".source", "no file matches 'models/*.pt'"),
    ('source = "models/**.onnx/x**"', ".source", "no file matches"),
    ('source = "/etc/hosts"', ".source", "is absolute"),
    ('source = "C:/a.onnx"', ".source", "is absolute"),
    ('source = "../a.onnx"', ".source", "lies outside the project"),
    ('source = "models\\\\a.onnx"', ".source", "paths are written with /"),
    ('source = "models/a.onnx\\u0000"', ".source", "has a character that no path should have"),
    ('source = "models/\\u202Eonnx.a"', ".source", "has a character that no path should have"),
    (A + 'output = "/tmp/a.py"', ".output", "is absolute"),
    (A + 'output = "src/../../a.py"', ".output", "lies outside the project"),
    (A + 'output = "../"', ".output", "lies outside the project"),
    (A + 'output = "a.txt"', ".output", "must be the name of a .py file"),
    (A + 'output = "src/.py"', ".output", "must be the name of a .py file"),
    (A + 'output = "x\\u0000.py"', ".output", "has a character that no path should have"),
    (A + "output = ['a.py']", ".output", "must be a path, not a list of 1"),
    (A + 'output = "linked/a.py"', ".output", "linked/a.py lies outside the project: a link leads to"),
    (A + 'weights = "linked/a.safetensors"', ".weights", "lies outside the project: a link leads to"),
    (A + 'weights = "../a.safetensors"', ".weights", "lies outside the project"),
    (A + 'weights = "models/a.py"', ".weights", "models/a.py is the output of this model, too"),
    (A + 'weights = "models/a.onnx"', ".weights", "models/a.onnx is the source of tool.onnxgen.models[0]"),
    (A + 'weights = "models/"', ".weights", "is a folder"),
    (A + 'weights = "models/deep"', ".weights", "is a folder"),
    (A + 'templates = "no"', ".templates", "'no' is not a folder"),
    (A + 'templates = "models"', ".templates", "the folder models holds the output, too"),
    ('source = "models/*.onnx"\noutput = "a.py"', ".output", "write {stem} in it"),
    (A + 'clas-name = "Net"', ".clas-name", "unknown key -> did you mean class-name?"),
    (A + "input-shapes = {}", ".input-shapes", "did you mean input-shape?"),
    (A + "zzz = 1", ".zzz", "unknown key -> there are allow-unsupported, annotate, batch-axis"),
    (A + '"\\u001B[31m" = 1', ".'\\x1b[31m'", "unknown key"),
    (A + "flat = 1", ".flat", "must be true or false, not 1"),
    (A + 'class-name = "a b"', ".class-name", "class name 'a b' is not a Python identifier"),
    (A + 'class-name = "x"\nclass_name = "y"', ".class_name", "is given twice"),
    (A + 'class-name = "x"\nclass_name = 3', ".class_name", "is given twice"),
    (A + 'dtype = "int8"', ".dtype", "dtype must be one of float16, "),
    (A + "dtype = 16", ".dtype", "must be a text, not 16"),
    (A + "input-shape = [1]", ".input-shape", "must be a table like"),
    (A + "input-shape = {x = [1.5]}", ".input-shape", "must be a table like"),
    (A + "input-shape = {x = [true]}", ".input-shape", "must be a table like"),
    (A + "input-shape = {x = [9223372036854775808]}", ".input-shape", "must be a table like"),
    (A + "input-shape = {x = [-2]}", ".input-shape", "must be a table like"),
    (A + 'batch-axis = {x = "1"}', ".batch-axis", "must be a table like"),
    (A + "batch-axis = {x = 1}", "", "batch-axis needs dynamic-batch"),
    (A + "dropout = {x = 1.0}", ".dropout", "dropout x=1: give a module path and a probability"),
    (A + "dropout = {x = nan}", ".dropout", "must be a table like"),
    (A + "trainable = '('", ".trainable", "trainable '(' is not a regular expression"),
    (A + "frozen = 'x{99999999999999999999}'", ".frozen", "is not a regular expression: the repetition number"),
    (A + f"frozen = '{'(' * 9000 + ')' * 9000}'", ".frozen", "frozen '(((("),
    (A + f'class-name = "{"x" * 9000}"', ".class-name", "class name 'xxxx"),
    (A + f'source2 = "{"x" * 9000}"', ".source2", "unknown key"),
    (A + f'"{"x" * 9000}" = 1', f".'{'x' * 56}...", "unknown key"),
    (f'source = "{"x" * 9000}"', ".source", "is too long for a path"),
    (f'source = "{"x/" * 9000}"', ".source", "is too long for a path"),
    (A + f'output = "{"x/" * 9000}x.py"', ".output", "is too long for a path"),
    (A + f'weights = "{"x" * 250}"', ".weights", "is too long for a path"),
    ('source = "odd/*.onnx"', ".source", "'odd/a\\nb.onnx' has a character that no path should have"),
    (A + 'shard-size = "5 parsec"', ".shard-size", "must be a size like"),
    (A + "shard-size = 0", ".shard-size", "must be a size like"),
    (A + 'edited = "yours"', ".edited", 'must be "refuse" or "mine", not \'yours\''),
    (A + "include-onnx = 0", ".include-onnx", "must be true or false, not 0"),
]


def test_one_clear_line(root: Path, tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    (root / "linked").symlink_to(tmp_path / "elsewhere")
    (root / "odd").mkdir()
    (root / "odd" / "a\nb.onnx").touch()
    for lines, key, what in REFUSED:
        (problem,) = problems(root, f"[[tool.onnxgen.models]]\n{lines}\n")
        assert problem.startswith(f"pyproject.toml: tool.onnxgen.models[0]{key}: ") and what in problem, lines[:99]
        assert problem.isprintable() and len(problem) < 600, lines[:99]


NO_LISTS = [
    ("[tool]\nonnxgen = 3", "pyproject.toml: tool.onnxgen must be a table, not 3"),
    ("[tool.onnxgen]\nmodels = 3", "pyproject.toml: tool.onnxgen.models: must be a list, not 3"),
    ("[tool.onnxgen]\nmodels = [3]", "pyproject.toml: tool.onnxgen.models[0]: must be a table, not 3"),
    ('[tool.onnxgen.models]\nsource = "x"', "pyproject.toml: tool.onnxgen.models: must be a list of tables"),
    ('[tool.onnxgen]\nsource = "x"', "pyproject.toml: tool.onnxgen.source: unknown key"),
    ('[tool.onnxgen]\nweights = "x"', "pyproject.toml: tool.onnxgen.weights: unknown key"),
    ("[tool.onnxgen]\nflat = 'x'", "pyproject.toml: tool.onnxgen.flat: must be true or false, not 'x'"),
    ("[tool.onnxgen\n", "pyproject.toml is not a TOML file: "),
    ("x = " + "[" * 50_000 + "  # onnxgen", "pyproject.toml is not a TOML file: "),
]


def test_what_is_no_list_of_models(root: Path) -> None:
    for text, expected in NO_LISTS:
        (problem,) = problems(root, text)
        assert expected in problem, text[:99]


def test_what_is_no_text(root: Path) -> None:
    (root / "pyproject.toml").write_bytes(b"# onnxgen \xff\n")
    with pytest.raises(OnnxgenError, match=r"pyproject\.toml is not a TOML file: .*utf-8"):
        read_project(root)
    (root / "pyproject.toml").unlink()
    (root / "pyproject.toml").mkdir()
    with pytest.raises(OnnxgenError, match=r"pyproject\.toml can't be read: Is a directory"):
        read_project(root)


def test_models_in_each_others_way(root: Path) -> None:
    def model(number: int, **values: str) -> str:
        return "[[tool.onnxgen.models]]\n" + "".join(f'{key} = "{value}"\n' for key, value in values.items())

    text = (
        model(0, source="models/a.onnx", output="src/a.py")
        + model(1, source="models/a.onnx", output="src/../src/a.py", weights="src/a1.st")
        + model(2, source="models/a.onnx", output="src/c.py", weights="src/a.safetensors")
        + model(3, source="models/a.onnx", output="src/d.py", weights="models/b-2.onnx")
        + model(4, source="models/b-2.onnx", output="src/e.py")
    )
    assert [problem.removeprefix("pyproject.toml: tool.onnxgen.") for problem in problems(root, text)] == [
        "models[1].output: src/a.py is the output of tool.onnxgen.models[0], too",
        "models[2].weights: src/a.safetensors is the weights of tool.onnxgen.models[0], too",
        "models[3].weights: models/b-2.onnx is the source of tool.onnxgen.models[4]",
    ]


def test_two_files_of_one_glob_with_one_name(root: Path) -> None:
    (root / "models/b_2.onnx").touch()
    text = '[[tool.onnxgen.models]]\nsource = "models/*.onnx"\noutput = "src/"\n'
    expected = "models[0].output: src/b_2.py is the output of tool.onnxgen.models[0] for models/b-2.onnx, too"
    assert any(expected in problem for problem in problems(root, text))


def test_names_that_differ_in_case_alone(root: Path) -> None:
    """One of them would replace the other where a wheel is installed on macOS or Windows."""
    text = ONE + ONE.replace("models/a.onnx", "models/b-2.onnx").replace("a.py", "A.py")
    (problem,) = problems(root, text)
    assert problem == (
        "pyproject.toml: tool.onnxgen.models[1].output: src/pkg/A.py is the output of tool.onnxgen.models[0], too, "
        "where case does not count"
    )


def test_all_problems_at_once(root: Path) -> None:
    text = '[tool.onnxgen]\nflat = 1\n[[tool.onnxgen.models]]\nsource = "x"\noutput = "/y"\nzz = 1\n' + ONE
    text += 'output2 = "x"\n'
    found = problems(root, text)
    assert [problem.split(": ")[1] for problem in found] == [
        "tool.onnxgen.flat",
        "tool.onnxgen.models[0].zz",
        "tool.onnxgen.models[0].source",
        "tool.onnxgen.models[1].output2",
    ]


def test_a_huge_list(root: Path) -> None:
    """It ends in seconds, and with as many lines as a person reads."""
    text = "[tool.onnxgen]\nmodels = [" + "3," * 50_000 + "]\n"
    found = problems(root, text)
    assert (
        len(found) == MAX_PROBLEMS_SHOWN + 1
        and found[-1] == f"pyproject.toml: and {50_000 - MAX_PROBLEMS_SHOWN:,} problems more"
    )
    (problem,) = problems(root, ONE + "input-shape = {x = [" + "0.5," * 50_000 + "]}\n")
    assert len(problem) < 300
    many = "[tool.onnxgen]\nmodels = [" + '"models/a.onnx",' * 2_000 + "]\n"
    assert len(problems(root, many)) == MAX_PROBLEMS_SHOWN + 1, "two thousand models with one output"


def test_nothing_heavy_is_imported(root: Path) -> None:
    (root / "pyproject.toml").write_text(ONE)
    code = (
        "import sys\nfrom onnxgen.build_hooks.settings import read_project\n"
        "assert len(read_project(sys.argv[1]).entries) == 1\n"
        "print(sorted({m.split('.')[0] for m in sys.modules} & {'onnx', 'numpy', 'black', 'jinja2', 'click', 'torch'}))"
    )
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run([sys.executable, "-c", code, str(root)], capture_output=True, text=True, env=environment)
    assert done.stdout == "[]\n", done.stderr
