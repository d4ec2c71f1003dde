"""Where a build puts files and what it looks at, by itself: what back ends are told, in one line each."""

from __future__ import annotations

import importlib.metadata as metadata
import logging
import shutil
import threading
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import watchfiles
from setuptools import Distribution

from onnxgen import ModelGen
from onnxgen.build_hooks import watch
from onnxgen.build_hooks.build import build
from onnxgen.build_hooks.elsewhere import moved_to
from onnxgen.build_hooks.freshness import plugin_digests
from onnxgen.build_hooks.hatch import ModelBuildHook
from onnxgen.build_hooks.settings import Entry
from onnxgen.build_hooks.setuptools_build import (
    NAME,
    BuildOnnxgen,
    hook,
    installed,
    package_of,
    place_of,
    place_of_output,
)
from onnxgen.build_hooks.setuptools_entry import finalize
from onnxgen.build_hooks.watch import _changed, _files, _stamp
from onnxgen.common.cache import Cache
from onnxgen.errors import OnnxgenError
from onnxgen.options import Options
from tests.build_hooks.layouts import CASES
from tests.build_hooks.nets import net
from tests.build_hooks.projects import LAYOUTS, write_project


@pytest.fixture
def entry(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Entry:
    monkeypatch.setenv("ONNXGEN_CACHE_DIR", str(tmp_path / "cache"))
    root = tmp_path / "project"
    return Entry("models[0]", root / "nets/net.onnx", root / "src/pkg/net.py", root=root)


def with_weights(entry: Entry, name: str) -> Entry:
    return replace(entry, options=replace(entry.options, weights=entry.root / name))


def told(what: Any, *given: Any) -> str:
    with pytest.raises(OnnxgenError) as caught:
        what(*given)
    return str(caught.value)


def test_files_move_to_another_folder_as_they_lie(entry: Entry, tmp_path: Path) -> None:
    to, root = tmp_path / "lib", entry.root
    assert moved_to(entry, to) == replace(entry, output=to / "src/pkg/net.py")
    assert moved_to(entry, to, root / "src") == replace(entry, output=to / "pkg/net.py")
    named = with_weights(entry, "src/data/w.safetensors")
    for base, inside in ((None, "src/"), (root / "src", "")):
        moved = moved_to(named, to, base)
        assert (moved.output, moved.weights) == (to / f"{inside}pkg/net.py", to / f"{inside}data/w.safetensors")
    assert told(moved_to, named, to, root / "src/pkg") == (
        "pyproject.toml: models[0].weights: src/data/w.safetensors lies outside src/pkg, the folder that is built"
        " -> put module and weights into the package"
    )
    assert "models[0].output: src/pkg/net.py lies outside src/data" in told(moved_to, named, to, root / "src/data")


def test_places_of_packages_in_a_tree_of_setuptools(entry: Entry, tmp_path: Path) -> None:
    distribution = Distribution({"packages": ["pkg", "pkg.inner", "apart"]})
    distribution.package_dir = {"": "src", "apart": "other"}
    for folder, package in {
        "pkg": "pkg", "pkg/data": "pkg", "pkg/inner": "pkg.inner", "pkg/inner/x/y": "pkg.inner", "apart": "apart",
        "tests": None, "pk": None, ".": None,
    }.items():  # fmt: skip
        assert package_of(distribution, Path(folder)) == package, folder
    assert package_of(Distribution(), Path("pkg")) is None
    root, to = entry.root, tmp_path / "lib"
    for output, place in {"src/pkg/net.py": "pkg/net.py", "other/deep/net.py": "apart/deep/net.py"}.items():
        there = replace(with_weights(entry, output.replace(".py", ".bin")), output=root / output)
        moved = installed(there, place_of_output(distribution, there), to)
        assert (moved.output, moved.weights) == (to / place, to / place.replace(".py", ".bin"))
        assert (moved.source, moved.root) == (entry.source, root)
        alone = replace(there, options=Options())
        assert installed(alone, place_of_output(distribution, alone), to).options.weights is None
    assert place_of(distribution, root / "tests/net.py", root) is None
    flat = Distribution({"packages": ["pkg"]})
    assert place_of(flat, root / "pkg/net.py", root) is not None and place_of(flat, root / "tests/net.py", root) is None
    outside = replace(entry, output=root / "tests/net.py")
    assert told(place_of_output, distribution, outside) == (
        "pyproject.toml: models[0].output: tests/net.py is not in a package of this project (apart, pkg, pkg.inner)"
        " -> put it into one"
    )
    assert "is not in a package of this project (there are none)" in told(place_of_output, Distribution(), outside)
    assert told(place_of_output, distribution, with_weights(entry, "data/w.bin")) == (
        "pyproject.toml: models[0].weights: data/w.bin lies outside src"
        " -> put the weights into the package of the module"
    )


def test_the_build_command_has_the_models_once(entry: Entry) -> None:
    """However often a distribution is set up; other commands are what they are."""
    distribution = Distribution({"packages": ["pkg"], "src_root": str(entry.root)})
    others = {name: distribution.get_command_class(name) for name in ("build_py", "sdist", "install")}
    for _ in range(3):
        hook(distribution)
        subs = [name for name, _ in distribution.get_command_class("build").sub_commands]
        assert subs.count(NAME) == 1 and "build_py" in subs
        assert distribution.get_command_class(NAME) is BuildOnnxgen
        assert {name: distribution.get_command_class(name) for name in others} == others


def test_options_of_the_build_command_are_those_of_its_name(entry: Entry) -> None:
    """Of setup.cfg, say; and the sub-command has one of its own."""
    distribution = Distribution({"packages": ["pkg"], "src_root": str(entry.root)})
    hook(distribution)
    distribution.get_option_dict("build")["build_base"] = ("setup.cfg", "there")
    build: Any = distribution.get_command_obj("build")
    assert (build.get_command_name(), build.build_base) == ("build", "there")
    distribution.script_args = [NAME, "-d", "lib"]
    assert distribution.parse_command_line()
    command: Any = distribution.get_command_obj(NAME)
    assert command.build_lib == "lib"


def test_what_was_built_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """To whoever asks setuptools to say more; and setuptools is told of modules that are in no package, once."""
    monkeypatch.setenv("ONNXGEN_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.chdir(write_project(tmp_path / "project", CASES["modules"]))
    distribution = Distribution({"packages": [], "py_modules": []})
    command: Any = BuildOnnxgen(distribution)
    command.editable_mode, said = True, list[tuple[str, int]]()
    monkeypatch.setattr(command, "announce", lambda text, level: said.append((text, level)))
    for status in ("written", "fresh"):
        command.run()
        assert said == [(f"{name}.py: {status}", logging.INFO) for name in ("one", "two")]
        assert distribution.py_modules == ["one", "two"]
        said.clear()


def test_our_hook_comes_before_those_of_other_plugins(entry: Entry, monkeypatch: pytest.MonkeyPatch) -> None:
    """One of these may make the command that gets the sub-command, and then has it."""
    made = list[Any]()

    def other(distribution: Distribution) -> None:
        made.append(distribution.get_command_obj("build"))

    write_project(entry.root, LAYOUTS["src"])
    plugins = [SimpleNamespace(name=hook.__module__, load=lambda hook=hook: hook) for hook in (other, finalize)]
    group, usual = "setuptools.finalize_distribution_options", metadata.entry_points
    monkeypatch.setattr(metadata, "entry_points", lambda **of: plugins if of["group"] == group else usual(**of))
    monkeypatch.chdir(entry.root)
    Distribution({"packages": ["pkg"]}).finalize_options()
    assert NAME in [name for name, _ in made[0].sub_commands]


def test_what_an_editable_install_links_is_what_a_wheel_has(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = "[tool.onnxgen]\ninclude-onnx = true\n"
    for settings, more in (("", set()), (asked, {"one.onnx", "nets/two.onnx", "nets/two.data"})):
        root = write_project(tmp_path / f"project{len(more)}", LAYOUTS["src"], settings=settings)
        monkeypatch.chdir(root)
        distribution = Distribution({"packages": ["pkg", "pkg.nets"]})
        distribution.package_dir = {"": "src"}
        command: Any = BuildOnnxgen(distribution)
        command.build_lib = "lib"
        wheel = command.get_outputs()
        assert command.get_output_mapping() == {}
        command.editable_mode = True
        linked = command.get_output_mapping()
        names = {"one.py", "one.safetensors", "nets/two.py", "nets/two.safetensors"} | more
        assert sorted(linked) == wheel == command.get_outputs() == sorted(str(Path("lib/pkg", name)) for name in names)
        for place, path in linked.items():
            folder = "models" if path.endswith((".onnx", ".data")) else f"src/{Path(place).parent.relative_to('lib')}"
            assert Path(path) == Path(folder, Path(place).name)


def test_the_temporary_folder_of_hatchling_goes_when_the_wheel_is_complete() -> None:
    hook: Any = object.__new__(ModelBuildHook)
    folder = Path(hook._folder.name)
    (folder / "pkg").mkdir()
    hook.finalize("standard", {}, "pkg.whl")
    assert not folder.exists()


def test_what_hatchling_does_not_select_is_refused(entry: Entry) -> None:
    def check(given: Entry, selected: bool, where: dict[str, str]) -> None:
        inside = lambda path: where.get(path.name, f"pkg/{path.name}")  # noqa: E731
        hook: Any = SimpleNamespace(_is_selected=lambda _: selected, target_name="wheel", _inside=inside)
        ModelBuildHook._check_places(hook, given)

    assert told(check, entry, False, {}) == (
        "pyproject.toml: models[0].output: src/pkg/net.py is not in a package of this project -> put it into one, or "
        "name its folder in tool.hatch.build.targets.wheel.packages"
    )
    beside = with_weights(entry, "src/pkg/w.bin")
    for right in (entry, beside, replace(entry, options=Options(embed=True))):
        check(right, True, {})
    check(with_weights(entry, "src/pkg/data/w.bin"), True, {"w.bin": "pkg/data/w.bin"})
    assert told(check, with_weights(entry, "src/data/w.bin"), True, {}) == (
        "pyproject.toml: models[0].weights: src/data/w.bin would not be where the module looks for it -> put the "
        "weights into the module's package"
    )


def test_plugins_without_files_are_told_apart_by_name(entry: Entry, tmp_path: Path) -> None:
    """Modules of the interpreter have none. One that has files counts with their content."""
    net(entry.source)
    file = tmp_path / "ops.py"
    found = []
    for names in (["sys"], ["builtins"], [str(file)], [str(file)], ["sys", str(file)]):
        file.write_text(f"# {len(found)}\n")
        found.append(plugin_digests(replace(entry, options=Options(plugins=tuple(names))), Cache()))
    assert found[0] == [["sys"]] and found[1] == [["builtins"]] and found[4][0] == ["sys"]
    assert found[2] != found[3] and found[2][0][0] == found[4][1][0] == "ops.py"


def test_templates_are_watched_with_what_is_in_them(entry: Entry, tmp_path: Path) -> None:
    net(entry.source, data="net.bin")
    frame = tmp_path / "frame"
    (frame / "deep").mkdir(parents=True)
    for name in ("module.py.jinja", "deep/part.jinja"):
        (frame / name).write_text("text")
    watched = set(_files(replace(entry, options=Options(templates=frame))))
    assert watched >= {frame, frame / "module.py.jinja", frame / "deep", frame / "deep/part.jinja"}
    assert watched >= {entry.source, entry.source.parent, entry.source.with_name("net.bin")}
    before = {path: _stamp(path) for path in watched}
    (frame / "deep/part.jinja").write_text("longer text")
    (frame / "deep/new.jinja").touch()
    (frame / "ignored.txt").touch()
    (entry.source.parent / "new.onnx").touch()
    changed = {path for path in watched if _stamp(path) != before[path]}
    assert changed == {frame / "deep/part.jinja", frame / "deep", entry.source.parent}
    entry.source.write_bytes(b"half of a file")
    assert entry.source in set(_files(entry)) and _stamp(tmp_path / "missing") is None


def test_waiting_for_a_change_ends_where_nothing_changes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where no notification ever comes: the error of an unfinished file is said after a while."""
    monkeypatch.setattr(watch, "TICK_MILLISECONDS", 50)
    path, found = tmp_path / "net.onnx", list[bool]()
    path.touch()
    before = {path: _stamp(path)}
    waiting = threading.Thread(target=lambda: found.append(_changed(watchfiles, before, 0.1)), daemon=True)
    waiting.start()
    waiting.join(20)
    path.write_text("more")  # ends it, if nothing else did
    waiting.join(20)
    assert found == [False]
    assert _changed(watchfiles, before, None), "a change before it began to wait"


def test_an_edited_module_that_is_already_there_is_not_copied_again(entry: Entry, tmp_path: Path) -> None:
    """Also where its header does not record its content, so that it has to be generated to see that it is right."""
    net(entry.source)
    build(entry)
    text = entry.output.read_text()
    edited = text.replace("        return ", "        print(1)\n        return ", 1)
    entry.output.write_text(edited[text.index('"""', 3) + 3 :])
    there = moved_to(entry, tmp_path / "lib")
    there.output.parent.mkdir(parents=True)
    for path in entry.output.parent.iterdir():
        shutil.copy(path, there.output.parent)
    assert build(entry, to=tmp_path / "lib").status == "fresh"


def test_a_script_says_paths_as_text(entry: Entry) -> None:
    """With / between folders, as settings do, whatever objects it was given."""
    made = ModelGen(entry.root).input(Path("nets", "net.onnx")).out(Path("src", "pkg", "net.py"))
    assert (made._inputs, made._output) == (["nets/net.onnx"], "src/pkg/net.py")
    assert made.out_dir(Path("src", "pkg"))._output == "src/pkg/"
