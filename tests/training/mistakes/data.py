"""Data with drawn faults: files, lists, tables, annotations and folders."""

from __future__ import annotations

import io
import os
import random
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import soundfile
from PIL import Image

from tests.training.damaged import VALUES, in_json

Fault = Callable[[Path, random.Random], str]
CELLS = (
    "", " ", "nan", "inf", "1e999", "-1", "x", '"', '""', "a\nb", "1,2", "é", "\x00", "x" * 200_000, "../../etc/passwd",
    "/etc/passwd", "../../../", "https://x.example/a.png", ".", "..", "None", "0", "1", "9" * 400, "'", "\ufeff",
    "=1+1",
    "d/a/0.png", "d/a", "small.py", "\u202e", "1_000", "0x1f", "True", "2020-01-01", "$1$", "[1, 2]", "{}",
)  # fmt: skip


def _cell(draw: random.Random) -> str:
    return draw.choice(CELLS)


def _quoted(text: str) -> str:
    return '"' + text.replace('"', '""') + '"' if set(text) & set(',"\n') and text != '"' else text


def in_table(data: bytes, draw: random.Random) -> tuple[bytes, str]:
    """Change a table: its header, a cell, the length of a row, the separator, or which rows there are."""
    lines = [line.split(",") for line in data.decode("utf-8", "replace").splitlines()] or [[""]]
    row = draw.randrange(len(lines)) if draw.random() < 0.7 else 0
    place = draw.randrange(len(lines[row]))
    way = draw.randrange(11)
    value = _cell(draw)
    if way < 4:
        lines[row][place] = _quoted(value)
    elif way == 4:
        lines[0][place % len(lines[0])] = draw.choice(lines[0])
    elif way == 5:
        lines[row] = lines[row][: draw.randrange(len(lines[row]) + 1)] + [value] * draw.randrange(3)
    elif way == 6:
        lines = lines[: draw.choice((0, 1, 2, 3))]
    elif way == 7:
        lines = lines[1:]
    elif way == 8:
        for line in lines:
            line[place % len(line)] = _quoted(value)
    elif way == 9:
        for line in lines:
            del line[place % len(line)]
    else:
        mark, end = draw.choice((";", "\t", " ", "|")), draw.choice(("\r", "\n\n", "\x0b", "\u2028"))
        return end.join(mark.join(line) for line in lines).encode(), f"joined by {mark!r} and {end!r}"
    return "\n".join(",".join(line) for line in lines).encode(
        "utf-8", "surrogatepass"
    ), f"way {way} {row} {value[:20]!r}"


def in_lines_of_json(data: bytes, draw: random.Random) -> tuple[bytes, str]:
    lines = data.decode("utf-8", "replace").splitlines() or ["{}"]
    row = draw.randrange(len(lines))
    if draw.random() < 0.3:
        lines[row] = draw.choice(("", "null", "[]", "3", "{}", '"x"', "{", '{"image": [1]}', "[" * 5000, '{"a": NaN}'))
        return "\n".join(lines).encode(), f"line {row}: {lines[row][:30]}"
    try:
        lines[row], said = in_json(lines[row], draw)
    except ValueError:  # an earlier fault
        return data[:-1], "a letter less"
    if draw.random() < 0.3:
        said, lines = f"all: {said}", [lines[row]] * len(lines)
    return "\n".join(lines).encode("utf-8", "surrogatepass"), said


def in_whole_json(data: bytes, draw: random.Random) -> tuple[bytes, str]:
    try:
        made, said = in_json(data.decode(), draw)
    except ValueError:
        return data[:-1], "a letter less"
    return made.encode("utf-8", "surrogatepass"), said


def in_words(data: bytes, draw: random.Random) -> tuple[bytes, str]:
    """Change a word of a text: of labels of YOLO, a file of YAML or XML, or sentences."""
    lines = [line.split(" ") for line in data.decode("utf-8", "replace").splitlines()] or [[""]]
    row = draw.randrange(len(lines))
    place = draw.randrange(len(lines[row]))
    value = draw.choice(
        (*CELLS, "-0.5", "1.5", "[a", "{a: b}", "a: b", "- x", "*x", "&x", "!!python/object:x.y", "<a>")
    )
    lines[row][place] = value
    if draw.random() < 0.2:
        lines[row] = [value]
    return "\n".join(" ".join(line) for line in lines).encode("utf-8", "surrogatepass"), f"line {row}: {value[:20]!r}"


def in_image(data: bytes, draw: random.Random) -> tuple[bytes, str]:
    """Write an image with another mode, size or form."""
    image = Image.open(io.BytesIO(data))
    side = draw.choice(((1, 1), (8, 8), (3, 500), (2000, 1), (24, 16)))
    mode = draw.choice(("1", "L", "LA", "P", "RGBA", "I", "I;16", "F", "CMYK", "YCbCr", "RGB"))
    kind = draw.choice(("PNG", "JPEG", "GIF", "TIFF", "BMP", "WEBP", "ICO", "PPM"))
    made = io.BytesIO()
    try:
        image = image.convert("L").convert(mode) if mode == "I;16" else image.convert("RGB").convert(mode)
        image.resize(side).save(made, kind)
    except (OSError, ValueError, KeyError):
        return data[: draw.randrange(len(data))], "cut image"
    return made.getvalue(), f"{kind} {mode} {side}"


def in_sound(data: bytes, draw: random.Random) -> tuple[bytes, str]:
    length, channels = draw.choice((0, 1, 7, 96, 100_000)), draw.choice((1, 2, 8))
    kind = draw.choice(("PCM_16", "PCM_24", "FLOAT", "DOUBLE", "PCM_U8", "ULAW"))
    rate = draw.choice((1, 800, 8000, 192_000, 800_000))
    value = draw.choice((0.5, np.nan, np.inf, 1e30))
    sound = np.full((length, channels), value if kind in ("FLOAT", "DOUBLE") else 0.5)  # libsndfile crashes on others
    made = io.BytesIO()
    with soundfile.SoundFile(made, "w", rate, channels, kind, format="WAV") as file:
        if length:  # libsndfile crashes on none
            file.write(sound)
    return made.getvalue(), f"{kind} {sound.shape} at {rate}"


def in_arrays(data: bytes, draw: random.Random) -> tuple[bytes, str]:
    """Change an array of a file of arrays."""
    with np.load(io.BytesIO(data), allow_pickle=True) as file:
        arrays: dict[str, Any] = dict(file)
    name = draw.choice([*arrays])
    kinds: list[Callable[[Any], Any]] = [
        lambda a: a[:0], lambda a: a[: len(a) // 2], lambda a: a.astype(object), lambda a: a.astype(str),
        lambda a: a.astype(complex), lambda a: a.astype(np.float16), lambda a: a.astype(bool), lambda a:
        a.astype(">f8"),
        lambda a: a * np.nan, lambda a: a[..., None], lambda a: a.reshape(-1), lambda a: np.float32(3), lambda a: a.T,
        lambda a: np.array("x"), lambda a: a.astype("datetime64[s]"), lambda a: a.astype(np.longdouble), lambda a: a
        - 5,
        lambda a: np.zeros(len(a), [("a", "f4")]), lambda a: a.astype(np.uint64), lambda a: a * 1e300, lambda a: a +
        2**40,
        lambda a: np.array([{"a": 1}] * len(a), object), lambda a: a[:1], lambda a: a.astype(bytes),
    ]  # fmt: skip
    number = draw.randrange(len(kinds) + 2)
    with np.errstate(all="ignore"):
        if number < len(kinds):
            try:
                arrays[name] = kinds[number](arrays[name])
            except (TypeError, ValueError):
                arrays[name] = arrays[name][:3]
        elif number == len(kinds):
            del arrays[name]
        else:
            arrays[draw.choice(("", "x y", "../x", "x", "target", "é", "file"))] = arrays[name]
    made = io.BytesIO()
    np.savez(made, allow_pickle=True, **arrays)
    return made.getvalue(), f"{name}: way {number}"


KINDS: dict[str, Callable[[bytes, random.Random], tuple[bytes, str]]] = {
    ".csv": in_table, ".jsonl": in_lines_of_json, ".json": in_whole_json, ".txt": in_words, ".yaml": in_words,
    ".xml": in_words, ".png": in_image, ".wav": in_sound, ".npz": in_arrays,
}  # fmt: skip


def in_bytes(data: bytes, draw: random.Random) -> tuple[bytes, str]:
    """Change bytes of any file."""
    place, way = draw.randrange(len(data) + 1), draw.randrange(8)
    made = (
        b"",
        data[:place],
        data[:place] + draw.choice((b"\xff", b"\x00", b"\xed\xa0\x80", b"\n", b'"', b"{")) + data[place:],
        data[:place] + bytes(draw.randrange(256) for _ in range(8)) + data[place + 8 :],
        data.decode("latin-1").encode("utf-16"),
        b"\xef\xbb\xbf" + data,
        data + data,
        draw.randbytes(200),
    )[way]
    return made, f"bytes {way} at {place}"


def in_place(file: Path, draw: random.Random) -> str:
    """Put something else in the place of a file or a folder."""
    way = draw.randrange(9)
    other = file.with_name(
        draw.choice(("é", " ", "a b", "..x", "-x", "x" * 200, "$1$", "[a]", "a,b", "\n")) + file.suffix
    )
    if way == 7:
        other = Path(os.fsdecode(os.fsencode(file.parent) + b"/\xff" + os.fsencode(file.suffix)))
    if way >= 6:
        if not other.exists():
            file.rename(other)
        return f"{file.name} is called {other.name!r}"
    if way == 5 and file.is_file():
        file.with_suffix(
            draw.choice(("", ".PNG", ".txt", ".csv", ".json", ".parquet", ".tar", ".npy", ".tsv"))
        ).write_bytes(file.read_bytes())
        return f"{file.name} has a copy"
    shutil.rmtree(file) if file.is_dir() and not file.is_symlink() else file.unlink()
    if way == 1:
        file.mkdir()
    elif way == 2:
        file.symlink_to("nothing")
    elif way == 3:
        file.symlink_to(file.name)
    elif way == 4:
        file.symlink_to(draw.choice(("/dev/null", "/proc/self/mem", "..")))
    return f"{file.name}: {('removed', 'a folder', 'dangling', 'a loop', 'led out', 'removed')[way]}"


def fault(data: Path, draw: random.Random) -> str:
    """Put a fault into data, a file or a folder. Returns what was done."""
    below = [path for path in sorted(data.rglob("*")) if data.is_dir()] or [data]
    file = draw.choice(below)
    if not file.is_file() or draw.random() < 0.15:
        return in_place(file, draw)
    change = KINDS.get(file.suffix, in_bytes) if draw.random() < 0.75 else in_bytes
    before = file.read_bytes()
    try:
        made, said = change(before, draw)
    except Exception:  # there is an earlier fault in it, so it can't be read
        made, said = in_bytes(before, draw)
    file.write_bytes(made)
    if draw.random() < 0.15 and data.is_dir():  # all files of its kind are so
        for path in below:
            if path.suffix == file.suffix and path.is_file():
                path.write_bytes(made)
        said = f"all like it: {said}"
    return f"{file.relative_to(data.parent)}: {said}"


__all__ = ["CELLS", "VALUES", "fault"]
