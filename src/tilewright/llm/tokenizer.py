"""`Tokenizer`: text to tokens and back, and chats to text, from the files of a Hugging Face model folder."""

from __future__ import annotations

import codecs
import ctypes
import json
import os
import re
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cached_property, lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..errors import ArtifactError, RequestError
from . import chat_template

if TYPE_CHECKING:
    import tokenizers

TOKENIZER = ".tokenizer"
"""Suffix of the tokenizer's folder beside a library."""
_LARGE = 1 << 18  # Characters of a text from which on the memory of its encoding is returned to the system.
_BYTE = re.compile(r"<0x([0-9A-Fa-f]{2})>")


class Tokenizer:
    """A `tokenizers.Tokenizer` with the settings of the model's folder."""

    def __init__(
        self,
        tokenizer: tokenizers.Tokenizer,
        *,
        eos: Iterable[int] = (),
        chat_templates: Mapping[str, str] | None = None,
        special: Mapping[str, Any] | None = None,
    ) -> None:
        """Wrap a tokenizer; its truncation and padding are switched off.

        Args:
            tokenizer: a `tokenizers.Tokenizer`.
            eos: tokens that end a text.
            chat_templates: Jinja templates by name; "default" is the usual one.
            special: the special tokens by their names in templates: ``{"bos_token": "<s>", ...}``.
        """
        self.backend = tokenizer
        self._copying = threading.Lock()
        self.backend.no_truncation()
        self.backend.no_padding()
        self.special = {name: _text(token) for name, token in (special or {}).items() if token is not None}
        self.special_tokens = frozenset(
            id for id, token in self.backend.get_added_tokens_decoder().items() if token.special
        )
        added = self.backend.get_added_tokens_decoder()
        self.special_ids = {token.content: id for id, token in added.items() if token.special}
        """The special tokens by their texts."""
        named = self.special.get("eos_token")
        tokens = [*eos, *([self.backend.token_to_id(named)] if named is not None else [])]
        self.eos = tuple(dict.fromkeys(int(token) for token in tokens if token is not None))
        self.chat_templates = dict(chat_templates or {})
        self.vocabulary: int = 1 + max(self.backend.get_vocab(with_added_tokens=True).values(), default=-1)
        """One more than the greatest token. A model may have more logits, for alignment."""

    @classmethod
    def from_folder(cls, folder: str | Path) -> Tokenizer:
        """The tokenizer of ``tokenizer.json`` in `folder`.

        ``tokenizer_config.json``, ``generation_config.json``, ``config.json``, ``chat_template.jinja`` and
        ``chat_template.json`` add settings.

        Raises:
            ArtifactError: there is no tokenizer.json, or one of the files cannot be read.
        """
        from tokenizers import Tokenizer as Backend

        folder = Path(folder)
        path = folder / "tokenizer.json"
        if not path.exists():
            raise ArtifactError(
                f"{folder} has no tokenizer.json; with transformers, "
                "AutoTokenizer.from_pretrained(...).save_pretrained(...) writes one"
            )
        try:
            backend = Backend.from_file(str(path))
        except Exception as error:  # The library raises nothing more specific.
            raise ArtifactError(f"{path} is not a readable tokenizer: {error}") from error
        about = _json(folder / "tokenizer_config.json")
        eos: list[int] = []
        for name in ("generation_config.json", "config.json"):
            value = _json(folder / name).get("eos_token_id")
            eos += value if isinstance(value, list) else [] if value is None else [value]
        stored_template = about.get("chat_template")
        templates = (
            {t["name"]: t["template"] for t in stored_template} if isinstance(stored_template, list) else {}
        )
        if isinstance(stored_template, str):
            templates["default"] = stored_template
        if (file := folder / "chat_template.jinja").exists():
            templates["default"] = file.read_text(encoding="utf-8")
        # Models with images may have the template beside the settings of their processor.
        beside = _json(folder / "chat_template.json").get("chat_template")
        if "default" not in templates and isinstance(beside, str):
            templates["default"] = beside
        special = {name: about[name] for name in about if name.endswith("_token") and about[name]}
        special = {name: value for name, value in special.items() if isinstance(value, str | dict)}
        return cls(backend, eos=eos, chat_templates=templates, special=special)

    def encode(self, text: str, *, special: bool = True, most: int | None = None) -> list[int]:
        """The tokens of a text.

        Args:
            text: the text.
            special: whether to add the tokens that the tokenizer adds (begin of text, ...).
            most: the number of tokens to which the text is cut, with those that are added, at least their
                number (`added`); None: it is not.
        """
        backend = self.backend if most is None else self._cutting(most, "longest_first")
        # A batch of one lets other threads run meanwhile; offsets, which take three times the memory, are not
        # computed.
        (encoding,) = backend.encode_batch_fast([text], add_special_tokens=special)
        tokens: list[int] = encoding.ids
        if len(text) > _LARGE:
            del encoding
            give_back()
        return tokens

    def encode_pair(self, first: str, second: str, *, most: int | None = None) -> tuple[list[int], list[int]]:
        """The tokens of two texts, with those that the tokenizer adds, and the number of each one's segment.

        Args:
            first: a text.
            second: another text.
            most: the number of tokens to which the second text is cut, at least that of those that are added
                (`added`); None: it is not.

        Raises:
            RequestError: the first text alone has more than `most` tokens.
        """
        backend = self.backend if most is None else self._cutting(most, "only_second")
        try:
            (encoding,) = backend.encode_batch([(first, second)])
        except Exception as error:  # The library raises nothing more specific.
            raise RequestError(f"the text cannot be cut to {most} tokens: {error}") from error
        return encoding.ids, encoding.type_ids

    def added(self, pair: bool = False) -> int:
        """The number of tokens that the tokenizer adds to a text, or to a pair of texts."""
        count: int = self.backend.num_special_tokens_to_add(pair)
        return count

    def ends(self, text: str) -> list[int]:
        """The number of characters of a text up to the end of each of its tokens."""
        (encoding,) = self.backend.encode_batch([text], add_special_tokens=False)
        return [end for _, end in encoding.offsets]

    def _cutting(self, most: int, strategy: str) -> Any:
        """The tokenizer with truncation, which must not change under other threads."""
        with self._copying:  # lru_cache would let each thread that misses make a copy
            return self._copy(most, strategy)

    @lru_cache(maxsize=8)  # noqa: B019  (tokenizers live as long as their model)
    def _copy(self, most: int, strategy: str) -> Any:
        backend = type(self.backend).from_str(self.backend.to_str())
        backend.enable_truncation(most, strategy=strategy)
        return backend

    def least_tokens(self, text: str) -> int:
        """A lower bound of the number of a text's tokens, from its size alone; 0 if a token may stand for any
        number of bytes.
        """
        most, blanks = self._bytes_of_a_token
        return 0 if most is None else -(-len((text if blanks else "".join(text.split())).encode()) // most)

    def decode(self, tokens: Iterable[int], *, special: bool = False) -> str:
        """The text of tokens; special tokens are included only with `special`. Invalid UTF-8 becomes
        U+FFFD.
        """
        decoder = Detokenizer(self, special=special)
        return decoder.add(tokens) + decoder.finish()

    def bytes_of(self, token: int) -> bytes:
        """The UTF-8 bytes of a token, which may be a part of a character; empty for a number that is not a
        token.
        """
        return self._bytes[token] if 0 <= token < len(self._bytes) else b""

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        documents: Sequence[Mapping[str, Any]] | None = None,
        add_generation_prompt: bool = True,
        template: str | None = None,
        **variables: object,
    ) -> str:
        """A chat as the text format that the model was trained on.

        Encode the result with ``special=False``, since templates write special tokens themselves.

        Args:
            messages: ``{"role": ..., "content": ...}`` and other keys that the template reads.
            tools: JSON schemas of functions that the model may call.
            documents: texts that the answer should use.
            add_generation_prompt: whether to begin the model's answer.
            template: Jinja source, or the name of one of `chat_templates`; by default "tool_use" if it exists
                and `tools` are given, else "default".
            variables: other variables that the template reads, e.g. ``enable_thinking=False``.

        Raises:
            RequestError: the template does not exist, is not valid Jinja, rejects the messages, or exceeds a
                limit.
        """
        if template is None:
            template = "tool_use" if tools and "tool_use" in self.chat_templates else "default"
            if template not in self.chat_templates:
                raise RequestError(
                    "the model has no chat template: give one by --chat-template FILE, or send a prompt in "
                    "place of messages"
                )
        values = {**self.special, **variables, "messages": messages, "tools": tools, "documents": documents}
        values["add_generation_prompt"] = add_generation_prompt
        return chat_template.render(self.chat_templates.get(template, template), values)

    @cached_property
    def _bytes_of_a_token(self) -> tuple[int | None, bool]:
        """The largest number of bytes that a token stands for, None without a bound, and whether blanks count
        like other characters.
        """
        try:
            longest = max(map(len, self._bytes), default=0)
        except ArtifactError:
            return None, True
        shrinking = _shrinking(json.loads(self.backend.to_str()))
        added = self.backend.get_added_tokens_decoder().values()
        return shrinking and shrinking * longest, not any(token.lstrip or token.rstrip for token in added)

    @cached_property
    def _bytes(self) -> list[bytes]:
        names: dict[int, str] = {
            id: name for name, id in self.backend.get_vocab(with_added_tokens=True).items()
        }
        added = self.backend.get_added_tokens_decoder()
        as_bytes = _reader(json.loads(self.backend.to_str()).get("decoder"))
        table = [b""] * self.vocabulary
        for token, name in names.items():
            table[token] = name.encode() if token in added else as_bytes(name)
        return table


class Detokenizer:
    """Decodes tokens that arrive one after the other; it never returns an incomplete character."""

    __slots__ = ("_decoder", "_special", "_tokenizer")

    def __init__(
        self, tokenizer: Tokenizer, *, special: bool = False, shown: frozenset[int] = frozenset()
    ) -> None:
        """Begin a text.

        Args:
            tokenizer: the tokenizer.
            special: whether the text has special tokens.
            shown: special tokens that it has in any case.
        """
        self._tokenizer = tokenizer
        self._special = frozenset() if special else tokenizer.special_tokens - shown
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def add(self, tokens: Iterable[int]) -> str:
        """The text that these tokens complete."""
        bytes_of, special = self._tokenizer.bytes_of, self._special
        return self._decoder.decode(b"".join([bytes_of(token) for token in tokens if token not in special]))

    def finish(self) -> str:
        """The remaining text: U+FFFD for an incomplete character."""
        return self._decoder.decode(b"", True)


_KNOWN = {"BPEDecoder", "ByteFallback", "ByteLevel", "Fuse", "Metaspace", "Replace", "Strip", "WordPiece"}


def _reader(decoder: dict[str, Any] | None) -> Callable[[str], bytes]:
    """The function that maps a vocabulary entry to bytes, derived from the tokenizer's decoder.

    Changes at the borders of a text (stripping a space) are left out.

    Raises:
        ArtifactError: the decoder's result for a token depends on other tokens.
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
        )  # Characters that byte-level BPE cannot have produced stay unchanged.
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
    """The largest ratio of a text's bytes to the bytes of its tokens, from a tokenizer.json; None without a
    bound.
    """

    def steps(kind: str) -> list[dict[str, Any]]:
        step = tokenizer[kind]
        return [] if step is None else step.get("normalizers", step.get("pretokenizers", [step]))

    normalizers, before, model = steps("normalizer"), steps("pre_tokenizer"), tokenizer["model"]
    for step in normalizers:
        pattern = step.get("pattern", {}).get("String")
        keeps = step["type"] in ("NFC", "Prepend", "ByteLevel")
        if not keeps and not (
            step["type"] == "Replace" and pattern and len(step["content"].encode()) >= len(pattern.encode())
        ):
            return None
    for step in before:
        if (
            step["type"] not in ("ByteLevel", "Metaspace", "Digits", "Split")
            or step.get("behavior") == "Removed"
        ):
            return None
    # Without tokens for all bytes, a run of unknown characters becomes one unknown token, or nothing.
    if any(step["type"] == "ByteLevel" for step in normalizers + before):
        needed = set(_byte_letters())
    elif model.get("byte_fallback"):
        needed = {f"<0x{byte:02X}>" for byte in range(256)}
    else:
        return None
    if model["type"] != "BPE" or not needed <= model["vocab"].keys():
        return None
    # Canonical composition shortens at most nine bytes to three.
    return 3 if any(step["type"] == "NFC" for step in normalizers) else 1


def give_back() -> None:
    """Return freed memory of the C library to the system, if it has a function for that."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None) if os.name == "posix" else None
    if trim is not None:
        trim(0)


def _byte_letters() -> dict[str, int]:
    """The characters that represent bytes in byte-level BPE (GPT-2): printable ones unchanged, the others
    from U+0100 on.
    """
    plain = [*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)]
    others = [byte for byte in range(256) if byte not in plain]
    return {chr(byte): byte for byte in plain} | {chr(256 + i): byte for i, byte in enumerate(others)}


def _text(token: object) -> str:
    return token["content"] if isinstance(token, dict) else str(token)


def _json(path: Path) -> dict[str, Any]:
    if not path.exists():
        return {}
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ArtifactError(f"{path} is not JSON: {error}") from error
    return content if isinstance(content, dict) else {}
