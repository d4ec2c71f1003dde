"""Building a project: what is written, what is left alone, and what is refused."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file

from onnxgen import pipeline
from onnxgen.build_hooks import freshness, making
from onnxgen.build_hooks.build import BuildError, Built, build, build_project, outputs
from onnxgen.build_hooks.settings import Entry, Project, read_project
from onnxgen.errors import EditedError, OnnxgenError
from onnxgen.options import Options
from tests.build_hooks.nets import net, weights
from tests.conftest import ROOT
from tests.support import forked

SETTINGS = '[[tool.onnxgen.models]]\nsource = "models/net.onnx"\noutput = "src/pkg/net.py"\n'
OTHER = '[[tool.onnxgen.models]]\nsource = "models/other.onnx"\noutput = "src/pkg/other.py"\n'


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "cache"
    monkeypatch.setenv("ONNXGEN_CACHE_DIR", str(folder))
    return folder


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A project with one model, whose weights lie beside the ONNX file."""
    return make(tmp_path / "project", SETTINGS)


def make(root: Path, settings: str) -> Path:
    net(root / "models/net.onnx", data="net.bin")
    net(root / "models/other.onnx", seed=7)
    (root / "src/pkg").mkdir(parents=True)
    (root / "src/pkg/__init__.py").write_text("raise ImportError('a build imports no package of its user')\n")
    (root / "pyproject.toml").write_text(settings)
    return root


def project(root: Path) -> Project:
    found = read_project(root)
    assert found is not None
    return found


def stored(sidecar: Path) -> np.ndarray:
    return load_file(sidecar)["fc.weight"]


def one(root: Path, **more: object) -> Built:
    (built,) = build_project(project(root), **more)  # type: ignore[arg-type]
    return built


def first(root: Path) -> Entry:
    return project(root).entries[0]


def tree(root: Path) -> dict[str, tuple[bytes, int]]:
    """Every file of a folder: its content, and when it was written."""
    files = [path for path in root.rglob("*") if path.is_file()]
    return {path.relative_to(root).as_posix(): (path.read_bytes(), path.stat().st_mtime_ns) for path in files}


@pytest.fixture
def generates_nothing(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[], None]]:
    """From its call on, a generation fails the test."""

    def never(*_: object) -> None:
        pytest.fail("it was generated")

    yield lambda: monkeypatch.setattr(pipeline, "build", never)


def edit(root: Path, name: str = "net") -> str:
    """What a person changes: the code of the module."""
    module = root / f"src/pkg/{name}.py"
    text = module.read_text()
    assert "return " in text
    module.write_text(text.replace("        return ", "        print(1)\n        return ", 1))
    return module.read_text()


def edit_the_width(root: Path) -> str:
    """Change the line that has the width of the layer, too: a network of another width is a conflict."""
    module = root / "src/pkg/net.py"
    text = edit(root).replace("0.02", "0.01")
    module.write_text(text)
    return text


# ---- in place --------------------------------------------------------------------------------------------------------


def test_a_build_writes_the_pair_and_the_next_does_nothing(root: Path, generates_nothing: Callable[[], None]) -> None:
    built = one(root)
    module, sidecar = root / "src/pkg/net.py", root / "src/pkg/net.safetensors"
    assert (built.status, built.files, built.note) == ("written", (module, sidecar), "")
    assert outputs(built.entry) == built.files
    assert f"\nBuild     {built.key}\n" in module.read_text()
    np.testing.assert_array_equal(stored(sidecar), weights(root / "models/net.onnx"))
    before = tree(root)
    generates_nothing()
    again = one(root)
    assert (again.status, again.files, again.key) == ("fresh", built.files, built.key)
    assert tree(root) == before


def test_only_the_docstring_is_more_than_what_is_generated(root: Path, tmp_path: Path) -> None:
    built = one(root)
    out = tmp_path / "net.py"
    pipeline.generate(root / "models/net.onnx", out)
    lines = built.files[0].read_text().splitlines()
    assert [line for line in lines if not line.startswith("Build ")] == out.read_text().splitlines()
    assert len(lines) == len(out.read_text().splitlines()) + 1


def test_times_do_not_count(root: Path, generates_nothing: Callable[[], None]) -> None:
    one(root)
    generates_nothing()
    for path in (root / "models").iterdir():
        os.utime(path, (1, 1))
    for path in (root / "src/pkg").iterdir():
        path.touch()
    assert one(root).status == "fresh"


@pytest.mark.parametrize("width", [4, 5], ids=["the same code", "other code"])
def test_what_changed_is_built(root: Path, width: int) -> None:
    one(root)
    net(root / "models/net.onnx", seed=1, width=width, data="net.bin")
    built = one(root)
    assert built.status == "written"
    np.testing.assert_array_equal(stored(built.files[1]), weights(root / "models/net.onnx"))
    assert one(root).status == "fresh"


def test_options_that_changed(root: Path) -> None:
    one(root)
    (root / "pyproject.toml").write_text(SETTINGS + 'class-name = "Other"\n')
    assert one(root).status == "written" and "class Other(" in (root / "src/pkg/net.py").read_text()


def test_a_module_that_was_generated_by_hand(root: Path, generates_nothing: Callable[[], None]) -> None:
    """It is right already; it gets the line, so that the next build need not look, and keeps its weights."""
    (root / "pyproject.toml").write_text(OTHER)
    pipeline.generate(root / "models/other.onnx", root / "src/pkg/other.py")
    before = tree(root)
    built = one(root)
    changed = {name for name, content in tree(root).items() if before[name] != content}
    assert built.status == "written" and changed == {"src/pkg/other.py"}
    generates_nothing()
    assert one(root).status == "fresh"


def test_a_module_that_lacks_the_line_alone(root: Path, generates_nothing: Callable[[], None]) -> None:
    """However it is formatted: it is left as it is but for the line."""
    built = one(root)
    text = built.files[0].read_text()
    formatted = text.replace("(\n", "(  # a formatter was here\n", 1)
    built.files[0].write_text(formatted.replace(built.key, "0" * 64))
    before = tree(root)
    assert one(root).status == "written"
    assert built.files[0].read_text() == formatted
    assert tree(root)["src/pkg/net.safetensors"] == before["src/pkg/net.safetensors"]
    generates_nothing()
    assert one(root).status == "fresh"


def test_by_hand_after_a_build(root: Path) -> None:
    """`onnxgen MODEL` and `--check` know a pair that a build wrote, external data or not."""
    module, _ = one(root).files
    before = tree(root)
    assert pipeline.check(root / "models/net.onnx", module)
    assert pipeline.generate(root / "models/net.onnx", module).report.status == "fresh"
    assert tree(root) == before


def test_folders_are_made(root: Path) -> None:
    (root / "pyproject.toml").write_text(SETTINGS.replace("pkg/", "new/deep/") + 'weights = "src/data/net.st"\n')
    assert one(root).files == (root / "src/new/deep/net.py", root / "src/data/net.st")
    assert one(root).status == "fresh"


@pytest.mark.parametrize("key", ["output", "weights"])
def test_a_folder_that_can_not_be_made_is_that_of_its_key(root: Path, key: str) -> None:
    """A file lies in its place."""
    (root / "src/file").write_text("")
    names = {"output": "src/pkg/net.py", "weights": "src/net.st", key: "src/file/net.py"}
    (root / "pyproject.toml").write_text(
        SETTINGS.replace("src/pkg/net.py", names["output"]) + f'weights = "{names["weights"]}"\n'
    )
    with pytest.raises(BuildError, match=rf"models\[0\]\.{key}: the folder src/file can't be made: "):
        one(root)


def test_a_source_that_changes_while_it_is_read(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The module never says that it is of a content that it is not of."""
    real, seeds = pipeline.build, iter([5])

    def slow(path: Path, *more: object) -> object:
        for seed in seeds:
            net(path, seed=seed, width=5, data="net.bin")
        return real(path, *more)  # type: ignore[arg-type]

    monkeypatch.setattr(pipeline, "build", slow)
    built = one(root)
    np.testing.assert_array_equal(stored(built.files[1]), weights(root / "models/net.onnx"))
    assert one(root).status == "fresh"
    net(root / "models/net.onnx", seed=1, data="net.bin")
    seeds = iter(range(100, 200))
    monkeypatch.setattr(
        pipeline, "build", lambda path, *more: (net(path, next(seeds), data="net.bin"), real(path, *more))[1]
    )
    with pytest.raises(BuildError, match=r"models\[0\]\.source: models/net\.onnx changed while it was read"):
        one(root)


# ---- edited by hand --------------------------------------------------------------------------------------------------


def test_edits_are_kept_silently(root: Path, generates_nothing: Callable[[], None]) -> None:
    one(root)
    edit(root)
    before = tree(root)
    generates_nothing()
    assert one(root).status == "fresh" and one(root, check=True).status == "fresh"
    assert tree(root) == before


def test_edits_are_kept_when_onnxgen_is_newer(
    root: Path, monkeypatch: pytest.MonkeyPatch, generates_nothing: Callable[[], None]
) -> None:
    """Its source is the same; what is generated is made anew by the newer one."""
    (root / "pyproject.toml").write_text(SETTINGS + OTHER)
    old = build_project(project(root))
    edit(root)
    before = tree(root)
    monkeypatch.setattr(freshness, "__version__", "9.9")
    kept, written = build_project(project(root))
    assert (kept.status, written.status) == ("kept", "written")
    assert kept.key != old[0].key and kept.key[:32] == old[0].key[:32]
    after = tree(root)
    assert {name for name in after if after[name] != before[name]} == {"src/pkg/other.py"}
    generates_nothing()
    assert [built.status for built in build_project(project(root))] == ["fresh", "fresh"]


def test_edits_of_the_header(root: Path, generates_nothing: Callable[[], None]) -> None:
    """Who removes the docstring has the module compared with what would be generated, once."""
    built = one(root)
    text = edit(root)
    built.files[0].write_text(text[text.index('"""', 3) + 3 :])
    before = tree(root)
    assert one(root, check=True).status == "kept"
    assert one(root).status in ("kept", "fresh")
    assert tree(root) == before
    generates_nothing()
    assert one(root).status == "fresh"


@pytest.mark.parametrize("what", ["source", "options"])
def test_edited_and_stale(root: Path, what: str) -> None:
    """The error has the head of the diff; module and sidecar stay, and the merge with its conflict lies beside."""
    one(root)
    text = edit_the_width(root)
    before = tree(root)
    if what == "options":
        (root / "pyproject.toml").write_text(SETTINGS + "annotate = true\nflat = true\n")
    else:
        net(root / "models/net.onnx", seed=1, width=5, data="net.bin")
    with pytest.raises(BuildError) as refused:
        one(root)
    (problem,) = refused.value.problems
    assert refused.value.exit_code == EditedError.exit_code == 3 and refused.value.built == ()
    assert problem.what.startswith("pyproject.toml: tool.onnxgen.models[0].output: ")
    assert "was edited by hand, and" in problem.what and "net.py.new is the merge of both, with " in problem.what
    assert "--- net.py\n+++ net.py.new\n@@" in problem.help
    after = tree(root)
    assert all(after[name] == before[name] for name in ("src/pkg/net.py", "src/pkg/net.safetensors"))
    assert (root / "src/pkg/net.py").read_text() == text and (root / "src/pkg/net.py.new").is_file()
    assert one(root, force=True).status == "written" and one(root).status == "fresh"


@pytest.mark.parametrize("what", ["source", "options", "weights alone", "header gone"])
def test_edits_are_merged(root: Path, what: str) -> None:
    """What a build writes then is fresh for every build after it."""
    built = one(root)
    text = edit(root)
    if what == "header gone":
        text = text[text.index('"""', 3) + 3 :]
        built.files[0].write_text(text)
    if what == "options":
        (root / "pyproject.toml").write_text(SETTINGS + 'class-name = "Other"\n')
    else:
        net(root / "models/net.onnx", seed=1, width=5 if what == "source" else 4, data="net.bin")
    before = tree(root)
    assert one(root, check=True).status == "stale" and tree(root) == before
    built = one(root)
    assert built.status == "merged" and "        print(1)\n" in built.files[0].read_text()
    assert np.array_equal(stored(built.files[1]), weights(root / "models/net.onnx"))
    assert (f"Build     {built.key}" in built.files[0].read_text()) == (what != "header gone")
    before = tree(root)
    assert one(root, check=True).status == "fresh" and one(root).status == "fresh" and tree(root) == before


def test_edits_that_were_brought_up_to_date(root: Path) -> None:
    """Who put the edits into what lay beside has said all there is to say: the weights follow."""
    one(root)
    edit_the_width(root)
    net(root / "models/net.onnx", seed=1, width=5, data="net.bin")
    with pytest.raises(BuildError):
        one(root)
    merged = (root / "src/pkg/net.py.new").read_text()
    (root / "src/pkg/net.py.new").unlink()
    text = re.sub(r"<<<<<<<.*?=======\n(.*?)>>>>>>> generated now\n", r"\1", merged, flags=re.DOTALL)
    (root / "src/pkg/net.py").write_text(text)
    text = edit(root)
    assert one(root, check=True).status == "stale"
    built = one(root)
    assert built.status == "kept" and built.files[0].read_text() == text
    assert stored(built.files[1]).shape == weights(root / "models/net.onnx").shape
    assert one(root).status == "fresh"


def test_edited_and_its_sidecar_lost(root: Path) -> None:
    """As in a fresh checkout, where git has the edited module and not its weights."""
    built = one(root)
    content = built.files[1].read_bytes()
    text = edit(root)
    built.files[1].unlink()
    again = one(root)
    assert (again.status, again.files) == ("kept", built.files)
    assert built.files[1].read_bytes() == content and built.files[0].read_text() == text
    assert one(root).status == "fresh"


def test_edited_and_generated_by_hand(root: Path, generates_nothing: Callable[[], None]) -> None:
    """Its sidecar lacks what a build records of external data, and nothing else."""
    module = root / "src/pkg/net.py"
    pipeline.generate(root / "models/net.onnx", module)
    text = edit(root)
    assert one(root).status == "kept" and module.read_text() == text
    generates_nothing()
    assert one(root).status == "fresh"


def test_a_file_of_a_person(root: Path) -> None:
    module = root / "src/pkg/net.py"
    module.write_text("print('mine')\n")
    with pytest.raises(BuildError, match="was not written by onnxgen") as refused:
        one(root)
    assert refused.value.exit_code == 3 and module.read_text() == "print('mine')\n"
    assert not module.with_suffix(".safetensors").exists()


# ---- adopted ---------------------------------------------------------------------------------------------------------

MINE = SETTINGS + 'edited = "mine"\n'


def test_an_adopted_module_is_never_regenerated(root: Path, generates_nothing: Callable[[], None]) -> None:
    (root / "pyproject.toml").write_text(MINE)
    assert one(root).status == "written", "there was none"
    edit(root)
    net(root / "models/net.onnx", seed=1, width=5, data="net.bin")
    before = tree(root)
    generates_nothing()
    for more in ({}, {"force": True}, {"check": True}):
        assert one(root, **more).status == "kept"
    (root / "models/net.onnx").write_bytes(b"broken")
    assert one(root).status == "kept"
    assert tree(root) == {**before, "models/net.onnx": tree(root)["models/net.onnx"]}


def test_an_adopted_module_whose_source_is_broken(root: Path) -> None:
    (root / "pyproject.toml").write_text(SETTINGS + 'edited = "mine"\n')
    module, sidecar = one(root).files
    (root / "models/net.bin").unlink()
    assert one(root).status == "kept" and one(root, check=True).status == "kept"
    there = one(root, to=root / "there", base=root / "src").files
    assert [file.read_bytes() for file in there] == [module.read_bytes(), sidecar.read_bytes()]
    (root / "models/net.onnx").write_bytes(b"this is no model")
    sidecar.unlink()
    built = one(root)
    assert built.status == "kept" and "its weights are missing, and its source gives none" in built.note


def test_an_adopted_module_whose_weights_can_not_be_written(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OnnxgenError("cannot write it: the disk is full")

    (root / "pyproject.toml").write_text(MINE)
    built = one(root)
    edit(root)
    built.files[1].unlink()
    monkeypatch.setattr(making, "write_pair", full)
    with pytest.raises(BuildError, match=r"^pyproject\.toml: tool\.onnxgen\.models\[0\]\.weights: .*the disk is full"):
        one(root)


def test_an_adopted_module_gets_the_weights_that_it_lacks(root: Path, generates_nothing: Callable[[], None]) -> None:
    (root / "pyproject.toml").write_text(MINE)
    built = one(root)
    text, content = edit(root), built.files[1].read_bytes()
    built.files[1].unlink()
    assert one(root, check=True).status == "stale"
    assert one(root).status == "kept" and built.files[1].read_bytes() == content
    built.files[1].unlink()
    net(root / "models/net.onnx", seed=1, width=5, data="net.bin")
    again = one(root)
    assert again.status == "kept" and again.files == built.files[:1]
    assert again.note == "src/pkg/net.py is adopted and its weights are missing, and those of its source do not fit"
    assert built.files[0].read_text() == text
    built.files[0].write_text("class Mine: ...\n")
    generates_nothing()
    assert (one(root).status, one(root).note) == ("kept", ""), "it reads no weights at all"


# ---- elsewhere -------------------------------------------------------------------------------------------------------


def content(folder: Path) -> dict[str, bytes]:
    return {name: text for name, (text, _) in tree(folder).items()}


def test_elsewhere_the_project_is_left_alone(root: Path, tmp_path: Path) -> None:
    before = tree(root)
    lib = tmp_path / "lib"
    built = build(first(root), to=lib, base=root / "src")
    assert (built.status, built.files) == ("written", (lib / "pkg/net.py", lib / "pkg/net.safetensors"))
    assert tree(root) == before
    assert build(first(root), to=lib, base=root / "src").status == "fresh"
    one(root)
    in_place = content(root)
    assert content(lib) == {name: in_place[f"src/{name}"] for name in ("pkg/net.py", "pkg/net.safetensors")}
    assert one(root, to=tmp_path / "tree").files[0] == tmp_path / "tree/src/pkg/net.py", "for the project's folder"


@pytest.mark.parametrize("how", ["fresh", "edited", "edited header", "adopted"])
def test_elsewhere_good_files_are_copied(
    root: Path, tmp_path: Path, how: str, generates_nothing: Callable[[], None]
) -> None:
    built = one(root)
    if how.startswith("edited"):
        text = edit(root)
        if how == "edited header":
            built.files[0].write_text(text[text.index('"""', 3) + 3 :])
            one(root)
    if how == "adopted":
        edit(root)
        (root / "pyproject.toml").write_text(MINE)
        net(root / "models/net.onnx", seed=1, width=5, data="net.bin")
    generates_nothing()
    lib, before = tmp_path / "lib", tree(root)
    assert build(first(root), to=lib, base=root / "src").status == "written"
    assert tree(root) == before
    expected = {name: text for name, text in content(root / "src").items() if "__init__" not in name}
    assert content(lib) == expected
    if how != "adopted":
        assert build(first(root), to=lib, base=root / "src").status == "fresh"


def test_elsewhere_edits_without_a_header_are_compared(root: Path, tmp_path: Path) -> None:
    built = one(root)
    text = edit(root)
    built.files[0].write_text(text[text.index('"""', 3) + 3 :])
    build(first(root), to=tmp_path / "lib", base=root / "src")
    assert content(tmp_path / "lib")["pkg/net.py"] == built.files[0].read_bytes()
    sidecar = built.files[1].read_bytes()
    built.files[1].unlink()
    assert build(first(root), to=tmp_path / "other", base=root / "src").status == "written"
    assert content(tmp_path / "other") == {"pkg/net.py": built.files[0].read_bytes(), "pkg/net.safetensors": sidecar}
    assert not built.files[1].exists()


def test_elsewhere_an_adopted_module_needs_no_weights(root: Path, tmp_path: Path) -> None:
    (root / "pyproject.toml").write_text(MINE)
    built = one(root)
    built.files[0].write_text("class Mine: ...\n")
    built.files[1].unlink()
    assert build(first(root), to=tmp_path / "lib", base=root / "src").note == ""
    assert content(tmp_path / "lib") == {"pkg/net.py": b"class Mine: ...\n"}


def test_elsewhere_edited_and_stale(root: Path, tmp_path: Path) -> None:
    one(root)
    edit(root)
    net(root / "models/net.onnx", seed=1, width=5, data="net.bin")
    before = tree(root)
    with pytest.raises(EditedError, match=r"^pyproject\.toml: tool\.onnxgen\.models\[0\]\.output: .*edited by hand"):
        build(first(root), to=tmp_path / "lib", base=root / "src")
    assert tree(root) == before and not (tmp_path / "lib").exists(), "a merge is made where a person sees it"
    assert build(first(root), to=tmp_path / "lib", base=root / "src", force=True).status == "written"
    assert tree(root) == before


def test_elsewhere_what_is_stale_is_replaced(root: Path, tmp_path: Path) -> None:
    """Of a build before: an older module, and a sidecar of another layout."""
    lib = tmp_path / "lib"
    (root / "pyproject.toml").write_text(SETTINGS.replace("net.onnx", "mnist.onnx") + "shard-size = 400_000\n")
    (root / "models/mnist.onnx").write_bytes((ROOT / "samples/mnist/mnist.onnx").read_bytes())
    assert len(build(first(root), to=lib, base=root / "src").files) == 5
    (root / "pyproject.toml").write_text(SETTINGS.replace("net.onnx", "mnist.onnx"))
    build(first(root), to=lib, base=root / "src")
    assert sorted(content(lib)) == ["pkg/net.py", "pkg/net.safetensors"]
    (root / "pyproject.toml").write_text(SETTINGS.replace("net.onnx", "mnist.onnx") + "shard-size = 400_000\n")
    one(root)
    build(first(root), to=lib, base=root / "src")
    assert len(content(lib)) == 5 and "pkg/net.safetensors" not in content(lib)


def test_elsewhere_weights_must_lie_in_the_package(root: Path, tmp_path: Path) -> None:
    (root / "pyproject.toml").write_text(SETTINGS + 'weights = "data/net.safetensors"\n')
    with pytest.raises(OnnxgenError, match=r"models\[0\]\.weights: data/net\.safetensors lies outside src"):
        build(first(root), to=tmp_path / "lib", base=root / "src")


# ---- a source tree that can't be written to --------------------------------------------------------------------------


def as_nobody(work: Callable[[], str]) -> str:
    """The result of `work` in a child that may write only where everybody may: root may write everywhere."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            if os.getuid() == 0:
                os.setgid(65534)
                os.setuid(65534)
            text = work()
        except BaseException as error:
            text = f"{type(error).__name__}: {error}"
        os.write(writing, text.encode())
        os._exit(0)
    os.close(writing)
    with os.fdopen(reading) as file:
        text = file.read()
    os.waitpid(child, 0)
    return text


@pytest.fixture
def read_only(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A project in folders that nobody may write to, for real; the cache is elsewhere."""
    import tempfile

    import black  # noqa: F401  (the child may not be allowed to read where it is installed)

    from onnxgen.build_hooks import elsewhere, making  # noqa: F401

    with tempfile.TemporaryDirectory() as folder:
        os.chmod(folder, 0o755)
        root = make(Path(folder) / "project", SETTINGS)
        pipeline.build(root / "models/net.onnx", Options(), root / "net.py")  # imports what is imported late
        (Path(folder) / "cache").mkdir()
        os.chmod(Path(folder) / "cache", 0o777)
        monkeypatch.setenv("ONNXGEN_CACHE_DIR", str(Path(folder) / "cache"))
        for path in [root, *root.rglob("*")]:
            os.chmod(path, 0o555 if path.is_dir() else 0o444)
        yield root
        for path in [root, *root.rglob("*")]:
            os.chmod(path, 0o755 if path.is_dir() else 0o644)


def told(root: Path) -> str:
    built = one(root)
    return "\n".join([built.status, built.note, *map(str, built.files)])


@pytest.mark.skipif(not hasattr(os, "fork"), reason="permissions are those of POSIX")
def test_a_tree_that_cannot_be_written_to(read_only: Path) -> None:
    before = tree(read_only)
    (read_only / "build").mkdir()
    os.chmod(read_only / "build", 0o777)
    place = read_only / "build/onnxgen/src/pkg"
    said = "src/pkg can't be written to: the files are in build/onnxgen"
    expected = ["written", said, str(place / "net.py"), str(place / "net.safetensors")]
    assert as_nobody(lambda: told(read_only)).splitlines() == expected
    assert as_nobody(lambda: told(read_only)).splitlines() == ["fresh", *expected[1:]]
    assert {name: it for name, it in tree(read_only).items() if not name.startswith("build/")} == before


@pytest.mark.skipif(not hasattr(os, "fork"), reason="permissions are those of POSIX")
def test_a_tree_without_a_build_folder(read_only: Path, cache: Path) -> None:
    before = tree(read_only)
    status, note, module, sidecar = as_nobody(lambda: told(read_only)).splitlines()
    assert status == "written" and note.startswith("src/pkg can't be written to: the files are in ")
    builds = read_only.parent / "cache" / "builds"
    assert Path(module).is_relative_to(builds) and Path(sidecar).is_file()
    assert tree(read_only) == before


# ---- what is wrong ---------------------------------------------------------------------------------------------------


def test_a_broken_model_among_good_ones(root: Path) -> None:
    """It is named by its key, its last good module stays, and all others are built."""
    settings = OTHER + SETTINGS + SETTINGS.replace("net.py", "third.py").replace("models/net", "models/third")
    net(root / "models/third.onnx")
    (root / "pyproject.toml").write_text(settings)
    build_project(project(root))
    before = tree(root / "src")
    (root / "models/net.onnx").write_bytes(b"no ONNX file")
    (root / "models/net.bin").unlink()
    net(root / "models/other.onnx", width=6)
    net(root / "models/third.onnx", width=7)
    with pytest.raises(BuildError) as refused:
        build_project(project(root))
    (problem,) = refused.value.problems
    assert str(problem).startswith("pyproject.toml: tool.onnxgen.models[1].source: ")
    assert "models/net.onnx is not an ONNX model" in str(problem) and "\n" not in str(problem)
    assert refused.value.exit_code == 2
    assert [(built.entry.key, built.status) for built in refused.value.built] == [
        ("tool.onnxgen.models[0]", "written"),
        ("tool.onnxgen.models[2]", "written"),
    ]
    after = tree(root / "src")
    unchanged = {name for name in after if after[name] == before[name]}
    assert unchanged == {"pkg/__init__.py", "pkg/net.py", "pkg/net.safetensors"}


def test_every_problem_of_every_model(root: Path) -> None:
    """Also where one is edited and stale: it is bad input, if anything is."""
    (root / "pyproject.toml").write_text(
        SETTINGS
        + OTHER
        + "dropout = {nowhere = 0.5}\n"
        + OTHER.replace("other.py", "third.py")
        + "input-shape = {z = [1]}\n"
    )
    pipeline.generate(root / "models/net.onnx", root / "src/pkg/net.py")
    edit_the_width(root)
    net(root / "models/net.onnx", width=5)
    with pytest.raises(BuildError) as refused:
        build_project(project(root))
    assert [str(problem).split(": ")[1] for problem in refused.value.problems] == [
        "tool.onnxgen.models[0].output",
        "tool.onnxgen.models[1].dropout",
        "tool.onnxgen.models[2].input-shape",
    ]
    assert refused.value.exit_code == 2


def test_nothing_is_left_of_a_build_that_fails(root: Path) -> None:
    (root / "models/net.onnx").write_bytes(b"no ONNX file")
    (root / "pyproject.toml").write_text(SETTINGS.replace("pkg/", "new/"))
    before = tree(root)
    with pytest.raises(BuildError):
        one(root)
    assert tree(root) == before and not (root / "src/new").exists()


def test_an_output_that_is_the_models_data(root: Path) -> None:
    """Settings can't know it; it is not written over."""
    net(root / "models/net.onnx", data="net.py")
    before = tree(root)
    (root / "pyproject.toml").write_text(SETTINGS.replace("src/pkg", "models"))
    with pytest.raises(BuildError, match=r"models\[0\]\.output: .*holds its data"):
        one(root)
    assert tree(root)["models/net.py"] == before["models/net.py"]


def test_templates_that_leave_out_the_line(root: Path) -> None:
    (root / "frame").mkdir()
    header = '{% extends "onnxgen/module.py.jinja" %}{% block header %}"""\n{{ summary[-2] }}\n"""{% endblock %}'
    (root / "frame/module.py.jinja").write_text(header)
    (root / "pyproject.toml").write_text(SETTINGS + 'templates = "frame"\n')
    with pytest.raises(BuildError, match="leave out the summary's Build line -> keep them"):
        one(root)


# ---- only looking ----------------------------------------------------------------------------------------------------


def test_check_writes_nothing(root: Path, tmp_path: Path) -> None:
    def check() -> str:
        before = tree(root)
        try:
            return one(root, check=True).status
        except BuildError as error:
            return str(error.exit_code)
        finally:
            assert tree(root) == before

    assert check() == "stale", "it is missing"
    one(root)
    assert check() == "fresh"
    net(root / "models/net.onnx", seed=1, data="net.bin")
    assert check() == "stale"
    one(root)
    edit(root)
    assert check() == "fresh"
    (root / "src/pkg/net.safetensors").unlink()
    assert check() == "stale"
    one(root)
    net(root / "models/net.onnx", width=5, data="net.bin")
    assert check() == "stale", "the two can be merged"
    edit_the_width(root)
    assert check() == "3"
    (root / "models/net.onnx").write_bytes(b"broken")
    assert check() == "2"


# ---- several at once -------------------------------------------------------------------------------------------------

PROCESS = """
import sys, time
from pathlib import Path
from onnxgen.build_hooks.build import build_project
from onnxgen.build_hooks.settings import read_project
import onnxgen.build_hooks.making
go = Path(sys.argv[1])
for place in sys.argv[2:]:
    print("ready", flush=True)
    while not (go / place).exists():
        time.sleep(0.001)
    to = [] if place == "in place" else [go.parent / "lib"]
    print(*(built.status for built in build_project(read_project(go.parent / place), *to)), flush=True)
"""


def test_processes_at_once(tmp_path: Path) -> None:
    """They write each file once, and none of them sees half a pair: in place, and in one build folder."""
    folders = {name: make(tmp_path / name, SETTINGS + OTHER) for name in ("in place", "elsewhere")}
    go = tmp_path / "go"
    go.mkdir()
    said = [tmp_path / f"said{number}" for number in range(4)]
    running = [forked.start(["-c", PROCESS, go, *folders], out, out, cwd=ROOT, ours=True) for out in said]
    for number, name in enumerate(folders, 1):
        while not all(out.is_file() and out.read_text().count("ready\n") == number for out in said):
            assert all(process.is_alive() for process in running), [out.read_text() for out in said if out.is_file()]
            time.sleep(0.01)
        (go / name).touch()
    for process in running:
        process.join(100)
    results = [out.read_text().splitlines() for out in said]
    assert all(
        process.exitcode == 0 and lines[::2] == ["ready", "ready"]
        for process, lines in zip(running, results, strict=True)
    ), results
    for number, (name, root) in enumerate(folders.items()):
        for statuses in zip(*(lines[2 * number + 1].split() for lines in results), strict=True):
            assert sorted(statuses) == ["fresh", "fresh", "fresh", "written"]
        to = [] if name == "in place" else [tmp_path / "lib"]
        folder = to[0] if to else root
        assert not [path for path in tree(folder) if "onnxgen-tmp" in path]
        assert [built.status for built in build_project(project(root), *to)] == ["fresh"] * 2
        for entry in project(root).entries:
            sidecar = folder / entry.output.relative_to(root).with_suffix(".safetensors")
            np.testing.assert_array_equal(stored(sidecar), weights(entry.source))


def test_one_entry_alone(root: Path, tmp_path: Path) -> None:
    """Without a pyproject.toml, as scripts have it."""
    entry = Entry("input[0]", root / "models/net.onnx", tmp_path / "out/net.py", root=root, file="script.py")
    assert build(entry).status == "written"
    assert build(replace(entry, key="other")).status == "fresh"
    (root / "models/net.bin").unlink()
    with pytest.raises(OnnxgenError, match=r"^script\.py: input\[0\]\.source: models/net\.bin is missing$"):
        build(entry)
