"""What is known about the names of values.

Goes in: the roles and the names in the file of the values of one class, for each of its instances. Comes out: `Clues`,
one answer for all instances. `naming.py` names the local variables by them.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import TypeVar

from onnxgen.code.module_def import Input, ModuleDef
from onnxgen.common.names import FileText, ModulePath
from onnxgen.shapes.info import Info

# names that exporters give to unnamed values: functions and operators of torch and ONNX
_OPERATIONS = frozenset(
    """
    abs add addmm all any arange argmax argmin as_strided avg_pool batch_norm bmm cast cat ceil chunk clamp clip clone
    concat constant contiguous conv conv1d conv2d convolution cos div dropout einsum elu embedding eq equal erf exp
    expand flatten floor full gather ge gelu gemm getitem group_norm gt hardswish identity index index_select input
    instance_norm layer_norm le leaky_relu linear log logsoftmax lt masked_fill matmul max max_pool maximum mean min
    minimum mul native_layer_norm ne neg ones out output pad permute pow prelu reciprocal reduce_mean reduce_sum
    reducemean reducesum relu repeat reshape result rsqrt scalar_tensor scaled_dot_product_attention select shape
    sigmoid silu sin slice softmax split sqrt squeeze stack sub sum sym_size tanh tensor tile to topk transpose tril
    triu unflatten unsqueeze val var view where zeros item detach alias copy expand_as size reshape_ type_as float
    amax amin baddbmm bitwise_and bitwise_not bitwise_or clamp_max clamp_min cumsum empty fill flip full_like
    grid_sampler gru hardsigmoid hardtanh index_put lift_fresh linalg_vector_norm linspace log1p log_softmax
    logical_and logical_not logical_or logsumexp lstm max_pool1d max_pool2d max_pool3d mm new_full new_ones new_zeros
    nonzero ones_like pixel_shuffle prod remainder repeat_interleave roll round scatter scatter_add scatter_reduce
    selu sign softplus sort split_split split_with_sizes split_with_sizes_split tmp unbind unfold unsafe_split
    unsafe_split_split view_as zeros_like
    """.split()
)
_NOUNS = frozenset("embedding identity index input mean out output result shape size sum".split())
_MEANINGFUL = re.compile(r"[a-z][a-z_]{2,23}")
_COUNTED = re.compile(r"onnx::\w+|\d+|input\.\d+|.*_output_\d+")  # PyTorch's legacy exporter
_NUMBERS = re.compile(r"(_\d+)+$")
LONGEST = 24  # characters of a name from the file or of a layer's
Text = TypeVar("Text", str, FileText)


@dataclass
class Clues:
    """What is known about the values of one class, by id.

    Attributes:
        roles: the role of each value that has one ("q", "mask").
        hints: the name that each value has in the file.
        own: that name, if it looks as if a person gave it.
        given: the values that are inputs of the graph, in every instance.
        makers: the name of the layer that makes a value, in every instance, if it says something.
        assigned: the variable that the author's source assigns a value to in this class.
        becoming: the variable that the line assigns which makes a value on the way.
        outside: the variable that a value is where the class is called, in every instance.
    """

    roles: dict[str, str]
    hints: dict[str, FileText]
    own: dict[str, str]
    given: frozenset[str] = frozenset()
    makers: Mapping[str, str] = field(default_factory=dict)
    assigned: Mapping[str, str] = field(default_factory=dict)
    becoming: Mapping[str, str] = field(default_factory=dict)
    outside: Mapping[str, str] = field(default_factory=dict)

    def hint(self, value: str) -> FileText:
        """Return the name of a value in the file."""
        return self.hints.get(value) or FileText(value)


def is_operation(name: FileText) -> bool:
    """True for an exporter's name of a result that says only which operator makes it: `clamp`, `add_3`."""
    word = _NUMBERS.sub("", name.word())
    return word in _OPERATIONS and word not in _NOUNS


def input_name(
    argument: Input, is_root: bool, infos: Mapping[str, Info], roles: Mapping[str, str], hints: Mapping[str, FileText]
) -> str:
    """Return the name of an argument that has a fixed one, else "".

    Fixed are the graph's names at the root, roles, and the graph's names of integer tensors (token ids) everywhere.
    """
    value = argument.value
    name = hints.get(value) or FileText(value)
    hint = name.without("size.").identifier()
    if is_root and not is_made_up(name):
        return hint
    if roles.get(value, "x") != "x":
        return roles[value]
    dtype = infos.get(value, Info()).dtype
    is_index = dtype is not None and not dtype.is_floating_point() and hint.isidentifier() and hint.islower()
    is_index = is_index and not is_made_up(name)
    return hint if argument.annotation != "Tensor" or is_index else ""


def is_made_up(name: FileText) -> bool:
    """True if an exporter gave a value its name: `onnx::Gemm_0`, `input.1`, `12`, `linear_8`, `view_4_1`."""
    word = _NUMBERS.sub("", name.word())
    return name.fits(_COUNTED) or (word in _OPERATIONS and word not in ("output", "result", name.word()))


def says_what(name: FileText) -> bool:
    """True if the name of a result in the file says what it is: `boxes`, but not `clamp_3`."""
    return 0 < len(name.word()) <= LONGEST and not is_made_up(name) and not is_operation(name)


def is_general(name: FileText) -> bool:
    """True for a name that any result may have: `output0`, `result`, `y`, `h2`, `final_output`."""
    word = name.word().rstrip("_0123456789").rstrip("s")
    return len(word) < 2 or word.removeprefix("final_").removeprefix("model_") in ("out", "output", "result")


def own_name(hint: FileText) -> str:
    """Return a value's name in the file if it is an identifier and not made from an operator's name, else ""."""
    name = hint.word()
    plain = name.strip("_")
    is_made = plain in _OPERATIONS or any(part == "val" for part in plain.split("_"))
    return name if _MEANINGFUL.fullmatch(name) and len(plain) > 2 and not is_made else ""


def agree(module: ModuleDef, alike: list[Mapping[str, str]], path: ModulePath) -> Clues:
    """Return the clues of a class; where its instances differ, the majority decides.

    `alike`: for each instance its own values, by the values of the class. `path`: of the instance whose values these
    are, which alone says what the author's source calls them.
    """
    columns: dict[str, list[str]] = {}
    for own in alike:
        for value, its in own.items():
            columns.setdefault(value, []).append(its)
    roles = {v: _commonest(module.roles.get(its, "") for its in column) for v, column in columns.items()}
    hints = {v: _commonest(module.hint(its) for its in column) for v, column in columns.items()}
    graph = {argument.value for argument in module.inputs}
    given = frozenset(v for v, column in columns.items() if graph.issuperset(column))
    own_names = {v: name for v, hint in hints.items() if (name := own_name(hint))}
    sure = {v: role for v, role in roles.items() if role and not (v in given and v in own_names)}
    makers = {v: name for v, c in columns.items() if (name := _one({module.makers.get(its, "") for its in c}))}
    return Clues(sure, hints, own_names, given, makers, *_variables(module, columns, path))


def _variables(module: ModuleDef, columns: Mapping[str, list[str]], path: ModulePath) -> tuple[dict[str, str], ...]:
    """Return the author's variables: those assigned in a module, those that values become there, and those around."""
    assigned: dict[str, str] = {}
    becoming: dict[str, str] = {}
    outside: dict[str, str] = {}
    for value, alike in columns.items():
        for module_path, variable in module.variables.get(value, {}).items():
            name = variable.name.identifier()
            if len(name) > LONGEST or name.endswith("_"):
                continue
            if module_path == path:
                (assigned if variable.is_whole else becoming)[value] = name
            elif variable.is_whole and module_path == path[: len(module_path)]:
                if all(variable in module.variables.get(its, {}).values() for its in alike):
                    outside[value] = name
    return assigned, becoming, outside


def _one(names: set[str]) -> str:
    """Return the name on which all agree, or ""."""
    return names.pop() if len(names) == 1 else ""


def _commonest(texts: Iterator[Text]) -> Text:
    return Counter(texts).most_common(1)[0][0]
