"""Names are safe, readable and unique, whatever the text."""

from __future__ import annotations

import builtins
import keyword

import pytest

from onnxgen.common.names import (
    MODULE_ATTRIBUTES,
    RESERVED,
    Namer,
    class_name,
    function_name,
    identifier,
    legible,
    module_part,
    network_name,
    printable,
    sentence,
    singular,
)
from onnxgen.common.paths import helper_files, templates_dir
from onnxgen.errors import OnnxgenError
from tests.support import forked

NASTY = [
    "",
    " ",
    "a b",
    "a.b/c:0",
    "'quoted'",
    '"); import os; os.system("x") #',
    "line\nbreak\r\x00\x1b[31m",
    "\u2028\u202e\u200b",
    "日本語",
    "ñandú",
    "𝒻𝑜𝓇",
    "ﬁnal",
    "²",
    "٣",
    "1abc",
    "__class__",
    "__init__",
    "__mangled",
    "_",
    "__",
    "___",
    "None",
    "none",
    "True",
    "print",
    "match",
    "case",
    "self.forward()",
    "{{ jinja }}",
    "{% raw %}",
    "\\",
    "x" * 70_000,
    "é" * 70_000,
    *keyword.kwlist,
    *keyword.softkwlist,
    "\ud800",
]


@pytest.mark.parametrize("text", NASTY, ids=lambda t: ascii(t)[:20])
def test_safe_whatever_the_text(text: str) -> None:
    name = identifier(text)
    assert name.isidentifier() and name.isascii() and name == name.lower()
    assert not keyword.iskeyword(name) and not keyword.issoftkeyword(name) and not hasattr(builtins, name)
    assert not name.startswith("__") and len(name) <= 64
    part = module_part(text)
    assert part.isascii() and (part.isidentifier() or part.isdigit()) and len(part) < 130
    assert not keyword.iskeyword(part) and part not in MODULE_ATTRIBUTES and not part.startswith("__")
    kind = class_name(text)
    assert kind.isidentifier() and kind.isascii() and len(kind) <= 80
    assert not keyword.iskeyword(kind) and not hasattr(builtins, kind) and (kind == "Model" or kind not in RESERVED)
    shown = printable(text)
    assert len(shown) <= 80 and all(" " <= c <= "~" and c not in "'\"\\`" for c in shown)
    assert (identifier(text), module_part(text), class_name(text), printable(text)) == (name, part, kind, shown)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("input", "input_"),
        ("pixel_values", "pixel_values"),
        ("InputTensor", "input_tensor"),
        ("conv1/BatchNorm:0", "conv1_batch_norm_0"),
        ("44", "x_44"),
        ("ñandú", "nandu"),
        ("ﬁnal", "final"),
        ("日本語", "x"),
        ("class", "class_"),
        ("__init__", "init"),
        ("x.1", "x_1"),
    ],
)
def test_identifier(text: str, expected: str) -> None:
    assert identifier(text) == expected


def test_identifier_uses_its_fallback() -> None:
    assert identifier("", "value") == "value"
    assert identifier("3d", "value") == "value_3d"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("0", "0"),
        ("12", "12"),
        ("B_c", "B_c"),
        ("self", "self"),
        ("_blocks", "_blocks"),
        ("Conv2d_1a_3x3", "Conv2d_1a_3x3"),
        ("conv1_", "conv1_"),
        ("lambda", "lambda_"),
        ("type", "type_"),
        ("training", "training_"),
        ("_modules", "_modules_"),
        ("layer one", "layer_one"),
        ("__secret", "secret"),
        ("²", "part_2"),
        ("3x3", "part_3x3"),
    ],
)
def test_module_part_keeps_what_it_can(text: str, expected: str) -> None:
    assert module_part(text) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("version-RFB-320_simplified", "VersionRFB320Simplified"),
        ("mnist", "Mnist"),
        ("ResNet", "ResNet"),
        ("model", "Model"),
        ("320net", "Model320net"),
        ("none", "NoneModel"),
        ("exception", "ExceptionModel"),
        ("tensor", "TensorModel"),
        ("", "Model"),
    ],
)
def test_class_name(text: str, expected: str) -> None:
    assert class_name(text) == expected


@pytest.mark.parametrize(
    ("network", "expected"),
    [
        ("ResNet18", "resnet18"),
        ("ViT", "vit"),
        ("ViTTiny", "vit_tiny"),
        ("BiLSTMTagger", "bi_lstm_tagger"),
        ("MnistCNN", "mnist_cnn"),
        ("TNet2", "tnet2"),
        ("PPOCRRec", "ppocr_rec"),
        ("ChPPOCRv4Rec", "ch_ppocrv4_rec"),
        ("Model320n", "model320n"),
    ],
)
def test_function_name(network: str, expected: str) -> None:
    assert function_name(network) == expected


@pytest.mark.parametrize(
    ("stem", "expected"),
    [
        ("resnet18", "ResNet18"),
        ("mnist_cnn", "MnistCNN"),
        ("unet_nearest", "UNetNearest"),
        ("my-resnet50-v1.5", "MyResNet50V15"),
        ("ResNET", "ResNET"),
        ("cnnet", "Cnnet"),
        ("mdn", "MDN"),
        ("ds_cnn", "DsCNN"),
        ("bilstm_tagger", "BiLSTMTagger"),
        ("pointnet", "PointNet"),
        ("tnet_2", "TNet2"),
        ("attn_pool", "AttnPool"),
        ("model", "Model"),
        ("", "Model"),
    ],
)
def test_network_name(stem: str, expected: str) -> None:
    assert network_name(stem) == expected


def test_namer_gives_each_name_once() -> None:
    namer = Namer({"x"})
    assert [namer.take(w) for w in ("x", "x", "y", "y_2", "y", "y", "input_", "input_")] == [
        "x_2",
        "x_3",
        "y",
        "y_2",
        "y_3",
        "y_4",
        "input_",
        "input_2",
    ]
    assert "y_4" in namer and "z" not in namer


def test_namer_is_linear() -> None:
    namer = Namer()
    names = [namer.take("x") for _ in range(50_000)]  # minutes, if every name were searched from 2
    assert len(set(names)) == len(names)


def test_printable_cuts() -> None:
    assert printable("a" * 81) == "a" * 77 + "..."
    assert printable("a" * 80) == "a" * 80
    assert printable("naïve 'x'\n") == "naive ?x??"


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("Kätzchen 'Ąß' \\ 猫", "Kätzchen 'Ąß' \\ 猫"),
        ("a\nb\tc\x1b[31m\u202e\ud800", "a?b?c?[31m??"),
        (b"caf\xc3\xa9\xff", "café\ufffd"),
        ("ä" * 81, "ä" * 77 + "..."),
    ],
)
def test_a_message_keeps_letters_of_any_language(text: str | bytes, shown: str) -> None:
    assert legible(text) == shown and len(shown) <= 80


def test_a_sentence_keeps_its_quotes() -> None:
    assert sentence("not 'naïve'\n\\ \x1b[31m") == "not 'naive'?? ?[31m"
    assert sentence("'" * 401) == "'" * 397 + "..."


def test_module_attributes_are_those_of_torch() -> None:
    pytest.importorskip("torch")
    # In a process of its own: other libraries (transformers) add to the class.
    code = "import torch; print(*dir(torch.nn.Module()))"
    found = forked.run(["-c", code]).stdout.split()
    assert "forward" in found and {name for name in found if not name.startswith("__")} - MODULE_ATTRIBUTES == set()


def test_own_files_are_found() -> None:
    assert (templates_dir() / "__init__.py").is_file()
    assert any(path.name == "__init__.py" for path in helper_files())


def test_missing_templates_are_said(monkeypatch: pytest.MonkeyPatch, tmp_path: object) -> None:
    monkeypatch.setattr("onnxgen.common.paths._HERE", tmp_path)
    with pytest.raises(OnnxgenError, match="install onnxgen again"):
        templates_dir()


@pytest.mark.parametrize(
    ("plural", "one"),
    [("layers", "layer"), ("lateral_convs", "lateral_conv"), ("multi_level_cls", "multi_level_cls")]
    + [("branches", "branch"), ("boxes", "box"), ("caches", "cache")]
    + [(word, word) for word in ("cls", "pos", "bias", "axis", "loss", "bus", "head")],
)
def test_only_plurals_have_a_singular(plural: str, one: str) -> None:
    assert singular(plural) == one
