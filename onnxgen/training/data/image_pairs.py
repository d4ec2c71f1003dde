"""Images with an image each as the target: two folders of files with equal names."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from onnxgen.training.data.arrays import Columns, in_columns
from onnxgen.training.data.faults import Faults
from onnxgen.training.data.folder import IMAGE, Images, Targets
from onnxgen.training.data.layout import SUFFIXES, images_in
from onnxgen.training.data.looking import Seen, looked, looked_at
from onnxgen.training.data.pairs import laid_out, paired, unread
from onnxgen.training.data.samples import Samples
from onnxgen.training.data.source import DataSource
from onnxgen.training.tasks import task_for

if TYPE_CHECKING:
    pass

TARGET, TASK = "target", task_for("images")
# The folders of inputs and of targets, by their usual names.
FOLDERS = (("input", "target"), ("inputs", "targets"), ("noisy", "clean"), ("low", "high"), ("lr", "hr"))
_DEEP = "it has 16 bits, of which 8 would be left; save its numbers as .npz"


def is_pairs(path: Path) -> bool:
    """Return True for a folder with two folders of images, called as inputs and targets are, that share a name."""
    return path.is_dir() and bool(_folders(path))


def _folders(root: Path) -> dict[str, tuple[Path, Path]]:
    """Return the folders of inputs and targets by part; {} if there are none."""
    for inputs, targets in FOLDERS:
        found = laid_out(root, targets, inputs)
        if any(_names(one) & _names(two) for one, two in found.values()):
            return found
    return {}


def _names(folder: Path) -> set[str]:
    return {path.relative_to(folder).with_suffix("").as_posix() for path in images_in(folder)}


def open_pairs(path: Path, *, strict: bool, labelled: bool = True) -> DataSource:
    """Open `input/` beside `target/` (see `FOLDERS`): columns "image" and "target".

    Input and target have the same name but for their ending. The target may be larger by a whole number, the same for
    all pairs.

    Raises:
        OnnxgenError: no pair can be used.
    """
    faults, parts, lost = Faults(path), {}, 0
    for part, (inputs, targets) in _folders(path).items():
        pairs, shared = paired(inputs, targets, SUFFIXES, faults, "target")
        parts[part] = {image: target for image, target in pairs.items() if target is not None}
        for image in (image for image, target in pairs.items() if target is None):
            faults.add(faults.place(image), "the image has no target")
        lost += shared + len(pairs) - len(parts[part])
    found = opened(path, parts, faults, strict, lost)
    inputs, targets = next(iter(_folders(path).values()))
    both = " and ".join(faults.place(folder) for folder in (inputs, targets))
    found.notes.append(f"{both} have pairs of images: trained with --task {TASK}; for classes, --task outputs")
    found.notes += unread(_folders(path))
    if not labelled:
        found.parts = {part: in_columns(samples).only([IMAGE]) for part, samples in found.parts.items()}
    return found


def opened(root: Path, parts: Mapping[str, Mapping[Path, Path]], faults: Faults, strict: bool, lost: int) -> DataSource:
    pairs = [pair for found in parts.values() for pair in found.items()]
    seen = looked_at(root, [path for pair in pairs for path in pair])
    deep = looked(root, [path for _, path in pairs if not isinstance(seen[path], str)], _depth, "depths")
    factors = Counter(times for image, target in pairs if (times := _factor(seen[image], seen[target])))
    factor = factors.most_common(1)[0][0] if factors else 1
    sound = {image: _is_sound(image, target, seen, deep.get(target, ""), factor, faults) for image, target in pairs}
    kept = {part: [pair for pair in found.items() if sound[pair[0]]] for part, found in parts.items()}
    skipped = lost + sum(not fine for fine in sound.values())
    notes = faults.notes({part: len(found) for part, found in kept.items()}, strict, skipped)
    sizes: list[Any] = [{seen[pair[side]] for found in kept.values() for pair in found} for side in (0, 1)]
    size, target_size = (found.pop() if len(found) == 1 else None for found in sizes)
    made: dict[str, Samples] = {}
    for part, found in kept.items():
        images, targets = zip(*found)
        made[part] = Columns({IMAGE: Images(images, size), TARGET: Targets(targets, target_size)})
    whites = {IMAGE: 255.0, TARGET: 255.0}
    return DataSource(made, root.name, TARGET, whites, notes=notes, task=TASK, enlarged=factor, kinds=seen.kinds)


def _depth(path: Path) -> Seen:
    """Return the bits of a channel."""
    from PIL import Image

    with Image.open(path) as image:
        return (16 if image.mode.startswith("I") else 8,)


def _factor(image: Seen, target: Seen) -> int:
    """Return how many times larger the target is, in both directions; 0 if it is not a whole number."""
    if isinstance(image, str) or isinstance(target, str):
        return 0
    (height, width), sides = image[1:], target[1:]
    factor = sides[0] // height
    return factor if sides == (height * factor, width * factor) else 0


def _is_sound(image: Path, target: Path, seen: Mapping[Path, Seen], deep: Seen, factor: int, faults: Faults) -> bool:
    """Return False and add a fault if a pair can't be used."""
    one, two = seen[image], seen[target]
    if isinstance(one, str) or isinstance(two, str):
        for path, facts in ((image, one), (target, two)):
            if isinstance(facts, str):
                faults.add(faults.place(path), f"can't be read: {facts}")
    elif deep == (16,):
        faults.add(faults.place(target), _DEEP)
    elif _factor(one, two) != factor:
        times = "the size" if factor == 1 else f"{factor} times the size"
        size, wanted = f"{two[2]}x{two[1]}", f"{one[2]}x{one[1]}"
        faults.add(faults.place(target), f"the target is {size}, which is not {times} of {image.name}, {wanted}")
    else:
        return True
    return False
