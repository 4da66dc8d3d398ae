"""`Tokenizer`: text to tokens and back, and chats to text, from the files of a Hugging Face model folder."""

from __future__ import annotations

import codecs
import ctypes
import json
import os
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

from ..errors import ArtifactError, RequestError
from . import chat_template

_LARGE = 1 << 18  # characters of a text, of which much memory is left when it is encoded
_BYTE = re.compile(r"<0x([0-9A-Fa-f]{2})>")


class Tokenizer:
    """A `tokenizers.Tokenizer` with what the model's folder says about it."""

    def __init__(
        self,
        tokenizer: Any,
        *,
        eos: Iterable[int] = (),
        chat_templates: Mapping[str, str] | None = None,
        special: Mapping[str, Any] | None = None,
    ) -> None:
        """
        Args:
            tokenizer: a `tokenizers.Tokenizer`.
            eos: tokens that end a text.
            chat_templates: Jinja templates by name; "default" is the usual one.
            special: what templates call special tokens: ``{"bos_token": "<s>", ...}``.
        """
        self.backend = tokenizer
        self.backend.no_truncation()
        self.backend.no_padding()
        self.special = {name: _text(token) for name, token in (special or {}).items() if token is not None}
        self.special_tokens = frozenset(
            id for id, token in self.backend.get_added_tokens_decoder().items() if token.special
        )
        named = self.special.get("eos_token")
        found = [*eos, *([self.backend.token_to_id(named)] if named is not None else [])]
        self.eos = tuple(dict.fromkeys(int(token) for token in found if token is not None))
        self.chat_templates = dict(chat_templates or {})
        self.vocabulary: int = 1 + max(self.backend.get_vocab(with_added_tokens=True).values(), default=-1)
        """One more than the greatest token. A model's logits may be more, for the sake of alignment."""

    @classmethod
    def from_folder(cls, folder: str | Path) -> Tokenizer:
        """Of ``tokenizer.json`` in `folder`, and what ``tokenizer_config.json``, ``generation_config.json``, ``config.json`` and ``chat_template.jinja`` add.

        Raises:
            ArtifactError: there is no tokenizer.json, or one of the files cannot be read.
        """
        from tokenizers import Tokenizer as Backend

        folder = Path(folder)
        path = folder / "tokenizer.json"
        if not path.exists():
            raise ArtifactError(
                f"{folder} has no tokenizer.json; with transformers, AutoTokenizer.from_pretrained(...).save_pretrained(...) writes one"
            )
        try:
            backend = Backend.from_file(str(path))
        except Exception as error:  # the library raises nothing more specific
            raise ArtifactError(f"{path} is no tokenizer that can be read: {error}") from error
        about = _json(folder / "tokenizer_config.json")
        eos: list[int] = []
        for name in ("generation_config.json", "config.json"):
            value = _json(folder / name).get("eos_token_id")
            eos += value if isinstance(value, list) else [] if value is None else [value]
        given = about.get("chat_template")
        templates = {t["name"]: t["template"] for t in given} if isinstance(given, list) else {}
        if isinstance(given, str):
            templates["default"] = given
        if (file := folder / "chat_template.jinja").exists():
            templates["default"] = file.read_text(encoding="utf-8")
        special = {name: about[name] for name in about if name.endswith("_token") and about[name]}
        special = {name: value for name, value in special.items() if isinstance(value, str | dict)}
        return cls(backend, eos=eos, chat_templates=templates, special=special)

    def encode(self, text: str, *, special: bool = True) -> list[int]:
        """The tokens of a text; with `special` also those that the tokenizer puts around texts (begin of text, ...)."""
        # The batch of one, for other threads run meanwhile; without offsets, which take three times the memory.
        (encoding,) = self.backend.encode_batch_fast([text], add_special_tokens=special)
        tokens: list[int] = encoding.ids
        if len(text) > _LARGE:
            del encoding
            give_back()
        return tokens

    def least_tokens(self, text: str) -> int:
        """How many tokens a text has at least, told by its size alone; 0 where one token may stand for any number of bytes."""
        most, blanks = self._bytes_of_a_token
        return 0 if most is None else -(-len((text if blanks else "".join(text.split())).encode()) // most)

    def decode(self, tokens: Iterable[int], *, special: bool = False) -> str:
        """The text of tokens; of special ones only if `special`. Bytes that are no UTF-8 become U+FFFD."""
        decoder = Detokenizer(self, special=special)
        return decoder.add(tokens) + decoder.finish()

    def bytes_of(self, token: int) -> bytes:
        """What a token stands for in UTF-8, perhaps part of a character only; nothing for a number that is no token."""
        return self._bytes[token] if 0 <= token < len(self._bytes) else b""

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        documents: Sequence[Mapping[str, Any]] | None = None,
        add_generation_prompt: bool = True,
        template: str | None = None,
        **variables: Any,
    ) -> str:
        """A chat as the text that the model was trained on; encode it with ``special=False``, since templates write special tokens themselves.

        Args:
            messages: ``{"role": ..., "content": ...}`` and what else the template reads.
            tools: JSON schemas of functions that the model may call.
            documents: texts that the answer shall rest on.
            add_generation_prompt: whether to begin the model's answer.
            template: Jinja source, or the name of one of `chat_templates`. Without, "tool_use" if there is one and `tools` are given, else "default".
            variables: whatever else the template reads, e.g. ``enable_thinking=False``.

        Raises:
            RequestError: there is no such template, it is no Jinja, it refuses the messages, or takes too much time or memory.
        """
        if template is None:
            template = "tool_use" if tools and "tool_use" in self.chat_templates else "default"
            if template not in self.chat_templates:
                raise RequestError(
                    "the model has no chat template: name one by --chat-template FILE, or send a prompt in place of messages"
                )
        values = {**self.special, **variables, "messages": messages, "tools": tools, "documents": documents}
        values["add_generation_prompt"] = add_generation_prompt
        return chat_template.render(self.chat_templates.get(template, template), values)

    @cached_property
    def _bytes_of_a_token(self) -> tuple[int | None, bool]:
        """Most bytes of a text that a token stands for, if that has a bound, and whether blanks count as others do."""
        try:
            longest = max(map(len, self._bytes), default=0)
        except ArtifactError:
            return None, True
        shrinking = _shrinking(json.loads(self.backend.to_str()))
        added = self.backend.get_added_tokens_decoder().values()
        return shrinking and shrinking * longest, not any(token.lstrip or token.rstrip for token in added)

    @cached_property
    def _bytes(self) -> list[bytes]:
        names: dict[int, str] = {id: name for name, id in self.backend.get_vocab(with_added_tokens=True).items()}
        added = self.backend.get_added_tokens_decoder()
        as_bytes = _reader(json.loads(self.backend.to_str()).get("decoder"))
        found = [b""] * self.vocabulary
        for token, name in names.items():
            found[token] = name.encode() if token in added else as_bytes(name)
        return found


class Detokenizer:
    """Text of tokens that come one after the other: never a part of a character, which waits for its rest."""

    __slots__ = ("_decoder", "_special", "_tokenizer")

    def __init__(self, tokenizer: Tokenizer, *, special: bool = False) -> None:
        self._tokenizer = tokenizer
        self._special = frozenset() if special else tokenizer.special_tokens
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def add(self, tokens: Iterable[int]) -> str:
        """The text that these tokens complete."""
        bytes_of, special = self._tokenizer.bytes_of, self._special
        return self._decoder.decode(b"".join([bytes_of(token) for token in tokens if token not in special]))

    def finish(self) -> str:
        """What remains: U+FFFD for a character that was begun only."""
        return self._decoder.decode(b"", True)


_KNOWN = {"BPEDecoder", "ByteFallback", "ByteLevel", "Fuse", "Metaspace", "Replace", "Strip", "WordPiece"}


def _reader(decoder: dict[str, Any] | None) -> Callable[[str], bytes]:
    """How the vocabulary writes bytes, by what the tokenizer's decoder undoes; what it does at a text's border (strip a space) is left out.

    Raises:
        ArtifactError: the decoder does what cannot be told of one token alone.
    """
    if decoder is None:  # words, which the library joins by spaces
        return lambda name: b" " + name.encode()
    steps = decoder.get("decoders", [decoder])
    kinds = {step["type"] for step in steps}
    if unknown := kinds - _KNOWN | {"Replace" for step in steps if "Regex" in step.get("pattern", {})}:
        raise ArtifactError(
            f"the tokenizer's decoder has the step {min(unknown)}, which is not supported for generating text"
        )
    if "ByteLevel" in kinds:
        letters = _byte_letters()
        return lambda name: (
            bytes(letters[c] for c in name) if all(c in letters for c in name) else name.encode()
        )  # what byte-level BPE cannot have made stands for itself
    replaced = [(step["pattern"]["String"], step["content"]) for step in steps if step["type"] == "Replace"]
    replaced += [(step.get("replacement", "▁"), " ") for step in steps if step["type"] == "Metaspace"]
    fallback = "ByteFallback" in kinds
    pieces = next((step for step in steps if step["type"] == "WordPiece"), None)
    suffixed = next((step for step in steps if step["type"] == "BPEDecoder"), None)

    def read(name: str) -> bytes:
        if fallback and (byte := _BYTE.fullmatch(name)):
            return bytes([int(byte[1], 16)])
        if pieces is not None:
            prefix = pieces["prefix"]
            name = name[len(prefix) :] if name.startswith(prefix) else " " + name
        if suffixed is not None:
            name = name.replace(suffixed["suffix"], " ")
        for old, new in replaced:
            name = name.replace(old, new)
        return name.encode()

    return read


def _shrinking(tokenizer: dict[str, Any]) -> int | None:
    """By which factor a text is at most longer, in bytes, than what its tokens stand for together, by a tokenizer.json; None: what is left out has no bound."""

    def steps(kind: str) -> list[dict[str, Any]]:
        step = tokenizer[kind]
        return [] if step is None else step.get("normalizers", step.get("pretokenizers", [step]))

    normalizers, before, model = steps("normalizer"), steps("pre_tokenizer"), tokenizer["model"]
    for step in normalizers:
        found = step.get("pattern", {}).get("String")
        keeps = step["type"] in ("NFC", "Prepend", "ByteLevel")
        if not keeps and not (
            step["type"] == "Replace" and found and len(step["content"].encode()) >= len(found.encode())
        ):
            return None
    for step in before:
        if step["type"] not in ("ByteLevel", "Metaspace", "Digits", "Split") or step.get("behavior") == "Removed":
            return None
    # Without tokens for all bytes, letters that the vocabulary lacks become one unknown token together, or nothing.
    if any(step["type"] == "ByteLevel" for step in normalizers + before):
        needed = set(_byte_letters())
    elif model.get("byte_fallback"):
        needed = {f"<0x{byte:02X}>" for byte in range(256)}
    else:
        return None
    if model["type"] != "BPE" or not needed <= model["vocab"].keys():
        return None
    # Canonical composition makes one letter of nine bytes, no more, one of three.
    return 3 if any(step["type"] == "NFC" for step in normalizers) else 1


def give_back() -> None:
    """Return to the system what the C library keeps of freed memory, where it has a function for that."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None) if os.name == "posix" else None
    if trim is not None:
        trim(0)


def _byte_letters() -> dict[str, int]:
    """The letters by which byte-level BPE (GPT-2) writes bytes: printable ones as they are, the others from U+0100 on."""
    plain = [*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)]
    others = [byte for byte in range(256) if byte not in plain]
    return {chr(byte): byte for byte in plain} | {chr(256 + i): byte for i, byte in enumerate(others)}


def _text(token: Any) -> str:
    return token["content"] if isinstance(token, dict) else str(token)


def _json(path: Path) -> dict[str, Any]:
    if not path.exists():
        return {}
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ArtifactError(f"{path} is no JSON: {error}") from error
    return found if isinstance(found, dict) else {}
