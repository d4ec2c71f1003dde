"""Which members of a network are one parameter: those stored as one tensor, with few exceptions.

PyTorch's exporters store equal tensors once. So modules that are copies of each other before training (the layers of
nn.TransformerEncoder) look like modules that share their tensors. The evidence, the strongest first:

1. The options `tied` and `untied`.
2. The names of the parameters, where the file still has them (`scopes.recorded`).
3. The other tensors of the two modules, and of the modules around them up to the number in which
   their paths differ. If others have names that tell, these tell for all. A layer with a vector of
   its own, by its name and still as it was before training, is a copy of which only some tensors
   were drawn anew. If some tensors differ otherwise, nothing was copied as a whole.
4. Without any name, whole layers that are equal were copied only if they are as they were before
   training, in a file that has merged other equal vectors.

Vectors of equal numbers, such as the weights of untrained norms, are equal by chance. They need
evidence of the first two kinds, or a module that is shared as a whole.

`TiedTensors` finds the opposite: tied weights that an exporter's constant folding separated. A language model's output
layer often shares its matrix with the embedding. Exporters fold the transposition, and store the transposed copy as
another tensor without a name. Training would make the two diverge.

`uses` finds the node inputs of the file that each state-dict tensor stands for, if the file shares one tensor. Passes
have rewritten the graph, so the file's nodes were recorded when they were read (`graph.sites`). What a layer's node
computes now in one step is, in that record, between its outputs and the other values that the graph still has.
"""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from onnxgen.code.module_def import Member, Statement, Tie, change_own, flattened, is_statistic
from onnxgen.code.quote import MemberRef, rewrite
from onnxgen.common.names import ModulePath, printable
from onnxgen.common.timing import WEIGHTS, stage
from onnxgen.errors import OnnxgenError
from onnxgen.graph.annotations import PARAMETER_NAMES, RESTORED, Site
from onnxgen.options import Options
from onnxgen.scopes.origin import param_path, siblings
from onnxgen.weights.provenance import Source
from onnxgen.weights.stored import Finder, is_plain
from onnxgen.weights.strided import Array

_MOST = 64  # different parameters that one stored tensor is compared with
_LARGEST_MERGED = 1024  # elements
_SHOWN = 3  # names in a note


@dataclass(frozen=True)
class Place:
    """One tensor of a member: where it is (the module's path), and the tensor."""

    member: Member
    key: str
    source: Source
    path: ModulePath

    def read(self) -> ast.expr:
        """Return the expression of the tensor."""
        tree: ast.expr = MemberRef(self.member)
        for part in self.key.split("."):
            index = ast.Constant(int(part)) if part.isdigit() else None
            tree = ast.Attribute(tree, part, ast.Load()) if index is None else ast.Subscript(tree, index, ast.Load())
        return tree


class Kept:
    """The places of one stored tensor that are different parameters."""

    def __init__(self) -> None:
        self._named: dict[str, dict[int, Place]] = defaultdict(dict)
        self._nameless: list[Place] = []
        self._all: list[Place] = []

    def add(self, place: Place, names: frozenset[str]) -> None:
        """Add a place, with the names of the parameter that the file has for it."""
        self._all.append(place)
        if not names:
            self._nameless.append(place)
        for name in names:
            self._named[name][id(place)] = place

    def like(self, names: frozenset[str], has_options: bool) -> list[Place]:
        """Return the places that may be the parameter with these names: not all, where there are many."""
        if has_options or not names:
            return self._all[:_MOST]
        alike = {key: place for name in names for key, place in self._named.get(name, {}).items()}
        return [*alike.values(), *self._nameless[:_MOST]]


class Sharing:
    """Decides for one network. `notes`: what was guessed."""

    def __init__(self, model: ir.Model, options: Options) -> None:
        self._options = options
        self._names = PARAMETER_NAMES.get(model)
        self._folded = {norm.bias for norm in RESTORED.get(model) or ()}
        self._matched: set[str] = set()
        self._guesses: dict[str, None] = {}
        self._plain: dict[str, bool] = {}
        self._copies = TiedTensors(())
        self._trees: dict[ModulePath, dict[ModulePath, Place]] = {}
        self._verdicts: dict[tuple[ModulePath, ModulePath], str] = {}
        self._is_merged: bool | None = None
        self._has_equals: bool | None = None

    def apart(self, sources: Iterable[Source], a: ModulePath, b: ModulePath) -> bool:
        """Return True if the file or an option says that a tensor is not the same parameter in two scopes."""
        if a == b:
            return False
        for source in sources:
            named = [self._names.get(name, {}) for name in source.names]
            if self._answer(source, [(_names_at(names, a), _names_at(names, b)) for names in named]) is False:
                return True
        return False

    def ties(self, members: Sequence[Member]) -> list[Tie]:
        """Return the tensors that several members share, each with the first of them.

        Raises:
            OnnxgenError: the pattern of an option matches no tensor that several members could share.
        """
        self._index(members)
        kept: dict[Source, Kept] = defaultdict(Kept)
        ties = []
        for place in _places(members):
            original = self._copies.original(place.source) or place.source
            if not original.pieces or (len(original.shape) < 2 and not self._may_be_tied(place)):
                continue
            first = self.first(kept[original], place)
            if first is None:
                kept[original].add(place, self._recorded_at(place))
            elif first.member is not place.member or first.key != place.key:
                ties.append(Tie(first.member, first.key, place.member, place.key))
        self._check_options()
        return ties

    def first(self, kept: Kept, place: Place) -> Place | None:
        """Return the first of some places with an equal tensor that is the same parameter as another place's."""
        others = kept.like(self._recorded_at(place), has_options=bool(self._options.tied or self._options.untied))
        return next((other for other in others if self._same(other, place)), None)

    def read_inside(self, members: Sequence[Member], body: list[Statement], outputs: list[ast.expr]) -> list[ast.expr]:
        """Let parameters that are a layer's own tensor be read from the layer. Returns the outputs."""
        owners = self._inside(members)

        def change(tree: ast.AST) -> ast.expr | None:
            return owners[id(tree.member)].read() if isinstance(tree, MemberRef) and id(tree.member) in owners else None

        for member in [m for m in members if id(m) in owners]:
            layer = owners[id(member)]
            layer.member.users.setdefault(layer.key, []).extend(member.users.get("", ()))
        for statement in flattened(body) if owners else ():
            change_own(statement, change)
        return [rewrite(output, change) for output in outputs] if owners else outputs

    def _inside(self, members: Sequence[Member]) -> dict[int, Place]:
        """Return the parameters that are a layer's own tensor, which is read beside the layer, by `id`."""
        self._index(members)
        in_layers: dict[Source, Kept] = defaultdict(Kept)
        for place in _places(members):
            if place.member.kind == "module":
                in_layers[place.source].add(place, self._recorded_at(place))
        owners = {}
        for place in _places(members):
            is_beside = place.member.kind == "parameter" and place.source in in_layers
            if is_beside and (own := self.first(in_layers[place.source], place)):
                owners[id(place.member)] = own
        return owners

    def notes(self) -> list[str]:
        """Return sentences on what was guessed."""
        if not self._guesses:
            return []
        what = "stored once, but a parameter of each layer, since copied layers are equal before training"
        return [f"{listed(list(self._guesses))}: {what}; --tied makes it one parameter"]

    # decisions

    def _same(self, a: Place, b: Place) -> bool:
        answer = self._by_names(a, b)
        return self._by_structure(a, b) if answer is None else answer

    def _by_names(self, a: Place, b: Place) -> bool | None:
        """Return what an option or the names of the parameters say; None if nothing."""
        pairs = [(self._recorded(name, a), self._recorded(name, b)) for name in b.source.names]
        return self._answer(b.source, pairs)

    def _answer(self, source: Source, pairs: Iterable[tuple[frozenset[str], frozenset[str]]]) -> bool | None:
        for pattern, answer in ((self._options.untied, False), (self._options.tied, True)):
            if pattern and any(re.search(pattern, name) for name in source.names):
                self._matched.add(pattern)
                return answer
        agreements = [bool(one & other) if one and other else None for one, other in pairs]
        return None if None in agreements or not agreements else all(agreements)

    def _recorded(self, name: str, place: Place) -> frozenset[str]:
        """Return the names of the parameter that a stored tensor is in a place."""
        names, label = self._names.get(name, {}), place.source.label
        if label and any(label in labels for labels in names.values()):
            return frozenset({label})
        return _names_at(names, _where(place))

    def _recorded_at(self, place: Place) -> frozenset[str]:
        return self._recorded(place.source.names[0], place) if len(place.source.names) == 1 else frozenset()

    def _by_structure(self, a: Place, b: Place) -> bool:
        """Compare the two modules, then those around them."""
        plain = self._is_plain(b.source)
        if a.path == b.path:
            return not plain
        are_siblings = siblings(a.path, b.path)
        verdicts = []
        for one, other in _around_both(a.path, b.path) if are_siblings else [(a.path, b.path)]:
            verdicts.append(self._verdict(one, other))
            if verdicts == ["drawn anew"]:
                self._guesses.update(dict.fromkeys(() if plain else b.source.names))
                return False
            if verdicts[-1] in ("same", "copied"):
                return verdicts[-1] == "same"
        if not are_siblings:
            return self._by_home(a, b, plain)
        if {"differ", "drawn anew"} & set(verdicts):
            return not plain
        last = next(filter(None, reversed(verdicts)), "" if plain else "equal")
        if last == "fresh" and not plain:
            self._guesses.update(dict.fromkeys(b.source.names))
        return last == "equal"

    def _by_home(self, a: Place, b: Place, plain: bool) -> bool:
        """Decide for modules with different names. A module may read a tensor of a module inside it."""
        homes = [path[:-1] for path in map(param_path, b.source.names) if path is not None]
        inner, outer = (a.path, b.path) if len(a.path) > len(b.path) else (b.path, a.path)
        return not plain or (inner in homes and inner[: len(outer)] == outer)

    def _verdict(self, one: ModulePath, other: ModulePath) -> str:
        """Compare two modules: "copied" or "same" by the names of their tensors; else "differ", or "drawn anew" if a
        vector that is as before training is another by its name; else "equal" if they share all tensors and so may be
        one, "fresh" if they look like copies, "" if there is nothing to compare.
        """
        if (one, other) not in self._verdicts:
            self._verdicts[one, other] = self._compared(self._trees.get(one, {}), self._trees.get(other, {}))
        return self._verdicts[one, other]

    def _compared(self, one: Mapping[ModulePath, Place], other: Mapping[ModulePath, Place]) -> str:
        answers: list[tuple[bool | None, bool]] = []
        differ = one.keys() != other.keys()
        for key in one.keys() & other.keys():
            a, b = one[key], other[key]
            plain = self._is_plain(a.source)
            if self._original(a) == self._original(b):
                answers.append((self._by_names(a, b), plain))
            elif not self._is_unmerged() and _equal(a.source, b.source):
                answers.append((False, plain))  # copies that were too large to be merged
            else:
                differ = True
        for answer, verdict in ((False, "copied"), (True, "same")):
            if (answer, False) in answers:
                return verdict
        is_apart, plains = (False, True) in answers, {plain for _, plain in answers}
        if differ:
            return "drawn anew" if is_apart else "differ"
        if False not in plains:
            return ""
        return "fresh" if is_apart or (True in plains and self._merged()) else "equal"

    def _original(self, place: Place) -> Source:
        return self._copies.original(place.source) or place.source

    def _merged(self) -> bool:
        """True if unrelated vectors of equal numbers are one tensor of the file, without a name for each."""
        if self._is_merged is None:
            seen: dict[str, Place] = {}
            places = [p for p in self._trees.get((), {}).values() if len(p.source.names) == 1]
            plain = [p for p in places if _is_trained(p) and self._is_plain(p.source)]
            firsts = [(seen.setdefault(p.source.names[0], p).path, p.path) for p in plain]
            self._is_merged = any(first != path and not siblings(first, path) for first, path in firsts)
        return self._is_merged

    def _is_unmerged(self) -> bool:
        """True if equal parameters are stored apart: then nobody merged any."""
        if self._has_equals is None:
            names: dict[object, set[str]] = defaultdict(set)
            for place in self._trees.get((), {}).values():
                source = place.source
                if (
                    _is_small(source)
                    and param_path(source.names[0])
                    and _is_trained(place)
                    and is_plain(source.pieces[0].tensor)
                ):
                    names[source.shape, source.dtype, float(source.numpy().flat[0])].add(source.names[0])
            self._has_equals = any(len(equals) > 1 for equals in names.values())
        return self._has_equals

    def _is_plain(self, source: Source) -> bool:
        """True if a source has equal numbers, and may be equal to another's by chance."""
        if self._is_unmerged():
            return False
        for piece in source.pieces:
            if piece.name not in self._plain:
                self._plain[piece.name] = is_plain(piece.tensor)
        return all(self._plain[piece.name] for piece in source.pieces)

    # the members

    def _index(self, members: Sequence[Member]) -> None:
        """Read the members; their paths are as they are now."""
        places = list(_places(members))
        self._copies = TiedTensors([place.source for place in places])
        self._trees, self._verdicts, self._is_merged, self._has_equals = defaultdict(dict), {}, None, None
        for place in places:
            for n in range(len(place.path) + 1):
                rest = (*place.path[n:], place.key.rpartition(".")[2] or place.member.path[-1])
                self._trees[place.path[:n]][rest] = place

    def _may_be_tied(self, place: Place) -> bool:
        """True for a vector that is trained. (A bias with a BatchNorm that is put back is another for each norm.)"""
        return _is_trained(place) and self._folded.isdisjoint(place.source.names)

    def _check_options(self) -> None:
        for option, pattern in (("tied", self._options.tied), ("untied", self._options.untied)):
            if pattern and pattern not in self._matched:
                what = f"--{option} {pattern!r} matches the name of no tensor that several layers take"
                raise OnnxgenError(what, help="onnxgen inspect lists the names")


def _places(members: Iterable[Member]) -> Iterable[Place]:
    for member in members:
        for key, source in member.keys.items() if member.kind in ("module", "parameter") else ():
            if is_statistic(key):
                continue
            scope = member.path[:-1] if member.scope is None else member.scope
            path = (*member.path, *key.split("."))[:-1] if key else scope
            yield Place(member, key, source, path)


def _is_trained(place: Place) -> bool:
    return place.key not in place.member.frozen


def _is_small(source: Source) -> bool:
    """True for a whole vector of the file that the exporters would merge. (The dynamo exporter leaves larger ones.)"""
    return (
        len(source.shape) == 1 and len(source.pieces) == 1 and source.is_identity and source.shape[0] <= _LARGEST_MERGED
    )


def _where(place: Place) -> ModulePath:
    """Return the scope that the users of a place are recorded under. A member without a name may get another path."""
    scope = place.member.scope
    return place.path if place.member.named or scope is None else scope


def _names_at(names: Mapping[ModulePath, frozenset[str]], path: ModulePath) -> frozenset[str]:
    """Return the names of the nearest scopes: the module, those inside it, or the one around it."""
    around = [path[:n] for n in range(len(path), 0, -1)] if path else [path]
    for scope in around:
        if scope in names:
            return names[scope]
    inside = [names_inside for scope, names_inside in names.items() if scope[: len(path)] == path]
    return frozenset().union(*inside)


def _equal(a: Source, b: Source) -> bool:
    """True if two tensors seem to have the same elements, by their ends."""
    return a.shape == b.shape and a.dtype == b.dtype and look(a) == look(b)


def _around_both(a: ModulePath, b: ModulePath) -> list[tuple[ModulePath, ModulePath]]:
    start = next((n for n, (x, y) in enumerate(zip(a, b)) if x != y), 0) + 1
    return [(a[:n], b[:n]) for n in range(len(a), start - 1, -1)] or [(a, b)]


def listed(names: Sequence[str]) -> str:
    """Return the first names for a note."""
    return ", ".join(map(printable, names[:_SHOWN])) + (", ..." if len(names) > _SHOWN else "")


class TiedTensors:
    """Finds unnamed matrices that are copies of named ones."""

    def __init__(self, sources: Iterable[Source]) -> None:
        self._named: dict[object, list[Source]] = defaultdict(list)
        self._by_look: dict[object, dict[object, list[Source]]] = {}  # filled on demand
        for source in sources:
            if len(source.shape) >= 2 and source.is_identity and _is_named(source):
                self._named[source.shape, source.dtype].append(source)

    def original(self, source: Source) -> Source | None:
        """Return the named matrix that this one is a copy of; None if it has a name itself, or is not a copy."""
        kind = source.shape, source.dtype
        if len(source.shape) < 2 or len(source.names) != 1 or _is_named(source) or kind not in self._named:
            return None
        if kind not in self._by_look:
            looks = self._by_look[kind] = defaultdict(list)
            for named in self._named[kind]:
                looks[look(named)].append(named)
        alike = self._by_look[kind].get(look(source), ())
        return next((candidate for candidate in alike if _is_copy(source, candidate)), None)


def _is_copy(source: Source, of: Source) -> bool:
    if source.label and source.label not in of.names:
        return False
    with stage(WEIGHTS):
        a, b = source.numpy(), of.numpy()
        same = bool(np.array_equal(a, b)) and bool((a != a.flat[:1]).any())  # zeros are equal by chance
    source.release()
    of.release()
    return same


def _is_named(source: Source) -> bool:
    return param_path(source.names[0]) is not None


def look(source: Source) -> object:
    """Return three corners of the first two axes, to tell most different matrices apart.

    Not a row, which is scattered over the whole file if the matrix is stored transposed.
    """
    with stage(WEIGHTS):
        return tuple(_corner(source, *ends).tobytes() for ends in ((0, 0), (0, -1), (-1, 0)))


def _corner(source: Source, *ends: int) -> Array:
    """Return the elements at these positions of the first axes, and at the first position of all others."""
    for axis, size in enumerate(source.shape):
        at = ends[axis] % size if axis < len(ends) and size else 0
        source = source.slice(axis, at, at + 1)
    return source.numpy()


def uses(model: ir.Model, members: Iterable[Member], tensors: Collection[str]) -> dict[str, dict[str, list[Site]]]:
    """Return, for each of `tensors` (ONNX names), the sites that use it, by the state-dict key for these sites."""
    finder = Finder(model)
    sites_by_key: dict[str, dict[str, set[Site]]] = {name: {} for name in tensors}
    for member in members if sites_by_key else ():
        for key, (state_key, source) in zip(member.keys, member.state_keys(), strict=True):
            for name in sites_by_key.keys() & set(source.names):
                sites = sites_by_key[name].setdefault(state_key, set())
                for node, indices in member.users.get(key, ()):
                    sites |= finder.sites(name, node, indices)
    return {name: {key: sorted(sites) for key, sites in keys.items()} for name, keys in sites_by_key.items()}
