"""Plugins that installed packages bring by the entry-point group `onnxgen.ops`."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import onnx
import pytest
from onnx import helper

from onnxgen import OnnxgenError, Options
from onnxgen.build_hooks.freshness import content_of
from onnxgen.build_hooks.settings import Entry
from onnxgen.cli import run as command
from onnxgen.common.cache import Cache
from onnxgen.graph.domains import imports_foreign, is_foreign
from onnxgen.pipeline import build
from tests.plugins.nets import SWISH, net, one, saved, written


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder that packages are installed in."""
    monkeypatch.chdir(tmp_path)
    site = tmp_path / "site"
    site.mkdir()
    monkeypatch.syspath_prepend(str(site))
    known = set(sys.modules)
    yield site
    for name in set(sys.modules) - known:
        if name.startswith("acme_"):
            del sys.modules[name]


def install(site: Path, module: str, text: str) -> None:
    written(site / f"{module}.py", text)
    info = site / f"{module}-1.0.dist-info"
    written(info / "METADATA", f"Metadata-Version: 2.1\nName: {module}\nVersion: 1.0\n")
    written(info / "entry_points.txt", f"[onnxgen.ops]\nacme = {module}\n")


def source(proto: onnx.ModelProto, *plugins: str) -> str:
    return build(saved(proto, Path("m.onnx")), Options(plugins=plugins), Path("m.py")).source


def test_it_counts_without_being_named(site: Path) -> None:
    with pytest.raises(OnnxgenError, match="not supported"):
        source(net())
    install(site, "acme_one", SWISH)
    assert "torch.sigmoid" in source(net())
    part = build(saved(net(), Path("m.onnx")), Options(outputs=("act2",)), Path("m.py")).source
    assert "act2  float32  [batch, 8]" in part, "its rule for shapes, too"


def test_what_is_named_wins(site: Path) -> None:
    install(site, "acme_one", SWISH)
    written(Path("ops.py"), SWISH.replace("torch.sigmoid", "torch.tanh"))
    assert "torch.tanh" in source(net(), "ops.py")


def test_it_changes_nothing_of_other_files(site: Path) -> None:
    """It is not even imported for a file that has only known domains; and a file's own function stands."""
    text = '\n\n@onnxgen.op("Relu")\ndef relu(b, X):\n    return b("-X", X=X)\n'
    install(site, "acme_one", SWISH + text)
    assert "F.relu" in source(one("Relu", domain="")) and "acme_one" not in sys.modules
    proto = net()
    body = [helper.make_node("Neg", ["x"], ["y"])]
    opsets = [helper.make_opsetid("", 17)]
    proto.functions.append(helper.make_function("com.acme", "Swish", ["x", "beta"], ["y"], body, opsets, ["alpha"]))
    assert "torch.sigmoid" not in source(proto)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("1 / 0\n", r"^entry point acme of acme_one: ZeroDivisionError: division by zero \("),
        ("", r"^entry point acme of acme_one: the plugin registers no operator -> "),
    ],
)
def test_a_bad_one_is_one_line(site: Path, text: str, said: str) -> None:
    install(site, "acme_one", text)
    with pytest.raises(OnnxgenError, match=said) as refused:
        source(net())
    assert len(refused.value.problems) == 1
    assert "F.relu" in source(one("Relu", domain=""))


def test_two_that_have_the_same(site: Path) -> None:
    install(site, "acme_one", SWISH)
    install(site, "acme_two", SWISH)
    with pytest.raises(OnnxgenError, match=r"acme_one and acme_two: com\.acme\.Swish is registered twice"):
        source(net())


def test_it_counts_for_a_key(site: Path) -> None:
    """Of files that may need it; and only the text of its module, not that it is installed, tells two apart."""
    foreign = Entry("models[0]", saved(net(), Path("net.onnx").absolute()), Path("net.py").absolute())
    plain = Entry("models[1]", saved(one("Relu", domain=""), Path("relu.onnx").absolute()), Path("r.py").absolute())

    def keys() -> list[str]:
        return [content_of(entry, Cache(Path("cache"))).key for entry in (foreign, plain)]

    before = keys()
    install(site, "acme_one", SWISH)
    with_it = keys()
    written(site / "acme_one.py", SWISH + "\n")
    changed = keys()
    assert len({before[0], with_it[0], changed[0]}) == 3 and before[1] == with_it[1] == changed[1]
    assert "acme_one" not in sys.modules


def test_ops_lists_it(site: Path, capsys: pytest.CaptureFixture[str]) -> None:
    install(site, "acme_one", SWISH)
    assert command(["ops"]) == 0
    (line,) = [line for line in capsys.readouterr().out.splitlines() if "com.acme" in line]
    assert line.split() == ["Swish", "com.acme", "from", "1", "acme_one"]


# ---- which domains a file imports ------------------------------------------------------------------------------------


def test_domains_are_read_as_onnx_does(tmp_path: Path) -> None:
    assert imports_foreign(saved(net(), tmp_path / "a.onnx"))
    proto = one("Relu", domain="")
    assert not imports_foreign(saved(proto, tmp_path / "c.onnx"))
    function = helper.make_function("com.microsoft", "F", ["x"], ["y"], [], [helper.make_opsetid("com.acme", 3)])
    proto.functions.append(function)
    assert imports_foreign(saved(proto, tmp_path / "d.onnx"))
    for text in (b"", b"no model", b"\x42", b"\x42\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff", bytes(range(256))):
        (tmp_path / "e.onnx").write_bytes(text)
        assert imports_foreign(tmp_path / "e.onnx") == (text != b"")


def test_domains_of_ours_are_known() -> None:
    from onnxgen.graph.operators import bodies, operators

    ours = {domain for domain, _ in operators()} | {domain for domain, _ in bodies()}
    assert not any(map(is_foreign, ours)) and is_foreign("com.acme")
    assert not any(is_foreign(schema.domain) for schema in onnx.defs.get_all_schemas())
