"""What a key covers, what the cache of digests may be trusted with, and when a sidecar fits."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import platformdirs
import pytest
from onnx import TensorProto, helper

from onnxgen.build_hooks import freshness
from onnxgen.build_hooks.build import build
from onnxgen.build_hooks.freshness import content_of, is_fresh, source_files
from onnxgen.build_hooks.settings import Entry
from onnxgen.common import cache as caching
from onnxgen.common.cache import Cache, digest
from onnxgen.common.limits import Limits
from onnxgen.errors import OnnxgenError
from onnxgen.graph.annotations import DATA_FILES
from onnxgen.options import Options
from onnxgen.reader import read
from onnxgen.reader.tensors import locations
from tests.build_hooks.nets import net
from tests.conftest import ROOT, shared_models

LARGE = 200_000  # bytes; smaller files are digested every time


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Cache:
    monkeypatch.setenv("ONNXGEN_CACHE_DIR", str(tmp_path / "cache"))
    return Cache()


@pytest.fixture
def entry(tmp_path: Path) -> Entry:
    root = tmp_path / "project"
    net(root / "models/net.onnx", data="net.bin")
    return Entry("models[0]", root / "models/net.onnx", root / "src/net.py", root=root)


def aged(path: Path, seconds: float = 10) -> Path:
    """A file that was last changed some time ago, as the system tells: its inode may not be renamed for that."""
    then = time.time() - seconds
    os.utime(path, (then, then))
    return path


@pytest.fixture
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Files that were just written count as old: `ctime` can't be set, and tests should not wait for it."""
    monkeypatch.setattr(caching, "RACY_NANOSECONDS", -(10**12))


# ---- the key ---------------------------------------------------------------------------------------------------------


def flip(path: Path) -> None:
    """Change the last byte."""
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)


def with_options(**options: Any) -> Callable[[Entry], Entry]:
    return lambda entry: replace(entry, options=replace(entry.options, **options))


def changed_source(entry: Entry) -> Entry:
    model = onnx.load(entry.source, load_external_data=False)
    model.doc_string = "other"
    entry.source.write_bytes(model.SerializeToString())
    return entry


def changed_data(entry: Entry) -> Entry:
    flip(entry.source.with_name("net.bin"))
    return entry


def moved(entry: Entry, **names: str) -> Entry:
    return replace(entry, **{name: getattr(entry, name).with_name(new) for name, new in names.items()})


def renamed_source(entry: Entry) -> Entry:
    entry.source.rename(entry.source.with_name("other.onnx"))
    return moved(entry, source="other.onnx")


CHANGES: dict[str, Callable[[Entry], Entry]] = {
    "source": changed_source,
    "data": changed_data,
    "source's name": renamed_source,
    "output's name": lambda entry: moved(entry, output="other.py"),
    "weights' name": lambda entry: with_options(weights=entry.root / "src/other.safetensors")(entry),
    "class name": with_options(class_name="Net"),
    "dtype": with_options(dtype="float16"),
    "embed": with_options(embed=True),
    "input shapes": with_options(input_shapes={"x": (1, 8)}),
    "an input that is a constant": with_options(const={"x": 1}),
    "elements of a constant": with_options(const={"x": (1, 2)}),
    "flat": with_options(flat=True),
    "annotate": with_options(annotate=True),
    "style": with_options(style="torchvision"),
    "trainable": with_options(trainable="fc"),
    "frozen": with_options(frozen="fc"),
    "tied": with_options(tied="fc"),
    "untied": with_options(untied="fc"),
    "dynamic batch": with_options(dynamic_batch=True),
    "batch axes": with_options(dynamic_batch=True, batch_axes={"x": 1}),
    "no batch axis": with_options(dynamic_batch=True, batch_axes={"x": None}),
    "where the part begins": with_options(inputs=("h",)),
    "where the part ends": with_options(outputs=("h",)),
    "restore batchnorm": with_options(restore_batchnorm=True),
    "quantized": with_options(quantized="float"),
    "task": with_options(task="detection"),
    "dropout": with_options(dropout={"fc": 0.5}),
    "other dropout": with_options(dropout={"fc": 0.25}),
    "nchwc block": with_options(nchwc_block=8),
    "allow unsupported": with_options(allow_unsupported=True),
    "paranoid": with_options(paranoid=True),
    "shard size": with_options(shard_size=100),
    "limits": with_options(limits=Limits(fold_elements=3)),
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_a_key_changes_with_all_that_shapes_the_output(
    entry: Entry, cache: Cache, change: Callable[[Entry], Entry]
) -> None:
    before = content_of(entry, cache).key
    assert content_of(entry, cache).key == before and len(before) == 64
    changed = content_of(change(entry), cache).key
    assert changed[:32] != before[:32] and changed[32:] != before[32:]


def test_every_option_is_among_those_changes(entry: Entry) -> None:
    tried = [change(entry).options for name, change in CHANGES.items() if "source" not in name]
    default = Options()
    same = [name for name in vars(default) if all(getattr(o, name) == getattr(default, name) for o in tried)]
    assert same == ["templates", "plugins"], "have tests of their own"


def test_a_key_has_the_order_of_dropouts(entry: Entry, cache: Cache) -> None:
    """Of several patterns that match, the last counts."""
    keys = [content_of(with_options(dropout=d)(entry), cache).key for d in ({"a": 0.1, "b": 0.2}, {"b": 0.2, "a": 0.1})]
    assert keys[0] != keys[1]


def test_a_key_changes_with_the_templates(entry: Entry, cache: Cache) -> None:
    """Those of the user are asked for; whatever they include counts, too."""
    folder = entry.root / "frame"
    (folder / "parts").mkdir(parents=True)
    (folder / "module.py.jinja").write_text("one")
    found = with_options(templates=folder)(entry)
    keys = [content_of(entry, cache).key, content_of(found, cache).key]
    (folder / "module.py.jinja").write_text("two")
    keys.append(content_of(found, cache).key)
    (folder / "parts" / "licence.txt").write_text("three")
    keys.append(content_of(found, cache).key)
    (folder / "back").symlink_to(folder)  # no end, if it were followed
    (entry.root / "linked").mkdir()
    (folder / "linked").symlink_to(entry.root / "linked")
    (entry.root / "linked" / "text").write_text("four")
    keys.append(content_of(found, cache).key)
    assert len({key[:32] for key in keys}) == 5
    (folder / ".#module.py.jinja").symlink_to("somebody@somewhere.1")  # by it, Emacs locks a file
    assert content_of(found, cache).key == keys[-1]
    shutil.rmtree(folder)
    with pytest.raises(OnnxgenError, match=r"^pyproject\.toml: models\[0\]\.templates: frame"):
        content_of(found, cache)


def test_what_onnxgen_brings_changes_the_second_half_alone(
    entry: Entry, cache: Cache, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    before = content_of(entry, cache).key
    with monkeypatch.context() as patch:
        patch.setattr(freshness, "__version__", "9.9")
        version = content_of(entry, cache).key
    ours = shutil.copytree(freshness.templates_dir(), tmp_path / "templates")
    monkeypatch.setattr(freshness, "templates_dir", lambda: ours)
    assert content_of(entry, cache).key == before
    flip(ours / "module.py.jinja")
    freshness._ours.cache_clear()
    templates = content_of(entry, cache).key
    freshness._ours.cache_clear()
    assert version[:32] == templates[:32] == before[:32]
    assert len({before[32:], version[32:], templates[32:]}) == 3


def test_a_key_has_neither_times_nor_places(entry: Entry, cache: Cache, tmp_path: Path) -> None:
    """A checkout elsewhere, with other time stamps and no cache, has the same key."""
    entry = with_options(weights=entry.root / "src/deep/w.safetensors", templates=entry.root / "frame")(entry)
    (entry.root / "frame").mkdir()
    (entry.root / "frame" / "x.jinja").touch()
    before = content_of(entry, cache).key
    other = tmp_path / "elsewhere" / "checkout"
    shutil.copytree(entry.root, other)
    for path in other.rglob("*"):
        aged(path, 10**8)
    there = replace(
        entry,
        source=other / "models/net.onnx",
        output=other / "src/net.py",
        options=replace(entry.options, weights=other / "src/deep/w.safetensors", templates=other / "frame"),
        root=other,
        key="other[7]",
        file="setup.py",
    )
    assert content_of(there, Cache(tmp_path / "empty")).key == before


# ---- external data ---------------------------------------------------------------------------------------------------


def tensor(location: str) -> TensorProto:
    found = TensorProto(name="w", data_type=TensorProto.FLOAT, dims=[4], data_location=TensorProto.EXTERNAL)
    found.external_data.add(key="location", value=location)
    return found


def everywhere() -> onnx.ModelProto:
    """External tensors wherever ONNX may have them: at the top, in a branch, in a Constant, in a local function."""
    out = helper.make_tensor_value_info("y", TensorProto.FLOAT, [4])
    inner = helper.make_graph([helper.make_node("Identity", ["w"], ["o"])], "b", [], [], [tensor("branch.bin")])
    inner.output.append(helper.make_tensor_value_info("o", TensorProto.FLOAT, [4]))
    other = helper.make_graph([helper.make_node("Constant", [], ["p"], value=tensor("sub/constant.bin"))], "c", [], [])
    other.output.append(helper.make_tensor_value_info("p", TensorProto.FLOAT, [4]))
    function = helper.make_function(
        "mine",
        "Add4",
        ["a"],
        ["b"],
        [
            helper.make_node("Constant", [], ["c"], value=tensor("./function.bin")),
            helper.make_node("Add", ["a", "c"], ["b"]),
        ],
        [helper.make_opsetid("", 17)],
    )
    nodes = [
        helper.make_node("If", ["cond"], ["i"], then_branch=inner, else_branch=other),
        helper.make_node("Add", ["i", "w"], ["s"]),
        helper.make_node("Add4", ["s"], ["y"], domain="mine"),
    ]
    condition = helper.make_tensor_value_info("cond", TensorProto.BOOL, [])
    graph = helper.make_graph(nodes, "g", [condition], [out], [tensor("top.bin")])
    imports = [helper.make_opsetid("", 17), helper.make_opsetid("mine", 1)]
    return helper.make_model(graph, opset_imports=imports, functions=[function], ir_version=10)


def files_read(path: Path) -> set[Path]:
    """What reading the model finds."""
    found = DATA_FILES.get(read(path, Options()))
    return {Path(os.path.normpath(file)) for file in found}


def test_locations_are_those_that_reading_finds(tmp_path: Path, cache: Cache) -> None:
    path = tmp_path / "model.onnx"
    path.write_bytes(everywhere().SerializeToString())
    names = ("top.bin", "branch.bin", "sub/constant.bin", "function.bin")
    (tmp_path / "sub").mkdir()
    for name in names:
        (tmp_path / name).write_bytes(np.arange(4, dtype=np.float32).tobytes())
    assert locations(path) == set(names)
    assert {tmp_path / name for name in names} == files_read(path)
    entry = Entry("x", path, tmp_path / "model.py", root=tmp_path)
    assert source_files(entry, cache) == (path, *(tmp_path / name for name in sorted(names)))
    keys = {content_of(entry, cache).key}
    for name in names:
        flip(tmp_path / name)
        keys.add(content_of(entry, cache).key)
    assert len(keys) == 5


@pytest.mark.parametrize("model", shared_models("net", "graph")[::4])
def test_locations_of_real_files(model: dict[str, Any], cache: Cache, tmp_path: Path) -> None:
    """Found by the word alone where most files have none, and by the whole graph where they may."""
    path: Path = model["path"]
    if path.stat().st_size > 20 << 20:
        pytest.skip("parsing it twice takes long")
    entry = Entry("x", path, tmp_path / "model.py", root=tmp_path)
    try:
        expected = files_read(path)
    except OnnxgenError as error:
        pytest.skip(f"refused: {error.problems[0].what}")
    assert set(source_files(entry, cache)) == {path, *expected}


@pytest.mark.parametrize(
    ("location", "what"),
    [
        ("../net.bin", "leaves the model folder by .."),
        ("/etc/hosts", "is at an absolute path"),
        ("no.bin", "the external data file no.bin is missing"),
        ("", "the external data names no file"),
        ("pipe", "is not a regular file"),
    ],
)
def test_locations_that_reading_refuses(tmp_path: Path, cache: Cache, location: str, what: str) -> None:
    """None of them is opened: a pipe would never end."""
    os.mkfifo(tmp_path / "pipe")
    model = everywhere()
    model.graph.initializer[0].CopyFrom(tensor(location))
    for name in ("branch.bin", "function.bin", "sub/constant.bin"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(bytes(16))
    (tmp_path / "model.onnx").write_bytes(model.SerializeToString())
    with pytest.raises(OnnxgenError) as refused:
        content_of(Entry("k[0]", tmp_path / "model.onnx", tmp_path / "model.py", root=tmp_path), cache)
    (problem,) = refused.value.problems
    assert str(problem).startswith("pyproject.toml: k[0].source: ") and what in str(problem)
    with pytest.raises(OnnxgenError, match=what.replace(".", r"\.")):
        read(tmp_path / "model.onnx", Options())


def test_data_that_became_a_pipe(entry: Entry, cache: Cache) -> None:
    """Where it lies is known from before; what lies there is looked at each time."""
    content_of(entry, cache)
    entry.source.with_name("net.bin").unlink()
    with pytest.raises(OnnxgenError, match=r"models\[0\]\.source: models/net\.bin is missing"):
        content_of(entry, cache)
    os.mkfifo(entry.source.with_name("net.bin"))
    with pytest.raises(OnnxgenError, match=r"models/net\.bin can't be read: not a regular file"):
        content_of(entry, cache)


def test_a_word_across_two_reads(tmp_path: Path) -> None:
    path = tmp_path / "x"
    for start in range((1 << 20) - 10, (1 << 20) + 3):
        path.write_bytes(b"." * start + b"location" + b".")
        assert freshness._mentions_data(path)
    path.write_bytes(b"." * ((1 << 20) - 4) + b"loca" + b"-tion")
    assert not freshness._mentions_data(path)


# ---- the cache of digests --------------------------------------------------------------------------------------------


def large(path: Path, seed: int = 0) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(np.random.default_rng(seed).bytes(LARGE))
    return path


def sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def test_a_file_is_read_once(tmp_path: Path, cache: Cache, patient: None, monkeypatch: pytest.MonkeyPatch) -> None:
    path = large(tmp_path / "x")
    assert digest(path, cache) == sha256(path)
    expected = sha256(path)
    with monkeypatch.context() as patch:
        patch.setattr("builtins.open", lambda *_: pytest.fail("it was read again"))
        assert digest(path, cache) == expected
    large(path, 1)
    assert digest(path, cache) == sha256(path) != expected


def test_same_size_and_restored_time(tmp_path: Path, cache: Cache, patient: None) -> None:
    path = aged(large(tmp_path / "x"))
    digest(path, cache)
    before = path.stat()
    large(path, 1)
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert (path.stat().st_size, path.stat().st_mtime_ns) == (before.st_size, before.st_mtime_ns)
    assert digest(path, cache) == sha256(path)
    other = aged(large(tmp_path / "y", 2))
    os.utime(other, ns=(before.st_atime_ns, before.st_mtime_ns))
    os.replace(other, path)
    assert digest(path, cache) == sha256(path)


def test_a_change_within_the_tick_of_a_clock(tmp_path: Path, cache: Cache, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file system whose clock ticks every two seconds, which shows nothing of a change in between."""
    tick = 2_000_000_000
    real = caching._facts
    monkeypatch.setattr(
        caching, "_facts", lambda found: [n // tick * tick if i in (1, 2) else n for i, n in enumerate(real(found))]
    )
    path = tmp_path / "x"
    seen = 0
    for seed in range(40):
        before = caching._facts(large(path, seed).stat())
        assert digest(path, cache) == sha256(path)
        large(path, 1000 + seed)
        seen += caching._facts(path.stat()) == before
        assert digest(path, cache) == sha256(path)
    assert seen > 30, "most of the changes could not be seen"


def test_without_that_rule_it_would_be_wrong(
    tmp_path: Path, cache: Cache, patient: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The test above can fail."""
    real = caching._facts
    monkeypatch.setattr(
        caching, "_facts", lambda found: [n if i in (0, 3, 4) else 0 for i, n in enumerate(real(found))]
    )
    path = large(tmp_path / "x")
    digest(path, cache)
    large(path, 1)
    assert digest(path, cache) != sha256(path)


def test_a_file_of_old_is_kept(tmp_path: Path, cache: Cache, monkeypatch: pytest.MonkeyPatch) -> None:
    path = large(tmp_path / "x")
    digest(path, cache)
    assert not list(cache.folder.rglob("digests/*")), "it is younger than the tick of a clock"
    monkeypatch.setattr(time, "time_ns", lambda real=time.time_ns: real() + 3_000_000_000)
    digest(path, cache)
    assert len(list(cache.folder.rglob("digests/*"))) == 1


def test_a_file_that_changes_while_it_is_read(
    tmp_path: Path, cache: Cache, patient: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, real = large(tmp_path / "x"), caching._facts
    calls: list[int] = []

    def facts(found: os.stat_result) -> list[int]:
        calls.append(1)
        if len(calls) == 2:  # it is open, and not read yet
            large(path, 1)
        return real(found)

    monkeypatch.setattr(caching, "_facts", facts)
    digest(path, cache)
    monkeypatch.setattr(caching, "_facts", real)
    assert digest(path, cache) == sha256(path)


@pytest.mark.parametrize("damage", [b"", b"{", b"\xff" * 100, b"0" * 64 + b"\n[]", None])
def test_a_damaged_cache_is_an_empty_one(tmp_path: Path, cache: Cache, patient: None, damage: bytes | None) -> None:
    path = large(tmp_path / "x")
    digest(path, cache)
    (fact,) = cache.folder.rglob("digests/*")
    whole = fact.read_bytes()
    if damage is None:
        fact.unlink()
        fact.mkdir()
    else:
        fact.write_bytes(damage)
    assert digest(path, cache) == sha256(path)
    if damage is not None:
        assert fact.read_bytes() == whole, "written anew"


def test_no_bit_of_the_cache_can_be_wrong(tmp_path: Path, cache: Cache, patient: None) -> None:
    path = large(tmp_path / "x")
    expected = digest(path, cache)
    (fact,) = cache.folder.rglob("digests/*")
    whole = fact.read_bytes()
    for at in range(0, len(whole) * 8, 7):
        broken = bytearray(whole)
        broken[at // 8] ^= 1 << at % 8
        fact.write_bytes(broken)
        assert digest(path, cache) == expected


def test_a_fact_of_another_name_is_none(cache: Cache) -> None:
    cache.put("digests", "/a", [1])
    shutil.copy(cache._file("digests", "/a"), cache._file("digests", "/b"))
    assert cache.get("digests", "/a") == [1] and cache.get("digests", "/b") is None


@pytest.mark.parametrize("there", ["a file", "nothing can be made"])
def test_a_cache_that_cannot_be_written(tmp_path: Path, entry: Entry, there: str) -> None:
    (tmp_path / "cache").touch()
    folder = tmp_path / "cache" if there == "a file" else Path("/proc/nothing")
    cache = Cache(folder)
    assert build(entry, cache=cache).status == "written"
    assert build(entry, cache=cache).status == "fresh"


def test_where_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ONNXGEN_CACHE_DIR", str(tmp_path / "mine"))
    assert Cache().folder == tmp_path / "mine"
    monkeypatch.delenv("ONNXGEN_CACHE_DIR")
    for name in (str(tmp_path / "xdg"), " ", None):
        monkeypatch.setenv("XDG_CACHE_HOME", name) if name else monkeypatch.delenv("XDG_CACHE_HOME")
        assert Cache().folder == platformdirs.user_cache_path("onnxgen")


def test_nobody_is_at_home(monkeypatch: pytest.MonkeyPatch) -> None:
    """No folder called `~` is made."""
    for name in ("ONNXGEN_CACHE_DIR", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(os.path, "expanduser", lambda path: path)
    cache = Cache()
    cache.put("settled", "x", True)
    assert cache.folder.is_absolute() and not cache.folder.exists() and cache.get("settled", "x") is None


def test_what_is_old_goes(tmp_path: Path, cache: Cache) -> None:
    cache.put("settled", "old", 1)
    cache.put("settled", "new", 2)
    aged(cache._file("settled", "old"), caching.KEPT_SECONDS + 60)
    cache.put("settled", "another", 3)
    assert cache.get("settled", "old") == 1, "looked for once a week"
    aged(cache.folder / "build" / caching.MARKER, caching.SWEEP_INTERVAL_SECONDS + 60)
    cache.put("settled", "another", 3)
    assert [cache.get("settled", name) for name in ("old", "new", "another")] == [None, 2, 3]


WRITER = """
import hashlib, sys, time
from pathlib import Path
from onnxgen.common import cache
cache.RACY_NANOSECONDS = -10**12
paths, end = [Path(p) for p in sys.argv[1:]], time.monotonic() + 0.7
count = wrong = 0
while time.monotonic() < end:
    for path in paths:
        found = cache.digest(path, cache.Cache())
        wrong += found != path.name
        count += 1
print(count, wrong)
"""


def test_several_processes_at_once(tmp_path: Path, cache: Cache) -> None:
    """They write the same facts all the time, since another thread damages them."""
    paths = []
    for seed in range(4):
        path = large(tmp_path / "new", seed)
        paths.append(path.rename(tmp_path / sha256(path)))
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "ONNXGEN_CACHE_DIR": str(cache.folder)}
    command = [sys.executable, "-c", WRITER, *map(str, paths)]
    running = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) for _ in range(3)]
    stop = threading.Event()

    def damage() -> None:
        while not stop.wait(0.01):
            for fact in cache.folder.rglob("digests/[0-9a-f]*"):
                fact.write_bytes(fact.read_bytes()[:50])

    thread = threading.Thread(target=damage)
    thread.start()
    results = [process.communicate(timeout=60)[0].split() for process in running]
    stop.set()
    thread.join()
    assert all(int(count) > 20 and wrong == "0" for count, wrong in results), results
    assert not list(cache.folder.rglob("digests/.*")), "temporary files are gone"


# ---- whether it is fresh ---------------------------------------------------------------------------------------------


def fresh(entry: Entry, cache: Cache) -> bool:
    return is_fresh(entry, content_of(entry, cache), cache)


def patched(path: Path, change: Callable[[dict[str, Any]], None]) -> None:
    """Change the header of a safetensors file."""
    content = path.read_bytes()
    end = 8 + int.from_bytes(content[:8], "little")
    header = json.loads(content[8:end])
    change(header)
    text = json.dumps(header, separators=(",", ":")).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + content[end:])


def signed(header: dict[str, Any]) -> str:
    """The signature in a header, but with another file."""
    return json.dumps(json.loads(header["__metadata__"]["signature"]) | {"sha256": "0"})


DAMAGES: dict[str, Callable[[Path], object]] = {
    "missing": Path.unlink,
    "empty": lambda path: path.write_bytes(b""),
    "cut short": lambda path: path.write_bytes(path.read_bytes()[:-1]),
    "cut in its header": lambda path: path.write_bytes(path.read_bytes()[:60]),
    "too long": lambda path: path.write_bytes(path.read_bytes() + b"\0"),
    "a huge header": lambda path: path.write_bytes(b"\xff" * 8 + path.read_bytes()[8:]),
    "no JSON": lambda path: path.write_bytes(path.read_bytes().replace(b"{", b"[", 1)),
    "of another module": lambda path: patched(path, lambda h: h["__metadata__"].update(fingerprint="0" * 32)),
    "of another source": lambda path: patched(path, lambda h: h["__metadata__"].update(signature=signed(h))),
    "of other data": lambda path: patched(path, lambda h: h["__metadata__"].update(data="0" * 32)),
    "no metadata": lambda path: patched(path, lambda h: h.pop("__metadata__")),
}
REPAIRED = ("missing", "cut short", "no JSON", "of another source", "of other data")


@pytest.mark.parametrize("sharded", [False, True], ids=["one file", "sharded"])
def test_a_sidecar_that_does_not_fit(entry: Entry, cache: Cache, sharded: bool) -> None:
    """It makes the pair stale, and a build repairs it."""
    if sharded:
        entry = replace(entry, source=samples(entry), options=replace(entry.options, shard_size=400_000))
    built = build(entry, cache=cache)
    content = {path: path.read_bytes() for path in built.files}
    for name, damage in DAMAGES.items():
        assert fresh(entry, cache)
        damage(built.files[1])
        assert not fresh(entry, cache), name
        if name in REPAIRED:
            assert build(entry, cache=cache).status == "written"
            assert {path: path.read_bytes() for path in built.files} == content, name
        built.files[1].write_bytes(content[built.files[1]])


def test_weights_that_a_person_put_there(entry: Entry, cache: Cache) -> None:
    """Nothing that onnxgen did not write is written over."""
    module, weights = build(entry, cache=cache).files
    DAMAGES["no metadata"](weights)
    content = weights.read_bytes()
    with pytest.raises(OnnxgenError, match=r"^pyproject\.toml: models\[0\]\.\w+: .*onnxgen did not write it"):
        build(entry, cache=cache)
    assert weights.read_bytes() == content


def samples(entry: Entry) -> Path:
    """A source with several tensors."""
    return Path(shutil.copy(ROOT / "samples/mnist/mnist.onnx", entry.source.with_name("mnist.onnx")))


def test_shards_and_their_index(entry: Entry, cache: Cache) -> None:
    entry = replace(entry, source=samples(entry), options=replace(entry.options, shard_size=400_000))
    built = build(entry, cache=cache)
    index = entry.root / "src/net.safetensors.index.json"
    assert len(built.files) >= 4 and built.files[-1] == index
    assert set(built.files) == set((entry.root / "src").iterdir())
    for damage in (Path.unlink, lambda path: path.write_text('{"metadata": {"generator": "onnxgen"}}')):
        damage(index)  # type: ignore[operator]
        assert not fresh(entry, cache)
        assert build(entry, cache=cache).files == built.files
    whole = json.loads(index.read_text())
    for name in ("../net.bin", "/etc/hosts", 3):
        index.write_text(json.dumps({**whole, "weight_map": {"x": name}}))
        assert not fresh(entry, cache)


def test_weights_of_another_branch(entry: Entry, cache: Cache) -> None:
    """The module is in git and the sidecar is not: after a checkout it is that of another branch, and looks alike."""
    build(entry, cache=cache)
    module = entry.output.read_text()
    net(entry.source, seed=1, data="net.bin")
    build(entry, cache=cache)
    net(entry.source, seed=0, data="net.bin")
    entry.output.write_text(module)
    assert not fresh(entry, cache), "the weights are those of the other data"
    assert build(entry, cache=cache).status == "written" and entry.output.read_text() == module


def test_embedded_weights_have_no_sidecar(entry: Entry, cache: Cache) -> None:
    entry = replace(entry, options=replace(entry.options, embed=True))
    assert build(entry, cache=cache).files == (entry.output,)
    assert fresh(entry, cache)
    flip(entry.source.with_name("net.bin"))
    assert not fresh(entry, cache)


def test_the_word_in_the_header_alone_counts(entry: Entry, cache: Cache) -> None:
    key = build(entry, cache=cache).key
    text = entry.output.read_text()
    for other in (
        text.replace(f"Build     {key}\n", ""),
        text.replace(key, key[:-1] + ("0" if key[-1] != "0" else "1")),
    ):
        entry.output.write_text(other)
        assert not fresh(entry, cache)
    for same in (text.replace("\n", "\r\n"), "\ufeff" + text, text.replace("class ", "class  ")):
        entry.output.write_bytes(same.encode())
        assert fresh(entry, cache), "a checkout on another system, or a formatter"


FRESH = """
import sys
from pathlib import Path
from onnxgen.build_hooks.build import build_project
from onnxgen.build_hooks.settings import read_project
root, to = sys.argv[1:]
project = read_project(root)
statuses = [b.status for b in build_project(project) + build_project(project, check=True)]
statuses += [b.status for b in build_project(project, Path(to))]
heavy = {"onnx", "onnx_ir", "numpy", "black", "jinja2", "safetensors", "torch", "click", "google", "ml_dtypes"}
print(statuses, sorted({m.split(".")[0] for m in sys.modules} & heavy))
"""


def test_where_everything_is_fresh_nothing_is_imported(tmp_path: Path, cache: Cache) -> None:
    """Not even where the files are copied to a build folder, nor to find the external data again."""
    root = tmp_path / "project"
    net(root / "models/one.onnx", data="one.bin")
    net(root / "models/two.onnx")
    (root / "pyproject.toml").write_text('[[tool.onnxgen.models]]\nsource = "models/*.onnx"\noutput = "src/"\n')
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-c", FRESH, str(root)]

    def run(to: str) -> str:
        done = subprocess.run(
            [*command, str(tmp_path / to)], capture_output=True, text=True, env=environment, timeout=100
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    first = run("lib")
    assert first.startswith("['written', 'written', 'fresh', 'fresh', 'written', 'written']") and "onnx" in first
    assert run("lib") == "['fresh', 'fresh', 'fresh', 'fresh', 'fresh', 'fresh'] []\n"
    assert run("other") == "['fresh', 'fresh', 'fresh', 'fresh', 'written', 'written'] []\n"
