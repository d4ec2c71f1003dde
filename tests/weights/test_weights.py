"""The sidecar read by the safetensors library, and the pair under errors, kills and rivals."""

from __future__ import annotations

import errno
import itertools
import json
import os
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import onnx_ir as ir
import pytest
from safetensors import SafetensorError, safe_open
from safetensors.numpy import load_file, save

from onnxgen.common import atomic
from onnxgen.errors import OnnxgenError
from onnxgen.record.sidecar import INDEX, MARK, read_header, sidecar_files
from onnxgen.weights import sidecar
from onnxgen.weights import sidecar as streamed
from onnxgen.weights.provenance import Source, concat, rebuild, way_back
from onnxgen.weights.sidecar import (
    embed_bytes,
    header_of,
    in_order,
    is_sharded,
    read_tensors,
    same_content,
    write_pair,
    write_tensors,
)
from tests.support import forked


def source(array: np.ndarray, name: str = "w") -> Source:
    return Source.of(ir.tensor(array), name)


def bits(array: np.ndarray) -> bytes:
    return np.ascontiguousarray(array).tobytes()


TENSORS: dict[str, Any] = {
    "f32": np.array([0x7F800001, 0xFFC12345, 0x80000000, 0xFF800000, 1], np.uint32).view(np.float32),
    "f64": np.array([0x7FF0000000000001, 0x8000000000000000], np.uint64).view(np.float64),
    "f16": np.array([[np.inf, -np.inf], [-0.0, 5e-8]], np.float16),
    "bool": np.array([True, False, True]),
    "u8": np.arange(7, dtype=np.uint8),
    "i64": np.array([-(2**63), 2**63 - 1]),
    "scalar": np.array(3.5, np.float32),
    "empty": np.zeros((3, 0, 2), np.float32),
    "turned": source(np.arange(12, dtype=np.float32).reshape(3, 4)).transpose(),
    "packed": concat([source(np.ones((2, 3), np.int32)), source(np.zeros((1, 3), np.int32), "v")], 0),
}
ODD = {
    "bf16": np.arange(1 << 16, dtype=np.uint16).view(ml_dtypes.bfloat16),
    "f8": np.arange(256, dtype=np.uint8).view(ml_dtypes.float8_e4m3fn).reshape(16, 16),
    "f8_5": np.arange(256, dtype=np.uint8).view(ml_dtypes.float8_e5m2),
    "f8_z": np.arange(256, dtype=np.uint8).view(ml_dtypes.float8_e4m3fnuz),
    "f8_5_z": np.arange(256, dtype=np.uint8).view(ml_dtypes.float8_e5m2fnuz),
}


def value(tensor: Any) -> np.ndarray:
    return tensor.numpy() if isinstance(tensor, Source) else tensor


def write_safetensors(path: Path, tensors: Any, metadata: dict[str, str]) -> None:
    with open(path, "wb") as file:
        write_tensors(file, header_of(tensors, metadata), in_order(tensors), tensors)


def test_the_library_reads_every_bit(tmp_path: Path) -> None:
    path = tmp_path / "m.safetensors"
    write_safetensors(path, TENSORS, {"a": "é\n\"'", "b": ""})
    found = load_file(path)
    assert found.keys() == TENSORS.keys()
    for key, tensor in TENSORS.items():
        want = value(tensor)
        assert found[key].dtype == want.dtype and found[key].shape == want.shape and bits(found[key]) == bits(want)
    with safe_open(path, "np") as file:
        assert file.metadata() == {"a": "é\n\"'", "b": ""}
    assert embed_bytes(TENSORS, {"a": "é\n\"'", "b": ""}) == path.read_bytes()
    for key, entry in read_header(path)[1].items():
        assert entry.start % found[key].itemsize == 0, f"{key} is not aligned"


def test_torch_reads_types_that_numpy_lacks(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    path = tmp_path / "m.safetensors"
    write_safetensors(path, {key: source(array) for key, array in ODD.items()}, {})
    with safe_open(path, "pt") as file:
        for key, array in ODD.items():
            tensor = file.get_tensor(key)
            raw = tensor.view(torch.int16 if array.itemsize == 2 else torch.uint8).numpy()
            assert tuple(tensor.shape) == array.shape and bits(raw) == bits(array)
        assert file.get_tensor("bf16").dtype == torch.bfloat16 and file.get_tensor("f8").dtype == torch.float8_e4m3fn
    for key, array in read_tensors(path).items():
        assert array.dtype == ODD[key].dtype and bits(array) == bits(ODD[key])


def test_narrow_types_travel_wider_and_come_back_by_the_record(tmp_path: Path) -> None:
    w = np.arange(-8, 8).astype(ml_dtypes.int4).reshape(4, 4)
    (tmp_path / "u.bin").write_bytes(ir.tensor(w).tobytes() * 2)  # two numbers share a byte: not as they are stored
    u = ir.ExternalTensor("u.bin", 0, 8, ir.DataType.INT4, shape=ir.Shape((4, 4)), name="u", base_dir=tmp_path)
    keys = {"turned": source(w).transpose(), "whole": source(w, "v"), "outside": Source.of(u, "u")}
    write_safetensors(tmp_path / "m.safetensors", keys, {"wayback": json.dumps(way_back(keys))})
    assert load_file(tmp_path / "m.safetensors")["turned"].dtype == np.int8
    metadata, entries = read_header(tmp_path / "m.safetensors")
    assert entries["whole"].dtype == "I8" and entries["whole"].shape == (4, 4)
    for name in "wvu":
        got = rebuild(json.loads(metadata["wayback"]), name, read_tensors(tmp_path / "m.safetensors").__getitem__)
        assert got.dtype == w.dtype and bits(got) == bits(w)


def test_order_of_the_mapping_does_not_matter() -> None:
    back = dict(reversed(TENSORS.items()))
    assert embed_bytes(TENSORS, {"a": "1", "b": "2"}) == embed_bytes(back, {"b": "2", "a": "1"})


def test_what_has_no_place_is_refused() -> None:
    with pytest.raises(OnnxgenError, match="COMPLEX128"):
        embed_bytes({"a": np.zeros(2, np.complex128)}, {})
    with pytest.raises(OnnxgenError, match="__metadata__"):
        embed_bytes({"__metadata__": np.zeros(2)}, {})


def test_a_large_tensor_goes_in_chunks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(streamed, "CHUNK", 1000)
    w = np.random.default_rng(0).random((77, 123)).astype(np.float32)
    tensors = {"w": source(w), "turned": source(w).transpose(), "stepped": w[::3, ::2], "long": w.reshape(1, -1).T}
    write_safetensors(tmp_path / "m", tensors, {})
    for key, array in load_file(tmp_path / "m").items():
        assert bits(array) == bits(value(tensors[key])), key
    assert max(len(chunk) for chunk in streamed.stored_chunks("w", tensors["w"])) <= 1000


def external(folder: Path, array: np.ndarray, name: str) -> ir.ExternalTensor:
    (folder / f"{name}.bin").write_bytes(array.tobytes())
    shape, dtype = ir.Shape(array.shape), ir.DataType.from_numpy(array.dtype)
    return ir.ExternalTensor(f"{name}.bin", 0, array.nbytes, dtype, shape=shape, name=name, base_dir=folder)


def test_external_data_is_let_go_of(tmp_path: Path) -> None:
    tensor = external(tmp_path, np.arange(1000, dtype=np.float32), "w")
    write_safetensors(tmp_path / "m", {"w": Source.of(tensor, "w"), "x": np.zeros(3)}, {})
    assert tensor.raw is None, "still mapped"
    assert bits(load_file(tmp_path / "m")["w"]) == bits(np.arange(1000, dtype=np.float32))


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")
@pytest.mark.skipif(not hasattr(os, "copy_file_range"), reason="Linux copies from file to file")
@pytest.mark.parametrize("copies", [9999, 3, 0, None], ids=["whole", "a few bytes", "none at all", "an error"])
def test_what_lies_in_a_file_as_it_is_stored_is_copied(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, copies: int | None
) -> None:
    w = Source.of(external(tmp_path, np.random.default_rng(0).random((6, 4, 5), np.float32), "w"), "w")
    tensors = {"w": w, "flat": w.reshape((24, 5)), "rows": w.slice(0, 2, 5), "one": w.slice(0, 3, 4).squeeze(0)}
    tensors |= {"turned": w.transpose(), "columns": w.slice(2, 1, 3), "cast": w.cast(ir.DataType.FLOAT16)}
    copied = []

    def copy(source: int, target: int, count: int, start: int) -> int:
        if copies is None and copied:
            raise OSError(errno.EXDEV, os.strerror(errno.EXDEV))
        copied.append(real(source, target, min(count, 9999 if copies is None else copies), start) if copies != 0 else 0)
        return copied[-1]

    real = os.copy_file_range
    monkeypatch.setattr(os, "copy_file_range", copy)
    write_safetensors(tmp_path / "m", tensors, {"a": "b"})
    assert (tmp_path / "m").read_bytes() == embed_bytes(tensors, {"a": "b"})
    if copies:
        assert sum(copied) == sum(tensors[key].nbytes for key in ("w", "flat", "rows", "one"))


def test_external_data_costs_no_anonymous_memory(tmp_path: Path) -> None:
    code = """
import re, sys, threading, onnx_ir as ir
from pathlib import Path
from onnxgen.weights.provenance import Source
from onnxgen.weights.sidecar import write_pair
folder, n = Path(sys.argv[1]), 64 << 20
with open(folder / "w.bin", "wb") as file:
    file.truncate(4 * n)
def anonymous():
    return int(re.search(r"RssAnon:\\s+(\\d+)", Path("/proc/self/status").read_text())[1]) >> 10
t = ir.ExternalTensor("w.bin", 0, 4 * n, ir.DataType.FLOAT, shape=ir.Shape((n,)), name="w", base_dir=folder)
peak, before, done = [0], anonymous(), threading.Event()
def watch():
    while not done.wait(0.005):
        peak[0] = max(peak[0], anonymous())
thread = threading.Thread(target=watch); thread.start()
write_pair(folder / "m.py", None, folder / "m", {"w": Source.of(t, "w")}, {})
done.set(); thread.join()
print(peak[0] - before)
"""
    done = forked.run(["-c", code, tmp_path], ours=True)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) < 64, f"{done.stdout} MiB for 256 MiB of external data"


# ---- the pair --------------------------------------------------------------------------------------------------------


def weight(seed: int, size: int = 40) -> dict[str, Any]:
    return {f"layer{i}.weight": source(np.full((size,), seed * 10 + i, np.float32), f"w{i}") for i in range(3)}


def write(folder: Path, seed: int, shard_size: int = 10**9, **more: Any) -> list[Path]:
    name = "model.safetensors" + (INDEX if is_sharded(weight(seed), shard_size) else "")
    return write_pair(
        folder / "model.py",
        f'FINGERPRINT = "{seed}"; WEIGHTS = "{name}"\n',
        folder / "model.safetensors",
        weight(seed),
        {"fingerprint": str(seed)},
        shard_size,
        **more,
    )


def content(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir()) if path.is_file()}


def loads(folder: Path) -> str | None:
    """The fingerprint of a pair that loads; None if it refuses to, or there is none."""
    if not (folder / "model.py").exists():
        return None
    _, wanted, _, sidecar, _ = (folder / "model.py").read_text().split('"')
    tensors: dict[str, np.ndarray] = {}
    try:
        for path in sidecar_files(folder / sidecar):
            with safe_open(path, "np") as file:
                if file.metadata()["fingerprint"] != wanted:
                    return None
            tensors |= load_file(path)
    except (OSError, OnnxgenError, SafetensorError):
        return None
    if tensors.keys() != weight(int(wanted)).keys():
        return None
    for key, tensor in weight(int(wanted)).items():
        np.testing.assert_array_equal(tensors[key], tensor.numpy(), "a pair that loads must be right")
    return wanted


def test_shards_in_the_hugging_face_layout(tmp_path: Path) -> None:
    assert not is_sharded(weight(1), 480) and is_sharded(weight(1), 479)
    files = write(tmp_path, 1, shard_size=320)
    names = ["model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors", "model.safetensors.index.json"]
    assert [path.name for path in files] == [*names, "model.py"] and sorted(content(tmp_path)) == sorted(
        [*names, "model.py"]
    )
    index = json.loads((tmp_path / names[2]).read_text())
    assert index["metadata"]["total_size"] == 480 and index["metadata"]["fingerprint"] == "1"
    assert index["weight_map"] == {"layer0.weight": names[0], "layer1.weight": names[0], "layer2.weight": names[1]}
    for key, name in index["weight_map"].items():
        assert key in load_file(tmp_path / name)
    assert loads(tmp_path) == "1"
    assert {key: bits(a) for key, a in read_tensors(tmp_path / "model.safetensors").items()} == {
        key: bits(s.numpy()) for key, s in weight(1).items()
    }


def test_shards_are_filled(tmp_path: Path) -> None:
    tensors = {f"k{i}": np.zeros(size, np.uint8) for i, size in enumerate((160, 160, 160, 160, 400, 1, 319, 1))}
    metadata = {"fingerprint": "1"}
    write_pair(tmp_path / "m.py", "", tmp_path / "m.safetensors", tensors, metadata, 320)
    held = [list(load_file(path)) for path in sorted(tmp_path.glob("*.safetensors"))]
    assert held == [["k0", "k1"], ["k2", "k3"], ["k4"], ["k5", "k6"], ["k7"]]


def test_a_sample_of_a_large_tensor_is_small() -> None:
    large = np.arange(10**5, dtype=np.float32)
    assert 8 <= len(streamed.sample("k", source(large))) // 4 < 80
    assert streamed.sample("k", large) == streamed.sample("k", source(large)) != streamed.sample("k", large + 1)


@pytest.mark.parametrize(("before", "after"), [(200, 10**9), (10**9, 200), (200, 320)])
def test_another_layout_leaves_nothing_of_the_old_one(tmp_path: Path, before: int, after: int) -> None:
    write(tmp_path, 1, shard_size=before)
    written = write(tmp_path, 2, shard_size=after)
    assert sorted(content(tmp_path)) == sorted(path.name for path in written) and loads(tmp_path) == "2"


def test_the_weights_of_other_networks_in_the_folder_stay(tmp_path: Path) -> None:
    """They are onnxgen's, too: what is of an earlier write is told by its name."""
    for number, shard_size in enumerate((10**9, 200)):
        folder = tmp_path / "others"
        folder.mkdir(exist_ok=True)
        write(folder, number, shard_size=shard_size)
        for path in folder.glob("*.safetensors*"):
            path.rename(tmp_path / path.name.replace("model", f"other{number}_model"))
    write(tmp_path, 1, shard_size=200)
    kept = {name for name in content(tmp_path) if name.startswith("other")}
    assert len(kept) > 3
    written = {path.name for path in write(tmp_path, 2)}
    assert {*content(tmp_path)} == {*kept, *written}


def test_files_of_others_are_neither_replaced_nor_removed(tmp_path: Path) -> None:
    theirs = save({"mine": np.zeros(3)}, {"format": "pt"})
    (tmp_path / "model-00001-of-00009.safetensors").write_bytes(theirs)
    (tmp_path / "model-00002-of-00009.safetensors").write_bytes(b"half a download")
    write(tmp_path, 1)
    assert len(content(tmp_path)) == 4
    (tmp_path / "model.safetensors").write_bytes(theirs)
    before = content(tmp_path)
    with pytest.raises(OnnxgenError, match="did not write.*--force"):
        write(tmp_path, 2)
    assert content(tmp_path) == before
    write(tmp_path, 2, force=True)
    assert loads(tmp_path) == "2"
    (tmp_path / "model.safetensors").write_bytes(theirs[:20])  # nothing in it that anyone could miss
    write(tmp_path, 3)
    assert loads(tmp_path) == "3"


@pytest.mark.parametrize("theirs", [b"", b"my notes", b"\x80\x02 a pickle", bytes(range(256)) * 999])
def test_what_is_no_weights_at_all_is_kept_where_no_module_says_that_it_is_ours(tmp_path: Path, theirs: bytes) -> None:
    (tmp_path / "model.safetensors").write_bytes(theirs)
    with pytest.raises(OnnxgenError, match="did not write it.*--force"):
        write(tmp_path, 1)
    assert content(tmp_path) == {"model.safetensors": theirs}
    write(tmp_path, 1, force=True)
    assert loads(tmp_path) == "1"


def test_fresh_or_not(tmp_path: Path) -> None:
    path, tensors, metadata = tmp_path / "model.safetensors", weight(1), {"fingerprint": "1"}
    assert not same_content(path, tensors, metadata)
    for size in (10**9, 200):
        write(tmp_path, 1, shard_size=size)
        assert same_content(path, tensors, metadata, size) and same_content(path, tensors, None, size)
        assert not same_content(path, tensors, {"fingerprint": "2"}, size)
        assert not same_content(path, weight(2), metadata, size)
        assert not same_content(path, dict(list(tensors.items())[:2]), metadata, size)
        assert not same_content(path, tensors, metadata, 320)
        for name in content(tmp_path):
            if name != "model.py":
                good = (tmp_path / name).read_bytes()
                for bad in (good[:-1], good + b" ", b"", good[:-1] + bytes([good[-1] ^ 1])):
                    (tmp_path / name).write_bytes(bad)
                    assert not same_content(path, tensors, metadata, size), name
                (tmp_path / name).write_bytes(good)
    write_safetensors(path, tensors, {**MARK, "fingerprint": "0"})
    assert not same_content(path, tensors, metadata, 200), "an older layout is left beside it"


def test_broken_headers_are_errors(tmp_path: Path) -> None:
    cut, marked = save({"a": np.zeros(9)})[:-1], [b'{"__metadata__":' + text + b"}" for text in (b"[]", b'{"a":1}')]
    headers = [len(text).to_bytes(8, "little") + text for text in (b"[]", *marked)]
    for data in (b"", b"12345678", b"\xff" * 50, cut, *headers):
        (tmp_path / "m").write_bytes(data)
        with pytest.raises(OnnxgenError, match="not a safetensors file"):
            read_header(tmp_path / "m")
        with pytest.raises(SafetensorError):
            safe_open(tmp_path / "m", "np")


def test_longer_headers_than_the_library_reads_are_errors(tmp_path: Path) -> None:
    with open(tmp_path / "m", "wb") as file:  # sparse: it takes no place
        file.write((100_000_001).to_bytes(8, "little"))
        file.truncate(100_000_100)
    with pytest.raises(OnnxgenError, match="the header is cut short"):
        read_header(tmp_path / "m")
    with pytest.raises(SafetensorError, match="header too large"):
        safe_open(tmp_path / "m", "np")


def test_an_index_cannot_lead_elsewhere(tmp_path: Path) -> None:
    (tmp_path / "m.safetensors.index.json").write_text(json.dumps({"weight_map": {"a": "../secret.safetensors"}}))
    with pytest.raises(OnnxgenError, match="not its shards"):
        read_tensors(tmp_path / "m.safetensors")


# ---- errors ----------------------------------------------------------------------------------------------------------


@pytest.fixture(params=["first", "again"])
def folder(tmp_path: Path, request: pytest.FixtureRequest) -> Path:
    if request.param == "again":
        write(tmp_path, 1)
    return tmp_path


class Fault:
    """Fails, or kills the process, at the n-th call of anything that touches a file."""

    CALLS = ("replace", "link", "fsync", "unlink", "open", "copy_file_range")

    def __init__(self, at: int, act: Any) -> None:
        self.at, self.act, self.calls = at, act, 0

    def install(self, monkeypatch: pytest.MonkeyPatch) -> None:
        for name in self.CALLS:
            monkeypatch.setattr(os, name, self._wrap(getattr(os, name)))
        monkeypatch.setattr(sidecar, "write_tensors", self._wrap(self._torn))

    def _torn(self, file: Any, header: bytes, keys: Any, tensors: Any) -> None:
        """Written in two halves, with a fault possible in between."""
        data = streamed.io.BytesIO()
        data.write(header)
        for key in keys:
            for chunk in streamed.stored_chunks(key, tensors[key]):
                data.write(chunk)
        half = len(data.getvalue()) // 2
        file.write(data.getvalue()[:half])
        file.flush()
        self._count()
        file.write(data.getvalue()[half:])

    def _count(self) -> None:
        self.calls += 1
        if self.calls == self.at:
            self.act()

    def _wrap(self, real: Any) -> Any:
        def call(*args: Any, **kwargs: Any) -> Any:
            self._count()
            return real(*args, **kwargs)

        return call


def full() -> None:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def interrupt() -> None:
    raise KeyboardInterrupt


@pytest.mark.parametrize("act", [full, interrupt])
@pytest.mark.parametrize("shard_size", [10**9, 200])
def test_an_error_at_any_step_leaves_all_as_it_was(folder: Path, shard_size: int, act: Any) -> None:
    before = content(folder)
    for at in range(1, 200):
        fault = Fault(at, act)
        with pytest.MonkeyPatch.context() as monkeypatch:
            fault.install(monkeypatch)
            try:
                write(folder, 2, shard_size)
            except (OnnxgenError, KeyboardInterrupt) as error:
                assert isinstance(error, KeyboardInterrupt) or "No space left" in str(error)
                failed = True
            else:
                failed = False
        if fault.calls < at:
            break
        if loads(folder) == "2":  # a step that may fail (hard links, syncing folders, tidying up) or came after
            assert act is interrupt or not failed, f"step {at}"
            write(folder, 1)
            before = content(folder)
        else:
            assert failed and content(folder) == before, f"step {at}"
    assert 8 < at < 199 and loads(folder) == "2"
    assert not list(folder.glob(".*"))


@pytest.mark.parametrize("wrong", ["folder", "parent", "file as parent"])
def test_paths_that_cannot_be_written(tmp_path: Path, wrong: str) -> None:
    out, sidecar = tmp_path / "model.py", tmp_path / "model.safetensors"
    write(tmp_path, 1)
    if wrong == "folder":
        out = tmp_path / "a"
        out.mkdir()
    else:
        out = tmp_path / ("gone" if wrong == "parent" else "model.safetensors") / "model.py"
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir() if path.is_file()}
    with pytest.raises(OnnxgenError, match="cannot write") as caught:
        write_pair(out, "x = 1\n", sidecar, weight(2), {})
    assert len(str(caught.value).splitlines()) == 1
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir() if path.is_file()} == before


def test_module_and_weights_of_one_name(tmp_path: Path) -> None:
    with pytest.raises(OnnxgenError, match="both"):
        write_pair(tmp_path / "m", "", tmp_path / "m", weight(1), {})
    assert not content(tmp_path)


def test_external_data_that_went_missing_or_short(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    before, data = content(folder), tmp_path_factory.mktemp("data")
    for shorten in (lambda p: p.unlink(), lambda p: p.write_bytes(b"1234")):
        tensor = external(data, np.arange(100, dtype=np.float32), "w")
        shorten(data / "w.bin")
        with pytest.raises(OnnxgenError, match="cannot read weight 'k'"):
            write_pair(folder / "model.py", "", folder / "model.safetensors", {"k": Source.of(tensor, "w")}, {})
        assert content(folder) == before


@pytest.mark.skipif(os.name == "nt", reason="needs links and modes of POSIX")
def test_links_and_modes_are_kept(tmp_path: Path) -> None:
    real, here = tmp_path / "real", tmp_path / "here"
    real.mkdir()
    here.mkdir()
    write(real, 1)
    (real / "model.py").chmod(0o640)
    for name in ("model.py", "model.safetensors"):
        (here / name).symlink_to(real / name)
    write(here, 2)
    assert (here / "model.py").is_symlink() and loads(real) == loads(here) == "2"
    assert (real / "model.py").stat().st_mode & 0o777 == 0o640


# ---- kills -----------------------------------------------------------------------------------------------------------

KILLED = """
import os, sys
from pathlib import Path
import pytest
sys.path.insert(0, {tests!r})
import test_weights as t
folder, (shard_size, old_size, first) = Path(sys.argv[1]), map(int, sys.argv[2:])
outcomes = []
for at in range(first, 200, 2):
    t.write(folder, 1, old_size)
    child = os.fork()
    if child == 0:
        t.Fault(at, lambda: os._exit(9)).install(pytest.MonkeyPatch())
        t.write(folder, 2, shard_size)
        os._exit(0)
    killed = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 9
    outcomes.append(t.loads(folder))
    t.write(folder, 3, shard_size)
    assert t.loads(folder) == "3", "the next run repairs"
    assert not list(folder.glob(".*")), "and cleans up"
    if not killed:
        break
print(t.json.dumps(outcomes))
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="kills forks")
@pytest.mark.parametrize("first", [1, 2])  # and every other step from there
@pytest.mark.parametrize(
    ("old_size", "shard_size"), [(10**9, 10**9), (200, 200), (10**9, 200), (200, 10**9), (200, 320)]
)
def test_killed_at_any_step(tmp_path: Path, old_size: int, shard_size: int, first: int) -> None:
    code = KILLED.format(tests=str(Path(__file__).parent))
    done = forked.run(["-c", code, tmp_path, str(shard_size), str(old_size), str(first)], ours=True)
    assert done.returncode == 0, done.stderr
    outcomes = json.loads(done.stdout)
    stages = [stage for stage, _ in itertools.groupby(outcomes)]
    # One file and an index with shards have different names: there the old pair stands until the new one does.
    same_names = (old_size < 480) == (shard_size < 480)
    assert 2 * len(outcomes) > 8 and stages == (["1", None, "2"] if same_names else ["1", "2"])


# ---- rivals ----------------------------------------------------------------------------------------------------------


@pytest.mark.skipif(not hasattr(os, "fork"), reason="forks rivals")
def test_many_at_once_end_in_one_consistent_pair(tmp_path: Path) -> None:
    code = f"""
import sys
from pathlib import Path
sys.path.insert(0, {str(Path(__file__).parent)!r})
import test_weights as t
for turn in range(20):
    t.write(Path(sys.argv[1]), int(sys.argv[2]), [10**9, 200, 320][turn % 3])
"""
    with ThreadPoolExecutor() as pool:
        rivals = list(pool.map(lambda seed: forked.run(["-c", code, tmp_path, seed], timeout=120, ours=True), "123"))
    assert [rival.returncode for rival in rivals] == [0, 0, 0], rivals
    assert loads(tmp_path) in {"1", "2", "3"} and not list(tmp_path.glob(".*"))


def test_a_second_run_waits_and_keeps_the_temporaries_of_the_first(tmp_path: Path) -> None:
    done = threading.Event()

    def rival() -> None:
        write(tmp_path, 2)
        done.set()

    with atomic.replacing([tmp_path]) as files:
        with files.file(tmp_path / "model.py") as file:
            file.write(b"first")
        thread = threading.Thread(target=rival)
        thread.start()
        assert not done.wait(0.3)
        assert len(list(tmp_path.glob(f".*{atomic.SUFFIX}"))) == 1
    thread.join()
    assert loads(tmp_path) == "2"


@pytest.fixture(autouse=True)
def _no_threads_left() -> Iterator[None]:
    before = set(threading.enumerate())  # other tests' libraries may have some
    yield
    assert set(threading.enumerate()) <= before
