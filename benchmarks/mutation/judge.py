"""What a generated module means: what it computes, what of it is trained, and how; and whether two mean the same."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import safe_open

from onnxgen.runtime.load import from_pretrained, imported
from onnxgen.verify.compare import Tolerance, compare
from onnxgen.verify.convert import to_numpy, to_torch
from onnxgen.weights.provenance import rebuild
from tests.support.clean_source import assert_safe

TOLERANCE = Tolerance()
LOOSE = Tolerance(1e-2, 1e-4)  # of gradients and statistics, sums of many terms, as a part of the largest
Feeds = Mapping[str, Any]


@dataclass
class Meaning:
    """What a module means.

    Attributes:
        unclean: why the file may not even be imported.
        outputs: for each set of inputs, in eval mode; the name of the error where `forward` raises one.
        slack: for each of these outputs, by how much another right one may differ: twice what this one differs from the
            oracle's, which is something only where a quantised file became floats.
        trained: of each tensor of the ONNX file that has a way back, a digest of it, and whether it is trained.
        fixed: those of `trained` that no training changes; they need no way back, and may as well stand in the code.
        initial: a digest of each tensor of the state dict before it is trained, by key.
        training: seeded outputs in training mode; then gradients, and the state dict afterwards, by key.
    """

    unclean: str = ""
    outputs: list[Any] = field(default_factory=list)
    slack: list[list[float]] = field(default_factory=list)
    trained: dict[str, tuple[str, bool]] = field(default_factory=dict)
    fixed: set[str] = field(default_factory=set)
    initial: dict[str, str] = field(default_factory=dict)
    training: Any = None
    gradients: dict[str, Any] = field(default_factory=dict)
    state: dict[str, Any] = field(default_factory=dict)


def meaning(module: Path, feeds: Sequence[Feeds]) -> Meaning:
    """Import a generated file if it is clean, load its weights, and run it. Raises what that raises."""
    found = Meaning()
    try:
        assert_safe(module.read_text(encoding="utf-8"))
    except (AssertionError, SyntaxError) as error:
        found.unclean = f"{type(error).__name__}: {error}"[:200]
        return found
    with imported(module) as file:
        model = from_pretrained(file, module)
        found.trained, keys = _trained(model, module.with_suffix(".safetensors"))
        model.eval()
        found.outputs = [_outputs(model, feed)[0] for feed in feeds]
        found.initial = {key: _digest(to_numpy(value)) for key, value in model.state_dict().items()}
        model.train()
        torch.manual_seed(0)
        found.training, tensors = _outputs(model, feeds[0])
        found.gradients = _gradients(model, tensors)
        found.state = {key: to_numpy(value) for key, value in model.state_dict().items()}
        same = {key for key, array in found.state.items() if _digest(array) == found.initial[key]}
        found.fixed = {name for name, (_, trained) in found.trained.items() if not trained and keys[name] <= same}
    return found


def _outputs(model: Any, feed: Feeds) -> tuple[Any, list[Any]]:
    try:
        made = model(*[to_torch(value) for value in feed.values()])
    except Exception as error:
        return type(error).__name__, []
    made = list(made) if isinstance(made, tuple) else [made]
    return [to_numpy(value.detach() if isinstance(value, torch.Tensor) else value) for value in made], made


def _gradients(model: Any, outputs: list[Any]) -> dict[str, Any]:
    """Of a weighted sum of all outputs, by parameter; NaN counts as 0, else nothing could be said of the others."""
    floats = [t for t in outputs if isinstance(t, torch.Tensor) and t.is_floating_point() and t.requires_grad]
    trained = {name: p for name, p in model.named_parameters() if p.requires_grad}
    if not floats or not trained:
        return dict.fromkeys(trained)
    total = sum((t.double().nan_to_num().reshape(-1) * torch.linspace(0.5, 1.5, t.numel())).sum() for t in floats)
    found = torch.autograd.grad(total, list(trained.values()), allow_unused=True)  # type: ignore[arg-type]
    return {name: None if g is None else g.double().numpy() for name, g in zip(trained, found)}


def _trained(model: Any, sidecar: Path) -> tuple[dict[str, tuple[str, bool]], dict[str, set[str]]]:
    """See `Meaning`; and the keys that each tensor is made of."""
    parameters = {name for name, p in model.named_parameters(remove_duplicate=False) if p.requires_grad}
    found, keys = {}, {}
    with safe_open(sidecar, "np") as file:
        record = json.loads((file.metadata() or {}).get("wayback", "{}"))
        for name in record:
            read: set[str] = set()

            def tensor(key: str, read: set[str] = read) -> Any:
                read.add(key)
                return file.get_tensor(key)

            found[name] = _digest(rebuild(record, name, tensor)), bool(read & parameters)
            keys[name] = read
    return found, keys


def _digest(array: Any) -> str:
    return hashlib.sha256(np.ascontiguousarray(array).tobytes()).hexdigest()[:12]


def difference(found: Meaning, wanted: Meaning) -> str:
    """How a module differs in meaning from the right one; empty where it does not."""
    if found.unclean:
        return f"unclean file: {found.unclean}"
    for i, (a, b, slack) in enumerate(zip(found.outputs, wanted.outputs, wanted.slack)):
        if why := _differs(a, b, slack):
            return f"output of run {i}: {why}"
    for name, (digest, trained) in wanted.trained.items():
        if name not in found.trained and name in wanted.fixed:
            continue
        if name not in found.trained:
            return f"{name!r} has no way back"
        if found.trained[name][0] != digest:
            return f"{name!r} comes back different"
        if found.trained[name][1] != trained:
            return f"{name!r} is {'not ' if trained else ''}trained"
    if why := _differs(found.training, wanted.training, wanted.slack[0]):
        return f"training: {why}"
    for what, ours, theirs in (
        ("gradient", found.gradients, wanted.gradients),
        ("state after a step", found.state, wanted.state),
    ):
        if why := _far(ours, theirs, {key for key, one in wanted.initial.items() if found.initial.get(key) == one}):
            return f"{what} of {why}"
    return ""


def slack(outputs: Sequence[Any], oracle: Sequence[Any]) -> list[float]:
    """By how much another right module may differ in each output (see `Meaning`)."""
    found = []
    for ours, theirs in zip(outputs, oracle):
        is_float = isinstance(ours, np.ndarray) and ours.dtype.kind == "f" and ours.shape == np.shape(theirs)
        found.append(2 * float(np.nan_to_num(np.abs(ours - theirs), posinf=0).max(initial=0)) if is_float else 0.0)
    return found


def _differs(found: Any, wanted: Any, slack: Sequence[float]) -> str:
    if isinstance(found, str) or isinstance(wanted, str):
        return "" if isinstance(wanted, str) else f"raises {found}"  # what was an error before may be anything
    if found is None or wanted is None or len(found) != len(wanted):
        return "" if found is wanted else "another number of outputs"
    for a, b, far in zip(found, wanted, slack):
        if why := compare(b, a, TOLERANCE, slack=np.asarray(far) if far else None).why:
            return why
    return ""


def _far(found: dict[str, Any], wanted: dict[str, Any], same: set[str]) -> str:
    """How tensors differ, as parts of the largest number; nothing is told where the network is cut otherwise.

    `same`: keys whose tensors were the same before. Others are of a part that is cut otherwise, or stored in another
    order: of a square matrix the shape does not tell.
    """
    if {key: np.shape(array) for key, array in found.items()} != {
        key: np.shape(array) for key, array in wanted.items()
    }:
        return ""
    floats = [array for array in wanted.values() if array is not None and array.dtype.kind == "f" and array.size]
    largest = max([float(np.abs(np.nan_to_num(array, posinf=0, neginf=0)).max()) for array in floats], default=0) or 1.0
    for key, array in wanted.items():
        if key not in same:
            continue
        if array is None or found[key] is None:
            if found[key] is not array:
                return f"{key}: there is {'none' if found[key] is None else 'one'}"
        elif array.dtype.kind != "f":
            if why := compare(array, found[key], TOLERANCE).why:
                return f"{key}: {why}"
        elif why := compare(array / largest, found[key] / largest, LOOSE).why:
            return f"{key}: {why}"
    return ""
