"""Templates of one's own: what docs/TEMPLATES.md promises, and the sample that makes a LightningModule."""

from __future__ import annotations

import ast
import importlib.util
import re
import textwrap
from pathlib import Path
from typing import Any

import onnxruntime
import pytest
import torch

from onnxgen import OnnxgenError, Options, verify
from onnxgen.cli import run
from onnxgen.code import render
from onnxgen.code.class_tree import ClassSource, ClassTree, Meant
from onnxgen.code.copied import Definition, defined_name
from onnxgen.pipeline import build, check, generate
from tests.conftest import ROOT
from tests.support.real import imported

SAMPLE = ROOT / "samples" / "lightning_module"
MNIST = ROOT / "samples" / "mnist" / "mnist.onnx"
PAGE = (ROOT / "docs" / "TEMPLATES.md").read_text(encoding="utf-8")
OURS = ROOT / "templates"
EXTENDS = '{% extends "onnxgen/module.py.jinja" %}\n'


def own(folder: Path, text: str, name: str = "module.py.jinja") -> Options:
    (folder / "mine").mkdir(exist_ok=True)
    (folder / "mine" / name).write_text(text, encoding="utf-8")
    return Options(templates=folder / "mine")


def rows(title: str) -> set[str]:
    """The names in the first column of the tables under a heading."""
    section = PAGE.split(f"## {title}")[1].split("\n## ")[0]
    return {name for row in re.findall(r"^\| (`.*?) \|", section, re.MULTILINE) for name in re.findall(r"`(.+?)`", row)}


def test_every_template_block_and_variable_is_on_the_page(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    seen: dict[str, Any] = {}
    monkeypatch.setattr(
        render, "_rendered", lambda values, templates: seen.update(values) or (_ for _ in ()).throw(KeyError)
    )
    with pytest.raises(KeyError):
        build(MNIST, Options(), tmp_path / "model.py")
    public = {name for name, value in vars(ClassSource).items() if isinstance(value, property)}
    attributes = {*ClassSource.__dataclass_fields__, *public} - {"ties"}  # the root's are the variable `ties`
    assert rows("Variables") == {*seen, *attributes}
    templates = {path.name for path in OURS.glob("*.jinja")}
    assert all(f"| `{name}` |" in PAGE for name in templates)
    text = "".join(path.read_text(encoding="utf-8") for path in OURS.glob("*.jinja"))
    assert rows("Blocks of `module.py.jinja`") == set(re.findall(r"{% block (\w+)", text))


def test_blocks(tmp_path: Path) -> None:
    """Each stands where the page says, and the rest is as without them."""
    text = EXTENDS + "".join(
        f"{{% block {name} %}}\n{code}\n{{% endblock %}}\n"
        for name, code in {
            "imports": "import logging",
            "before_classes": "log = logging.getLogger(__name__)",
            "methods": "{% if is_root %}\n    def seen(self) -> str:\n        return '{{ class.name }}'\n{% endif %}",
            "after_classes": "AUTHOR = 'me'",
        }.items()
    )
    text += "{% block base %}{{ 'torch.nn.Module' if is_root else super() }}{% endblock %}"
    options = own(tmp_path, text)
    generate(MNIST, tmp_path / "model.py", options)
    plain = ast.parse(build(MNIST, Options(), tmp_path / "model.py").source)
    made = ast.parse((tmp_path / "model.py").read_text())
    added = {ast.unparse(n) for n in made.body} - {
        ast.unparse(n) for n in plain.body if not isinstance(n, ast.ClassDef)
    }
    (network,) = [n for n in made.body if isinstance(n, ast.ClassDef)]
    (before,) = [n for n in plain.body if isinstance(n, ast.ClassDef)]
    assert [ast.unparse(b) for b in network.bases] == ["torch.nn.Module"]
    assert [ast.unparse(n) for n in network.body[:-1]] == [ast.unparse(n) for n in before.body]
    assert {"import logging", "log = logging.getLogger(__name__)", "AUTHOR = 'me'"} <= added
    module = imported(tmp_path / "model.py")
    assert module.Model().seen() == "Mnist" and module.log.name == module.__name__
    assert verify(MNIST, tmp_path / "model.py", options=options, runs=1).agrees


def test_an_included_template(tmp_path: Path) -> None:
    """Only one of the three is replaced; ours include it."""
    generate(MNIST, tmp_path / "model.py", own(tmp_path, "MINE = 1\n", "load_weights.py.jinja"))
    assert imported(tmp_path / "model.py").MINE == 1


def test_a_changed_template_makes_a_file_stale(tmp_path: Path) -> None:
    options, out = own(tmp_path, EXTENDS), tmp_path / "model.py"
    generate(MNIST, out, options)
    assert out.read_text() == build(MNIST, Options(), out).source and check(MNIST, out, options)
    own(tmp_path, EXTENDS + "{% block after_classes %}\nMINE = 1\n{% endblock %}")
    assert not check(MNIST, out, options)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (EXTENDS + "{% block base %}", r"TemplateSyntaxError: .*\(module.py.jinja, line 2\)"),
        (EXTENDS + "{% block imports %}\n\n{{ no.thing }}{% endblock %}", r"UndefinedError: .*jinja, line 4\)"),
        (EXTENDS + "{% block imports %}{{ 1 / 0 }}{% endblock %}", r"ZeroDivisionError: .*\(module.py.jinja, line 2\)"),
        ('{% extends "onnxgen/modul.py.jinja" %}', "TemplateNotFound: onnxgen/modul.py.jinja"),
        ('{% extends "module.py.jinja" %}', "RecursionError"),
        (EXTENDS + "{% block imports %}import import{% endblock %}", "do not make a Python file"),
        (EXTENDS + "{% block imports %}return 1{% endblock %}", r"do not make a Python file: .* \(line \d+\)$"),
        ("x = 1", "leave out FINGERPRINT -> keep "),
    ],
)  # fmt: skip
def test_errors(text: str, says: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """One line that says what and where; exit 2; nothing written."""
    own(tmp_path, text)
    out = tmp_path / "model.py"
    assert run([str(MNIST), "-o", str(out), "--templates", str(tmp_path / "mine")]) == 2
    err = capsys.readouterr().err
    assert re.search(says, err) and err.count("\n") == 1 and "bug" not in err and not out.exists()


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("{% for line in class.forward %}", "        print(1)\n{% for line in class.forward %}"),
        ("{% for line in class.init %}", "        self.own = 1\n{% for line in class.init %}"),
        ("super().__init__(", "super().__init__(*[], "),
        ("def forward", "def other"),
        ("class {{ class.name }}(", "class My{{ class.name }}("),
    ],
)
def test_what_is_onnxgens_stays(old: str, new: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A template adds to the methods, and changes none; a decorator is added."""
    text = (OURS / "module.py.jinja").read_text(encoding="utf-8")
    own(tmp_path, text.replace("    def forward", "    @torch.no_grad()\n    def forward"))
    args = [str(MNIST), "-o", str(tmp_path / "model.py"), "--templates", str(tmp_path / "mine")]
    assert old in text and run(args) == 0
    (tmp_path / "model.py").unlink()
    own(tmp_path, text.replace(old, new))
    assert run(args) == 2
    err = capsys.readouterr().err
    assert (
        re.search("templates in .* change text that they may only add to: .*TEMPLATES.md", err) and err.count("\n") == 1
    )
    assert not (tmp_path / "model.py").exists()


def test_a_folder_that_overrides_nothing(tmp_path: Path) -> None:
    options = own(tmp_path, EXTENDS, "modul.py.jinja")
    with pytest.raises(OnnxgenError, match="overrides one of onnxgen's -> they are .*module.py.jinja"):
        build(MNIST, options, tmp_path / "model.py")


@pytest.fixture
def lightning_file(tmp_path: Path) -> Path:
    generate(MNIST, tmp_path / "model.py", Options(templates=SAMPLE))
    return tmp_path / "model.py"


def test_the_sample(lightning_file: Path) -> None:
    """The network is a LightningModule; it and its weights are otherwise what they were."""
    made = ast.parse(lightning_file.read_text())
    (network,) = [n for n in made.body if isinstance(n, ast.ClassDef)]
    assert [ast.unparse(b) for b in network.bases] == ["L.LightningModule"]
    methods = [n.name for n in network.body if isinstance(n, ast.FunctionDef)]
    assert methods == ["__init__", "forward", "training_step", "configure_optimizers"]
    assert "import lightning as L" in map(ast.unparse, made.body)
    plain = build(MNIST, Options(), lightning_file)
    (before,) = [n for n in ast.parse(plain.source).body if isinstance(n, ast.ClassDef)]
    assert [ast.unparse(n) for n in network.body[:2]] == [ast.unparse(n) for n in before.body]


@pytest.mark.skipif(importlib.util.find_spec("lightning") is None, reason="lightning is not installed")
def test_the_sample_trains(lightning_file: Path, tmp_path: Path) -> None:
    """Outputs are onnxruntime's; a step of Lightning's trainer moves every parameter."""
    import lightning

    model = imported(lightning_file).Model.from_pretrained().eval()
    images = torch.rand(8, 1, 28, 28)
    (expected,) = onnxruntime.InferenceSession(MNIST).run(None, {"image": images.numpy()})
    torch.testing.assert_close(model(images).detach(), torch.from_numpy(expected), rtol=1e-3, atol=1e-5)
    before = {name: p.detach().clone() for name, p in model.named_parameters()}
    options = {"logger": False, "enable_checkpointing": False, "enable_progress_bar": False, "accelerator": "cpu"}
    trainer = lightning.Trainer(max_steps=1, default_root_dir=tmp_path, enable_model_summary=False, **options)
    data = torch.utils.data.TensorDataset(images, torch.arange(8))
    trainer.fit(model, torch.utils.data.DataLoader(data, batch_size=8))
    assert trainer.callback_metrics["train_loss"] > 0
    assert all(not torch.equal(p, before[name]) for name, p in model.named_parameters())


def test_what_a_signature_needs_is_copied_before_the_classes() -> None:
    """Annotations and defaults run with the class; what a body calls is found later."""
    names = {"kind": "x = inner", "default": "def default(x): return inner(x)", "inner": "def inner(x): return x"}
    names |= {"chosen": "chosen = 1", "result": "class result: pass", "late": "def late(x): return x"}
    copies = {name: Definition(text, ast.parse(text).body[0]) for name, text in names.items()}
    method = ast.parse("def own(self, x: kind, f=default, *, g=chosen) -> result: return late(x)").body[0]
    assert isinstance(method, ast.FunctionDef)
    net = ClassTree("Net", body=[ast.Return(ast.Name("x", ast.Load()))], inputs=[ast.arg("x")], own=[method])
    assert render._needed_first(Meant([net], copies)) == {"kind", "default", "inner", "chosen", "result"}


def test_the_docstring_of_a_class_is_as_black_leaves_it() -> None:
    """Of every length: no line is longer than the others of the file, and no word is lost."""
    for count in range(1, 60):
        about, paths = " ".join(["word"] * count), ["encoder.first", "decoder.second", "head"]
        source = ClassSource("Net", paths=paths, about=about)
        text = f'class Net:\n    """{source.doc}"""\n\n    x = 1\n'
        assert render.formatted(text) == text and max(map(len, text.splitlines())) <= render.LINE_LENGTH
        assert " ".join(source.doc.split()) == f"{about}."


def test_copied_layers_stand_before_the_classes_that_use_them() -> None:
    """With what runs where they are defined; what their methods call may stand behind."""
    net = ClassTree("Net", body=[ast.Return(ast.Name("x", ast.Load()))], inputs=[ast.arg("x")])
    text = """
        def later(): ...
        def usual(): ...
        class Base(nn.Linear): ...
        class Layer(Base, nn.Module):
            def forward(self, x, n=usual()): return later()
        class Mode(TorchFunctionMode): ...
    """
    found = ast.parse(textwrap.dedent(text)).body
    copies = {defined_name(node): Definition("", node) for node in found}
    assert render._needed_first(Meant([net], copies)) == {"Base", "Layer", "usual"}
