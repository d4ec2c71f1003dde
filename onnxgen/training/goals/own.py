"""The parameters that goals have of their own. A run keeps those of its best epoch, for evaluations."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from weakref import WeakKeyDictionary

from torch import Tensor, nn

from onnxgen.errors import OnnxgenError, one_line
from onnxgen.training.goals.goal import Goal

_STATES: WeakKeyDictionary[nn.Module, dict[str, Tensor]] = WeakKeyDictionary()


def own_modules(goals: Sequence[Goal]) -> list[nn.Module]:
    """Return the goals that are modules."""
    return [goal for goal in goals if isinstance(goal, nn.Module)]


def keep_state(model: nn.Module, state: Mapping[str, Tensor]) -> None:
    """Remember the tensors of the goals that a model was trained towards, by the names in `nn.ModuleList(goals)`."""
    _STATES[model] = dict(state)


def restore(model: nn.Module, goals: Sequence[Goal], task: str = "this run") -> None:
    """Give goals the tensors that they had when this model object was trained.

    Raises:
        OnnxgenError: goals have parameters, and none are known for the model, or they do not fit.
    """
    modules = own_modules(goals)
    if not any(module.state_dict() for module in modules):
        return
    if (state := _STATES.get(model)) is None:
        what = f"{task}: the loss has parameters of its own, which only a run knows, and means nothing without them"
        raise OnnxgenError(what, help="evaluate the folder of the run; for a loss of each output, --task outputs")
    for number, module in enumerate(modules):
        own = {n.removeprefix(f"{number}."): t for n, t in state.items() if n.startswith(f"{number}.")}
        try:
            module.load_state_dict(own)
        except RuntimeError as error:
            raise OnnxgenError(f"the task's own parameters do not fit: {one_line(error)}") from error
