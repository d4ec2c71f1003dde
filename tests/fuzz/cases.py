"""The folder that a case lies in: the model, and what its external data may point at."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

DATA = bytes(range(256)) * 16
LOCATIONS = (
    *(
        "w.bin",
        "sub/w.bin",
        "./w.bin",
        "sub//w.bin",
        "link.bin",
        "hard.bin",
        "pipe.bin",
        "sub",
        "empty.bin",
        "none.bin",
    ),
    *("../secret.bin", "sub/../w.bin", "/etc/passwd", "C:\\w.bin", "out/../../secret.bin", "away/secret.bin", "", "."),
    *("w.bin\0", "w" * 300, "model.onnx", "\\\\host\\share", "~/w.bin", "file:///etc/passwd", "%77.bin", "w.bin/x"),
)


class Place:
    """A folder with a model and its data, an output folder in it, and around it a secret that nobody may touch."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.folder, self.out = root / "in", root / "in" / "out"
        self.model = self.folder / "model.onnx"
        (self.folder / "sub").mkdir(parents=True, exist_ok=True)
        self.out.mkdir(exist_ok=True)
        (root / "elsewhere").mkdir(exist_ok=True)
        for path in (root / "secret.bin", root / "elsewhere" / "secret.bin", self.folder / "w.bin"):
            path.write_bytes(DATA)
        (self.folder / "sub" / "w.bin").write_bytes(DATA)
        (self.folder / "empty.bin").write_bytes(b"")
        self._once("link.bin", lambda path: path.symlink_to(root / "secret.bin"))
        self._once("away", lambda path: path.symlink_to(root / "elsewhere"))
        self._once("hard.bin", lambda path: os.link(root / "secret.bin", path))
        self._once("pipe.bin", os.mkfifo)

    def _once(self, name: str, make: object) -> None:
        path = self.folder / name
        if not path.is_symlink() and not path.exists():
            make(path)  # type: ignore[operator]

    def put(self, data: bytes) -> Path:
        """Write the model."""
        self.model.write_bytes(data)
        return self.model

    def files(self) -> Iterator[str]:
        """Everything that lies around the output folder."""
        for folder, folders, files in os.walk(self.root):
            if Path(folder) == self.folder:
                folders.remove("out")
            yield from (os.path.join(folder, name) for name in (*folders, *files))

    def clean(self) -> list[str]:
        """Empty the output folder; returns what was in it."""
        found = sorted(os.listdir(self.out))
        for name in found:
            (self.out / name).unlink()
        return found
