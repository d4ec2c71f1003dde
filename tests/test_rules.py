"""The project's rules for code, as far as a test can check them."""

from __future__ import annotations

import ast
import builtins
import graphlib
import os
import re
import subprocess
import sys
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path

import black
import onnx
import pytest

from onnxgen.code.copied import helper_names
from onnxgen.code.render import LINE_LENGTH
from onnxgen.graph import annotations
from onnxgen.graph.operators import operators
from onnxgen.pipeline import generate
from tests.conftest import ROOT
from tests.support.rooms import APART, FLOORS

SAMPLE = ROOT / "samples" / "mnist" / "mnist.onnx"
SMALL = ROOT / "samples" / "package" / "models" / "digits.onnx"
OURS = sorted([*(ROOT / "onnxgen").rglob("*.py"), *(ROOT / "build_hooks").rglob("*.py")])
MODULES = {".".join(p.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__"): p for p in OURS}
TEMPLATES = sorted((ROOT / "templates").rglob("*.jinja"))
HELPERS = sorted([*(ROOT / "onnxgen").glob("helpers/*.py"), *(ROOT / "onnxgen").glob("*/helpers/*.py")])

# Code before ops/ in the pipeline uses ONNX, not PyTorch. The files listed here must not name any operator either.
FRAMEWORK = sorted(
    [
        ROOT / "onnxgen" / "pipeline.py",
        *(
            ROOT / "onnxgen" / folder / name
            for folder, name in (
                ("weights", "sidecar.py"),
                ("weights", "provenance.py"),
                ("weights", "strided.py"),
                ("lowering", "lower.py"),
                ("lowering", "members.py"),
                ("lowering", "builder.py"),
                ("graph", "operators.py"),
                ("output", "compose.py"),
                ("output", "write.py"),
                ("runtime", "load.py"),
            )
        ),
        *(path for room in ("common", "structure", "code", "cli") for path in (ROOT / "onnxgen" / room).glob("*.py")),
    ]
)

# The oldest torch is that of pyproject.toml. DirectML's package alone brings an older one, where generated code runs,
# too. So these are the APIs that are newer than that one; from the release notes of 2.5 to 2.13.
DIRECTML_TORCH = "2.4"
NEWER_TORCH = {
    "enable_gqa": "2.5",
    "flex_attention": "2.5",
    "BlockMask": "2.5",
    "torch.nn.attention.varlen": "2.10",
    "torch.nn.attention.bias.CausalVariant": "2.5",
    "torch.accelerator": "2.6",
    "torch.get_device_module": "2.5",
    "torch.compiler.set_stance": "2.6",
    "torch.compiler.nested_compile_region": "2.8",
    "torch.library.triton_op": "2.6",
    "torch.float8_e8m0fnu": "2.7",
    "torch.float4_e2m1fn_x2": "2.8",
    "torch.serialization.skip_data": "2.6",
    "torch.hash_tensor": "2.9",
    "F.grouped_mm": "2.10",
    "F.scaled_mm": "2.10",
    "F.scaled_grouped_mm": "2.10",
    "nn.functional.grouped_mm": "2.10",
    "nn.functional.scaled_mm": "2.10",
    "torch.optim.Muon": "2.9",
    "nn.LinearCrossEntropyLoss": "2.11",
    "F.linear_cross_entropy": "2.11",
}

FILE_LINES = 600


def name(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


@cache
def tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


@cache
def nodes(path: Path) -> list[ast.AST]:
    return list(ast.walk(tree(path)))


@pytest.fixture(scope="module", autouse=True)
def _trees() -> Iterator[None]:
    """The trees of a file are made once; a million nodes are more than later tests should carry."""
    yield
    for kept in (tree, nodes, imported, loads):
        kept.cache_clear()


def python(code: str, *arguments: str, **variables: str) -> str:
    """Return the output of code in a new Python process."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT), **variables}
    done = subprocess.run(
        [sys.executable, "-c", code, *arguments], capture_output=True, text=True, timeout=120, env=environment
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


# ---- what imports what -----------------------------------------------------------------------------------------------


def test_generating_never_imports_torch(tmp_path: Path) -> None:
    """Neither the command nor the library imports it, nor `--check`, `inspect` or `ops`."""
    code = (
        "import sys\n"
        "from pathlib import Path\n"
        "from onnxgen.cli import run\n"
        "import onnxgen\n"
        "model, out = sys.argv[1:]\n"
        "assert run([model, '-o', out]) == 0\n"
        "assert run([model, '-o', out, '--check']) == 0\n"
        "assert run(['inspect', model]) == 0 and run(['ops']) == 0\n"
        "assert onnxgen.generate(model, out, force=True).report.status == 'written'\n"
        "heavy = ('torch', 'onnxruntime', 'onnxscript', 'torchvision')\n"
        "print('imported:', sorted({m.split('.')[0] for m in sys.modules} & set(heavy)))\n"
    )
    assert python(code, str(SAMPLE), str(tmp_path / "model.py")).splitlines()[-1] == "imported: []"


def test_only_what_runs_models_mentions_torch() -> None:
    """No import of torch, even inside functions, except in helpers (copied as text) and code that runs modules."""
    rooms = (
        "helpers/ classical/helpers/ microsoft/helpers/ verify/ runtime/ surgery/ training/ export/ ship/ canonical/"
    )
    runs = tuple(f"onnxgen/{place}" for place in (*rooms.split(), "backend.py"))
    found = []
    for path in OURS:
        computes = name(path) == "onnxgen/paranoid/apart.py"  # only for `--paranoid`; runs the file in onnxruntime
        heavy = ("torch",) if computes else ("torch", "onnxruntime")
        if not name(path).startswith(runs):
            found += [(name(path), m) for m in imported(path) if m.split(".")[0] in heavy]
    assert found == []


# Imports from a higher layer, each with the reason.
UPWARD = {
    (
        "onnxgen.lowering.constants",
        "onnxgen.validate.constants",
    ): "a constant is held to its elements where it is written",
}


def test_rooms_import_from_below() -> None:
    """Imports inside functions count, too; imports only for a type checker do not."""
    floor = {room: number for number, rooms in enumerate(FLOORS) for room in rooms}
    found = set()
    for path in OURS:
        module = ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")
        room = module.removeprefix("onnxgen").split(".")[1:][:1]
        if not room or path.parts[len(ROOT.parts)] != "onnxgen" or room[0] in APART:
            continue
        for used in imported(path):
            other = used.split(".")[1:2] if used.startswith("onnxgen.") else []
            if other and other[0] not in APART and floor[other[0]] > floor[room[0]]:
                found.add((module, used))
    assert found == set(UPWARD)


def test_any_module_may_be_imported_first() -> None:
    """What modules import when they are loaded makes no circle; importing one loads the packages around it, too."""
    needs = {
        module: {name for name in used if not f"{module}.".startswith(f"{name}.")} for module, used in loads().items()
    }
    graphlib.TopologicalSorter(needs).prepare()  # raises CycleError with the circle


@cache
def loads() -> dict[str, set[str]]:
    """The modules that each of ours imports when it is loaded, with the packages around them."""
    return {module: _ours(at_once(tree(path).body)) for module, path in MODULES.items()}


def _ours(names: Iterable[str]) -> set[str]:
    parts = [name.split(".") for name in names]
    return {".".join(part[:end]) for part in parts for end in range(1, len(part) + 1)} & MODULES.keys()


def at_once(body: Iterable[ast.AST], late: bool = False) -> Iterator[str]:
    """Yield what statements import when a module is loaded: not for a type checker, and inside functions if `late`."""
    for node in body:
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield from (f"{node.module}.{alias.name}" for alias in node.names)
        elif (late or not isinstance(node, ast.FunctionDef)) and not (isinstance(node, ast.If) and _for_types(node)):
            yield from at_once(ast.iter_child_nodes(node), late)


def _for_types(node: ast.If) -> bool:
    return isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING"


# A generated module is trained without the code that generated it. What needs a graph imports it inside a function:
# these are all such imports of training, each with what a person does to pass them.
GENERATOR = (
    "arguments code graph importer lowering ops paranoid passes pipeline reader scopes shapes structure validate"
)
READY = "training.goals.detection.ready"
DOORS = {
    ("training.tasks.detection", READY): "trains a detector with boxes: the part before its decoding is generated",
    ("training.goals.detection.head", READY): "the same",
    (
        "training.goals.detection.goal",
        "export.decoding",
    ): "the same: what the file's decoding does, for the run's record",
    ("training.goals.detection.head", "export.decoding"): "gives a detector other classes: can the file decode them?",
    (READY, "verify.graph"): "names a size that the detector takes",
    (READY, "verify.sizes"): "the same",
    ("training.teacher", "training.onnx_teacher"): "names an ONNX file as the teacher",
    ("training.finetune.packed", "export.places"): "trains --lora of a quantised file: weights stay its integers",
}


def generating(module: str) -> set[str]:
    """The modules of the generator that the import of a module loads."""
    seen, todo = {module}, [module]
    while todo:
        todo += loads()[todo.pop()] - seen
        seen |= {*todo}
    return {name for name in seen if name.split(".")[1:2] and name.split(".")[1] in GENERATOR.split()}


def test_training_imports_the_generator_through_doors_only() -> None:
    behind = {f"onnxgen.{place}" for _, place in DOORS}
    training = [module for module in MODULES if module.startswith("onnxgen.training")]
    assert {module for module in training if generating(module)} == behind & {*training}
    late = {
        (module, used)
        for module in training
        for used in _ours(at_once(tree(MODULES[module]).body, late=True)) - loads()[module]
    }
    doors = {tuple(name.removeprefix("onnxgen.") for name in pair) for pair in late if generating(pair[1])}
    assert doors == DOORS.keys()


def test_a_run_loads_no_generator(tmp_path: Path) -> None:
    """Up to the first step of a run of a generated module."""
    generate(SMALL, tmp_path / "digits.py")
    code = (
        "import sys, lightning.pytorch\n"
        "import onnxgen.training\n"
        "from onnxgen.cli import run\n"
        "def fit(*_, **__):\n"
        "    print('loaded:', *(m for m in sys.modules if m.startswith('onnxgen.')))\n"
        "    sys.exit()\n"
        "lightning.pytorch.Trainer.fit = fit\n"
        "run(['train', *sys.argv[1:]])\n"
    )
    told = python(code, str(tmp_path / "digits.py"), "--data", "digits", "--out", str(tmp_path / "run"))
    loaded = next(line for line in told.splitlines() if line.startswith("loaded:")).split()[1:]
    assert "onnxgen.training.running" in loaded
    assert [module for module in loaded if module.split(".")[1] in GENERATOR.split()] == []


def test_every_room_has_a_floor() -> None:
    here = {
        path.stem for path in (ROOT / "onnxgen").iterdir() if path.suffix == ".py" or (path / "__init__.py").is_file()
    }
    assert here - {"__init__", *APART} == {room for rooms in FLOORS for room in rooms}
    loose = sorted(path.name for path in (ROOT / "onnxgen").glob("*.py"))
    assert len(loose) <= 9, loose


def test_what_checks_the_passes_shares_no_code_with_them() -> None:
    """The checker may use: queries about a graph and its names, the facts of `propagate`, the table of gradients, the
    registered operators with their declared facts, and the code that writes weights back for an export."""
    checks = [path for path in OURS if path.parent.name == "paranoid"]
    found = {m for path in checks for m in imported(path) if m.startswith("onnxgen.")}
    shared = {
        f"onnxgen.graph.{name}"
        for name in (
            "annotations",
            "catalogue",
            "domains",
            "element_types",
            "gradients",
            "nodes",
            "operators",
            "traits",
        )
    }
    shared |= {f"onnxgen.weights.{name}" for name in ("dequantised", "provenance", "stored")}
    shared |= {"onnxgen.errors", "onnxgen.options", "onnxgen.record.way_back", "onnxgen.scopes.origin"}
    shared |= {f"onnxgen.shapes{name}" for name in ("", ".dims", ".info")}
    assert checks and {m for m in found if not m.startswith("onnxgen.paranoid")} <= shared


@cache
def imported(path: Path) -> tuple[str, ...]:
    """The modules that a file imports."""
    return tuple(imports(nodes(path)))


def imports(module: Iterable[ast.AST]) -> Iterator[str]:
    """Yield the modules that a module of these nodes imports, anywhere in it, unless only for a type checker."""
    skipped = set()
    for node in module:
        if isinstance(node, ast.If) and _for_types(node):
            skipped |= {id(inner) for inner in ast.walk(node)}
        if id(node) in skipped:
            continue
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module


def test_nothing_uses_the_optimizer_that_folds() -> None:
    """onnxscript's optimizer and rewriter fold BatchNorm and drop Dropout, so onnxgen must not use them."""
    users = [name(p) for p in OURS for m in imported(p) if m.split(".")[0] == "onnxscript"]
    assert users == []


def test_generated_code_imports_torch_and_the_standard_library_only(tmp_path: Path) -> None:
    out = tmp_path / "model.py"
    generate(SAMPLE, out)
    found = {module.split(".")[0] for module in imports(ast.walk(tree(out)))}
    standard = {"pathlib", "functools", "math", "json", "base64", "re", "typing", "warnings"}
    assert found <= standard | {"torch", "safetensors", "numpy"}
    assert {"torch", "safetensors"} <= found


def test_templates_and_helpers_never_import_onnxgen() -> None:
    for path in [*HELPERS, *TEMPLATES]:
        found = re.findall(r"^\s*(?:from|import) onnxgen\S*.*", path.read_text(encoding="utf-8"), re.MULTILINE)
        inside = "from onnxgen.helpers."  # one helper calls another: both are copied
        assert [line for line in found if not line.startswith(inside)] == [], name(path)


# ---- who knows what --------------------------------------------------------------------------------------------------


def test_the_framework_names_no_operator() -> None:
    """Only `Constant` may be named everywhere: it is a way to store a tensor."""
    known = {schema.name for schema in onnx.defs.get_all_schemas()} | {n for _, n in operators()}
    found = {}
    for path in FRAMEWORK:
        texts = {n.value for n in nodes(path) if isinstance(n, ast.Constant) and isinstance(n.value, str)}
        found[name(path)] = texts & known - {"Constant"}
    assert {path: names for path, names in found.items() if names} == {}


def test_facts_of_nodes_and_values_are_noted_in_one_place() -> None:
    """`meta` takes any key and value, so only `graph/annotations.py` uses it. There each fact has a type."""
    found = {
        name(path) for path in OURS for node in nodes(path) if isinstance(node, ast.Attribute) and node.attr == "meta"
    }
    found -= {
        "onnxgen/ship/targets/torch_files.py",
        "onnxgen/canonical/capture.py",
        "onnxgen/canonical/places.py",
    }  # of the nodes of torch.export
    assert found == {"onnxgen/graph/annotations.py"}


def test_every_fact_is_noted_and_read() -> None:
    facts = {name for name, value in vars(annotations).items() if isinstance(value, annotations.Annotation)}
    used = {
        (node.value.id, node.attr)
        for path in OURS
        for node in nodes(path)
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id in facts
    }
    assert {name for name, way in used if way in ("set", "copy")} == facts
    assert {name for name, way in used if way in ("get", "has")} == facts


def test_operators_see_a_builder_and_not_the_network() -> None:
    """The network's state is private to `Builder`, and only `lower` makes builders."""
    calls = ((path, n) for path in OURS for n in nodes(path) if isinstance(n, ast.Call))
    makers = {name(p) for p, n in calls if "Builder" in (getattr(n.func, "id", ""), getattr(n.func, "attr", ""))}
    assert makers == {"onnxgen/lowering/lower.py"}
    networks = {
        name(path)
        for path in OURS
        for node in nodes(path)
        if isinstance(node, ast.Attribute) and node.attr in ("lowering", "_lowering")
    }
    assert networks == {"onnxgen/lowering/builder.py"}


def guesses(module: ast.Module) -> Iterator[str]:
    """Yield the code that unparses a tree to search its text, or to compare it with a literal text."""

    def is_printed(node: ast.AST) -> bool:
        found = node.func if isinstance(node, ast.Call) else None
        return isinstance(found, ast.Attribute) and found.attr == "unparse" and ast.unparse(found) == "ast.unparse"

    for node in ast.walk(module):
        if isinstance(node, ast.Attribute) and is_printed(node.value):
            yield ast.unparse(node)
        elif isinstance(node, ast.Compare) and any(is_printed(part) for part in (node.left, *node.comparators)):
            if any(not is_printed(part) for part in (node.left, *node.comparators)):
                yield ast.unparse(node)
        elif (
            isinstance(node, ast.Call) and any(map(is_printed, node.args)) and ast.unparse(node.func).startswith("re.")
        ):
            yield ast.unparse(node)


def test_what_a_tree_is_is_not_guessed_from_its_text() -> None:
    """`code/torch_api.py` tells which layer or function a tree calls, and `Member.layer` which layer a member is."""
    found = {name(path): list(guesses(tree(path))) for path in OURS}
    assert not {path: lines for path, lines in found.items() if lines}
    code = "ast.unparse(b).startswith('nn.'), ast.unparse(b) == '1', re.match('1', ast.unparse(b))"
    assert len(list(guesses(ast.parse(f"{code}, ast.unparse(a) == ast.unparse(b)")))) == 3


def test_operators_are_found_by_that_test() -> None:
    """`test_the_framework_names_no_operator` can fail: it would find the operators that the families name."""
    texts = {n.value for n in nodes(ROOT / "onnxgen/ops/linear.py") if isinstance(n, ast.Constant)}
    assert {"MatMul", "Gemm"} <= texts


def called(module: ast.Module) -> Iterator[str]:
    """Yield the bare functions that operators' pieces of code call: `helper(x)`, or `b.call("helper", x)`."""
    for node in ast.walk(module):
        if not isinstance(node, ast.Call) or not node.args:
            continue
        name, text = ast.unparse(node.func), node.args[0]
        if not isinstance(text, ast.Constant) or not isinstance(text.value, str):
            continue
        if name in ("b.call", "call") and text.value.isidentifier():
            yield text.value
        elif name in ("b", "quote"):
            piece = ast.walk(ast.parse(text.value, mode="eval"))
            yield from (c.func.id for c in piece if isinstance(c, ast.Call) and isinstance(c.func, ast.Name))


def test_what_operators_call_exists() -> None:
    """A call of a missing helper would be a NameError in the generated file."""
    known = {*helper_names(), *dir(builtins), "m"}  # m: a submodule, given by value
    found = {name(path): set(called(tree(path))) - known for path in (ROOT / "onnxgen" / "ops").glob("*.py")}
    assert {path: names for path, names in found.items() if names} == {}


def test_calls_are_found_by_that_test() -> None:
    code = "b('one(x)', x=x)\nb.call('two', x)\nb('x.three(four(y))')\nb.call('torch.cat', x)"
    assert set(called(ast.parse(code))) == {"one", "two", "four"}


# ---- the oldest torch ------------------------------------------------------------------------------------------------


def newer(text: str) -> list[str]:
    """Return the APIs in a text that DirectML's torch lacks."""
    return [api for api in NEWER_TORCH if re.search(rf"(?<![\w.]){re.escape(api)}\b", text)]


def test_one_torch_is_the_oldest() -> None:
    """In what is installed, in the sample, and on the pages."""
    installed = [ROOT / "pyproject.toml", ROOT / "samples" / "package" / "pyproject.toml"]
    pages = [ROOT / "docs" / "ARCHITECTURE.md", ROOT / "docs" / "SUPPORT.md"]
    said = [
        re.findall(r"(?<![\w-])torch ?>= ?([\d.]+\d)|torch ([\d.]+) is the oldest", path.read_text("utf-8"))
        for path in (*installed, *pages)
    ]
    found = [{*filter(None, (number for pair in pairs for number in pair))} for pairs in said]
    assert found[0] and found == [found[0]] * 4 and found[0] != {DIRECTML_TORCH}
    assert f"needs torch\n{DIRECTML_TORCH}.1" in pages[1].read_text("utf-8")


def test_generated_code_runs_on_the_oldest_torch() -> None:
    """Neither templates and helpers nor the operators' pieces of code use newer APIs.

    `test_real_models.py` checks the same for modules generated from real files.
    """
    paths = [*TEMPLATES, *HELPERS, *(ROOT / "onnxgen").glob("ops/*.py"), *(ROOT / "onnxgen").glob("microsoft/*.py")]
    found = {name(path): newer(path.read_text(encoding="utf-8")) for path in paths}
    assert {path: apis for path, apis in found.items() if apis} == {}


def test_newer_apis_are_found() -> None:
    assert newer("F.scaled_dot_product_attention(q, k, v, enable_gqa=True)") == ["enable_gqa"]
    assert newer("torch.accelerator.synchronize()") == ["torch.accelerator"]
    assert newer("F.rms_norm(x, (8,))") == []


# ---- tasks -----------------------------------------------------------------------------------------------------------

# Where tasks are named: cards, what the goals of each are made of, and what tells the purpose of a file. To rooms of
# the generator, an embedding is a layer.
CARDS = ("onnxgen/training/tasks/", "onnxgen/purpose/", "onnxgen/record/signature.py")
CARDS += tuple(f"onnxgen/{room}/" for room in GENERATOR.split())
GOALS = {"image-to-image": "images", "masked-language-model": "language", "language-model": "language"}
ELSEWHERE = 3  # files


def test_tasks_are_named_by_their_cards() -> None:
    """A task's name is a text of its own, or behind `--task`, or the name of a module that is imported."""
    cards = [path for path in OURS if name(path).startswith(CARDS[0]) and path.stem not in ("__init__", "card")]
    for task in (path.stem.replace("_", "-") for path in cards):
        own = f"onnxgen/training/goals/{GOALS.get(task, task)}"
        others = [path for path in OURS if not name(path).startswith((*CARDS, f"{own}.py", f"{own}/"))]
        found = [name(path) for path in others if _names_task(path, task)]
        assert len(found) <= ELSEWHERE, (task, found)


def _names_task(path: Path, task: str) -> bool:
    texts = [node.value for node in ast.walk(tree(path)) if isinstance(node, ast.Constant)]
    told = re.compile(rf"--task {task}(?![\w-])")
    if any(isinstance(text, str) and (text == task or told.search(text)) for text in texts):
        return True
    return any(f"training.goals.{task}." in f"{module}." for module in at_once(tree(path).body, late=True))


@pytest.mark.parametrize("room", ["data/fitting.py", "prepare.py"])
def test_data_is_fitted_and_runs_are_prepared_without_the_name_of_a_task(room: str) -> None:
    path = ROOT / "onnxgen" / "training" / room
    tasks = {path.stem.replace("_", "-") for path in (ROOT / "onnxgen" / "training" / "tasks").glob("*.py")}
    assert {task for task in tasks if _names_task(path, task)} == set()


# ---- size ------------------------------------------------------------------------------------------------------------


def test_files_are_short() -> None:
    lines = {name(path): len(path.read_text(encoding="utf-8").splitlines()) for path in OURS}
    assert {path: count for path, count in lines.items() if count > FILE_LINES} == {}


# Technical terms that nobody uses to name a size or a layer's variable.
TERMS = frozenset("dft distinct extreme float4 ordered probit requantize resize stft unordered".split())


def test_helpers_take_no_name_that_a_person_would_choose() -> None:
    """No local variable or argument of a generated file has a helper's name. Those do not begin with a capital."""
    assert sorted(name for name in helper_names() - TERMS if "_" not in name and not name[0].isupper()) == []


# ---- the same input makes the same bytes -----------------------------------------------------------------------------


def format_again(source: str) -> str:
    return black.format_str(source, mode=black.Mode(line_length=LINE_LENGTH))


def test_two_processes_write_the_same_bytes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """This one, and another in which sets have another order."""
    code = "import sys\nfrom onnxgen import Options, generate\n"
    for name, options in {"plain": "", "flat": "flat=True", "embed": "embed=True", "half": "dtype='float16'"}.items():
        code += f"generate(sys.argv[1], sys.argv[2] + '/{name}.py', Options({options}))\n"
    here, there = tmp_path / "here", tmp_path / "there"
    for folder in (here, there):
        folder.mkdir()
    monkeypatch.setattr(sys, "argv", ["-c", str(SMALL), str(here)])
    exec(code, {})
    python(code, str(SMALL), str(there), PYTHONHASHSEED="2" if os.environ.get("PYTHONHASHSEED") == "1" else "1")
    first, second = ({p.name: p.read_bytes() for p in folder.iterdir()} for folder in (here, there))
    assert first == second
    sources = [made.decode() for name, made in first.items() if name.endswith(".py")]
    assert len(set(sources)) == 4
    for source in sources:
        assert source.startswith('"""') and format_again(source) == source
        assert not re.search(r"\d{4}-\d\d-\d\d|/home/|/tmp/", source), "a time or a path"


# ---- folders of tests ------------------------------------------------------------------------------------------------


def test_tests_lie_in_rooms() -> None:
    """Only tests of the whole project lie in tests/ itself."""
    loose = {path.name for path in (ROOT / "tests").glob("*.py")}
    assert loose == {"__init__.py", "conftest.py", "test_rules.py", "test_tiers.py", "test_wheel.py"}
