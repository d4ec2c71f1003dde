"""Names: text from an ONNX file made safe for Python source, and kept unique.

Nothing from a file reaches generated source or a message except through one of these functions (or as a literal).
All of them are deterministic. They give ASCII only, but for `visible` and `legible`, which are for messages alone.
"""

from __future__ import annotations

import builtins
import keyword
import os
import re
import unicodedata
from collections.abc import Iterable
from dataclasses import dataclass

ModulePath = tuple[str, ...]  # where a module stands in the whole: ("encoder", "layers", "0"); () is the model

MAX_LISTED_PATHS = 8  # module paths in an error
MAX_IDENTIFIER_CHARACTERS = 60  # characters of an identifier; ONNX names may have thousands

# Names that a generated file itself uses. Nothing else in it may have one of them.
_RESERVED = """
    Model Tensor Parameter Module Path Any Literal Optional Sequence Self Callable Final
    WEIGHTS FINGERPRINT SHARDS CONSTANTS EMBEDDED constant
    F nn torch math np numpy json os re sys base64 functools safetensors safe_open SafetensorError warn
    annotations from_pretrained load load_weights
    self cls device dtype pretrained strict weights x_ __class__
    """
RESERVED: frozenset[str] = frozenset(_RESERVED.split())

# Attributes of `torch.nn.Module`; a submodule or parameter of such a name would break it. They are listed here,
# since generating never imports torch; a test compares it with the real class.
_MODULE_ATTRIBUTES = """
    T_destination add_module apply bfloat16 buffers call_super_init children compile cpu cuda double dump_patches eval
    extra_repr float forward from_pretrained get_buffer get_extra_state get_parameter get_submodule half ipu
    load_state_dict modules mtia named_buffers named_children named_modules named_parameters parameters
    register_backward_hook register_buffer register_forward_hook register_forward_pre_hook
    register_full_backward_hook register_full_backward_pre_hook register_load_state_dict_post_hook
    register_load_state_dict_pre_hook register_module register_parameter register_state_dict_post_hook
    register_state_dict_pre_hook requires_grad_ set_extra_state set_submodule share_memory state_dict to to_empty
    train training type xpu zero_grad
    _apply _backward_hooks _backward_pre_hooks _buffers _call_impl _compiled_call_impl _forward_hooks
    _forward_hooks_always_called _forward_hooks_with_kwargs _forward_pre_hooks _forward_pre_hooks_with_kwargs
    _get_backward_hooks _get_backward_pre_hooks _get_name _is_full_backward_hook _is_hf_initialized
    _load_from_state_dict _load_state_dict_post_hooks _load_state_dict_pre_hooks _maybe_warn_non_full_backward_hook
    _modules _named_members _non_persistent_buffers_set _parameters _register_load_state_dict_pre_hook
    _register_state_dict_hook _replicate_for_data_parallel _save_to_state_dict _slow_forward _state_dict_hooks
    _state_dict_pre_hooks _version _wrapped_call_impl
    """
MODULE_ATTRIBUTES: frozenset[str] = frozenset(_MODULE_ATTRIBUTES.split())

# The usual spelling of networks' names: `resnet18.onnx` holds a ResNet18.
_WELL_KNOWN = """
    AlexNet CLIP CNN ConvNeXt DCGAN DeiT DenseNet DistilBert EfficientNet GAN GCN GoogLeNet GPT GRU LSTM MLP MobileNet
    RegNet ResNet ResNeXt RNN ShuffleNet SqueezeNet SSD UNet VAE VGG ViT YOLO YOLOX
    """
_SPELLING = {name.lower(): name for name in _WELL_KNOWN.split()}
_KINDS = "CNN GRU LSTM RNN".split()  # also the end of a word: `bilstm`
# words without vowels that are no initials
_SHORTENED = frozenset(
    "attn blk cls ctx dst fwd grd hdr img lbl lvl mdl msg pkg pts pwr rgb src std tgt txt vrt".split()
)

INNER = "_scoped_"  # before the number in a name that `reader.distinct` gives a value of an inner graph
_INNER = re.compile(rf"{INNER}\d+\b")
_PLAIN = re.compile(r"[ !#-&(-\[\]-_a-~]*")  # printable ASCII but for quotes and backslashes
_BUILTINS = frozenset(dir(builtins))


def _ascii(text: str) -> str:
    """Convert accented, wide and ligature letters to ASCII (Unicode NFKD). Other characters are dropped."""
    return unicodedata.normalize("NFKD", text).encode("ascii", "ignore").decode("ascii")


def _taken_by_python(name: str) -> bool:
    return keyword.iskeyword(name) or keyword.issoftkeyword(name) or name in _BUILTINS


def identifier(text: str, fallback: str = "x") -> str:
    """Return a safe snake_case identifier that reads like `text`.

    Never a keyword, a soft keyword, a builtin or a dunder; at most
    `MAX_IDENTIFIER_CHARACTERS` characters (and one underscore).
    `fallback` serves where nothing of the text can be kept, and comes first where the text begins with a digit.
    """
    words = re.sub(r"([a-z0-9])([A-Z])", r"\1_\2", _ascii(text[: 4 * MAX_IDENTIFIER_CHARACTERS]))
    name = re.sub(r"[^a-z0-9]+", "_", words.lower()).strip("_")[:MAX_IDENTIFIER_CHARACTERS].rstrip("_")
    if not name:
        name = fallback
    elif name[0].isdigit():
        name = f"{fallback}_{name}"
    return f"{name}_" if _taken_by_python(name) else name


class FileText:
    """A name from a file. It is not a `str`, so that it gets into other text only through these methods."""

    __slots__ = ("_text",)

    def __init__(self, text: str) -> None:
        self._text = text

    def __eq__(self, other: object) -> bool:
        return isinstance(other, FileText) and self._text == other._text

    def __hash__(self) -> int:
        return hash(self._text)

    def __repr__(self) -> str:
        return f"FileText({self._text!a})"

    def __str__(self) -> str:
        raise TypeError("text of a file can't be part of other text: use identifier() or printable() of it")

    def __format__(self, how: str) -> str:
        return str(self)

    def identifier(self) -> str:
        """Return the name as an identifier; see `identifier`."""
        return identifier(self._text)

    def printable(self, limit: int = 80) -> str:
        """Return the name as printable text; see `printable`."""
        return printable(self._text, limit)

    def word(self) -> str:
        """Return the name itself if it is spelled like a variable (a Python keyword counts), else ""."""
        return self._text if _WORD.fullmatch(self._text) else ""

    def fits(self, pattern: re.Pattern[str]) -> bool:
        """Return True if the pattern matches the whole name."""
        return pattern.fullmatch(self._text) is not None

    def without(self, prefix: str) -> FileText:
        """Return the name without `prefix`."""
        return FileText(self._text.removeprefix(prefix))

    def uncounted(self) -> FileText:
        """Return `x` for `x.1`: PyTorch's legacy exporter counts inputs that are called like a submodule's argument."""
        return FileText(_COUNT.sub("", self._text))


@dataclass(frozen=True)
class Variable:
    """What an author's source calls a value. `is_whole`: a line assigns it, and does not only make it on the way."""

    name: FileText
    is_whole: bool


_WORD = re.compile(r"[a-z_][a-z0-9_]*")
_COUNT = re.compile(r"(?<=[A-Za-z_])\.\d+$")


class LocalName(str):
    """The name of a local variable: an identifier that is not a Python keyword or builtin. Only `local` makes one."""

    __slots__ = ()


UNUSED = LocalName("_")
_LOCAL = re.compile(r"(?!__)[A-Za-z_][A-Za-z0-9_]{0,63}")


def local(text: str) -> LocalName:
    """Return a name for a local variable: `text` itself, or an identifier that reads like it.

    Never a keyword or a builtin: `for i in range(n)` must find Python's own `range`.
    """
    is_one = _LOCAL.fullmatch(text) is not None and (text == UNUSED or not _taken_by_python(text))
    return LocalName(text if is_one else identifier(text))


def module_part(text: str, fallback: str = "part") -> str:
    """Return one part of a module path, as close to `text` as an attribute of `nn.Module` can be.

    Digits stay as they are (`nn.Sequential` and `nn.ModuleList` call their children so) and case is kept, so that
    state-dict keys stay those of the original. A name that Python or `nn.Module` needs gets an underscore.
    """
    if re.fullmatch(r"[0-9]{1,9}", text):
        return text
    name = re.sub(r"[^A-Za-z0-9_]+", "_", _ascii(text[: 4 * MAX_IDENTIFIER_CHARACTERS]))
    name = name[: 2 * MAX_IDENTIFIER_CHARACTERS]
    if name != text:
        name = name.strip("_")
    if name.startswith("__"):  # private name mangling, or a dunder
        name = name.strip("_")
    if not name.strip("_"):
        name = fallback
    elif name[0].isdigit():
        name = f"{fallback}_{name}"
    return f"{name}_" if keyword.iskeyword(name) or name in MODULE_ATTRIBUTES else name


def class_name(text: str, fallback: str = "Model") -> str:
    """Return a CamelCase class name that reads like `text`: "version-RFB-320_simplified" is `VersionRFB320Simplified`.

    The name `fallback` itself may come out (of "model"); every other name in `RESERVED`, a keyword or a builtin
    gets `fallback` behind it.
    """
    words = [w for w in re.split(r"[^A-Za-z0-9]+", _ascii(text[: 4 * MAX_IDENTIFIER_CHARACTERS])) if w]
    name = "".join(w[0].upper() + w[1:] for w in words)[:MAX_IDENTIFIER_CHARACTERS]
    if not name or name == fallback:
        return fallback
    if name[0].isdigit():
        name = fallback + name
    return name + fallback if _taken_by_python(name) or name in RESERVED else name


def network_name(stem: str) -> str:
    """Return a class name for a network's file name: "resnet18" becomes `ResNet18`, "mnist_cnn" `MnistCNN`.

    What has capitals is left as it is.
    """
    words = re.split(r"((?<![A-Za-z])[a-z]+)(?![A-Za-z])", stem[: 4 * MAX_IDENTIFIER_CHARACTERS])
    return class_name("".join(map(_spelled, words)))


def _spelled(word: str) -> str:
    """Return the usual spelling of a word in a network's name: `tcn` is TCN, `pointnet` PointNet, `bilstm` BiLSTM."""
    if word in _SPELLING:
        return _SPELLING[word]
    if re.fullmatch(r"[b-df-hj-np-tv-xz]{3,5}", word) and word not in _SHORTENED:
        return word.upper()
    if re.fullmatch(r"([a-z]|[a-z]*[aeiou][a-z]{2,})net", word):
        return f"{word[:-3].capitalize()}Net"
    kind = next((kind for kind in _KINDS if re.fullmatch(f"[a-z]{{2,}}{kind.lower()}", word)), "")
    return word[: -len(kind)].capitalize() + kind if kind else word


def function_name(network: str) -> str:
    """Return the name of the function that builds a network's class: `resnet18` of ResNet18, `vit_tiny` of ViTTiny."""
    for name in sorted(_SPELLING.values(), key=len, reverse=True):
        network = re.sub(f"{name}(?![a-z])", name.capitalize(), network)
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])(?!Net)|(?<=[A-Z])(?=[A-Z][a-z]{2})(?!Net)", "_", network).lower()


_PLURAL_IN_ES = re.compile(r"([nt]ch|sh|ss|[eo]x)es$")
_NO_PLURAL = re.compile(r"(^|_)(cls|kps|pos)$|[aisu]s$|ss$")  # class and keypoint scores, positions; bias, axis, status


def singular(word: str) -> str:
    """Return the singular of a plural name: "layers" becomes `layer`, "branches" `branch`."""
    if _PLURAL_IN_ES.search(word):
        return word[:-2]
    return word[:-1] if word.endswith("s") and not _NO_PLURAL.search(word) else word


def is_class_name(text: str) -> bool:
    """Return True if a generated file can have a class of exactly this name."""
    plain = text.isidentifier() and text.isascii() and not text.startswith("__")
    frame = RESERVED - {"Model"} | {"constant", "load", "load_weights"}
    return plain and len(text) <= MAX_IDENTIFIER_CHARACTERS and not _taken_by_python(text) and text not in frame


def unscoped(name: str) -> str:
    """Return the name that the file gives a value, or a text with such names."""
    return _INNER.sub("", name)


class Namer:
    """Gives out names and makes each one unique."""

    def __init__(self, reserved: Iterable[str] = ()) -> None:
        self._taken = set(reserved)
        self._next: dict[str, int] = {}

    def take(self, wanted: str) -> str:
        """Return `wanted` if it is free, else `wanted_2`, `wanted_3`, ... (`wanted` must be an identifier)."""
        name = wanted
        count = self._next.get(wanted, 2)
        while name in self._taken:
            name = f"{wanted.rstrip('_') or wanted}_{count}"
            count += 1
        self._next[wanted] = count
        self._taken.add(name)
        return name

    def __contains__(self, name: str) -> bool:
        return name in self._taken


def visible(text: str) -> str:
    """Make text safe to show on a terminal, in a log, a report or an error.

    Whatever a terminal would obey or not show is a question mark: escape sequences and other control characters, what
    turns the direction of writing, zero widths, half of a surrogate pair. Line breaks and tabs stay.
    """
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() or c in "\n\t" else "?" for c in text)


def legible(text: str | bytes, limit: int = 80) -> str:
    """Make text of one line for messages, with the letters of any language: names of classes, columns and files.

    What a terminal would obey or not show is a question mark (see `visible`), and so are line breaks and tabs. Text
    longer than `limit` ends in three dots and has `limit` characters. It must not become part of a file.
    """
    if isinstance(text, bytes):  # see `printable`
        text = text.decode("utf-8", "replace")
    text = unscoped(text) if INNER in text else text
    shown = re.sub(r"[\n\t]", "?", visible(text[: limit + 1]))
    return shown if len(text) <= limit else shown[: limit - 3] + "..."


def is_plain(text: str) -> bool:
    """Return True if the text is one line of printable ASCII without quotes and backslashes."""
    return _PLAIN.fullmatch(text) is not None


def printable(text: str | bytes, limit: int = 80) -> str:
    """Make text safe for comments, docstrings and messages: printable ASCII without quotes, backslashes and newlines.

    What cannot be shown is a question mark; text longer than `limit` ends in three dots and has `limit` characters.
    """
    if isinstance(text, bytes):  # protobuf returns text that is not UTF-8 as bytes
        text = text.decode("utf-8", "replace")
    text = unscoped(text) if INNER in text else text
    if len(text) <= limit and _PLAIN.fullmatch(text):
        return text
    return _replaced(text, limit, r"[^ -~]|['\"\\`]")


def sentence(text: str, limit: int = 400) -> str:
    """Make a message that may quote a file printable. Quotes stay, since it does not become part of a file."""
    return _replaced(text, limit, r"[^ -~]|\\")


def _replaced(text: str, limit: int, hidden: str) -> str:
    plain = unicodedata.normalize("NFKD", text[: 4 * limit])
    plain = "".join(c for c in plain if not unicodedata.combining(c))
    shown = re.sub(hidden, "?", plain)
    if len(shown) > limit or len(text) > 4 * limit:
        return shown[: limit - 3] + "..."
    return shown


def common_scope(scopes: Iterable[ModulePath]) -> ModulePath | None:
    """Return the longest path that all begin with; None if there are none."""
    known = list(scopes)
    return tuple(os.path.commonprefix(known)) if known else None


def matches(pattern: str, path: ModulePath) -> bool:
    """Return True if a pattern matches a module path. `*` and `?` match within a part, `**` any number of parts.

    `encoder.layers.*.mlp` is the mlp of every layer, `**.conv1` every conv1.
    """
    wildcards = {"**.": r"(?:.+\.)?", ".**": r"(?:\..+)?", "**": ".*", "*": r"[^.]*", "?": r"[^.]"}
    tokens = re.findall(r"\*\*\.|\.\*\*|\*\*|\*|\?|[^*?.]+|\.", pattern)
    expression = "".join(wildcards.get(token, re.escape(token)) for token in tokens)
    return re.fullmatch(expression, ".".join(path)) is not None


def listed(names: Iterable[str], most: int = 12) -> str:
    """Return names in one line, shortened if there are many."""
    shown = [legible(str(n)) for n in names]
    return ", ".join(shown[:most]) + (f", ... ({len(shown)} in all)" if len(shown) > most else "")
