"""Text to token ids and back, from what the `.dfm` carries. Torch-free.

Control tokens are part of a raw prompt, where the caller writes the whole context, but never of a
chat message: whatever a message says, it cannot open or close a turn.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cached_property
from pathlib import Path

import tokenizers

from engine.chat import ChatTemplate
from engine.dfm.header import Header, read_header
from engine.errors import InvalidModelFile, InvalidRequest


class Tokenizer:
    """The tokenizer of one model. Immutable, and safe to share between threads."""

    def __init__(self, header: Header) -> None:
        try:
            self._inner = tokenizers.Tokenizer.from_str(header.tokenizer_json)
        except Exception as error:
            raise InvalidModelFile(f"the tokenizer cannot be rebuilt: {error}") from error
        if self._inner.get_vocab_size() > header.model.architecture.vocab_size:
            raise InvalidModelFile("the tokenizer has more tokens than the model")
        # we split off control tokens ourselves, so that text never turns into one by accident
        self._inner.encode_special_tokens = True
        self._tokens = header.tokens
        self.vocab_size = header.model.architecture.vocab_size
        self.context_length = header.model.architecture.context_length
        self.checksum = header.checksum
        self.eos_ids = frozenset(header.tokens.eos_ids)
        self.bos_id = header.tokens.bos_id
        self._control = {
            text: index
            for index in header.tokens.control_ids
            if (text := self._inner.id_to_token(index))
        }
        longest_first = sorted(self._control, key=len, reverse=True)
        self._control_pattern = re.compile(
            f"({'|'.join(map(re.escape, longest_first))})" if longest_first else "(?!)"
        )
        self._chat = self._compiled(header.chat_template)

    @classmethod
    def from_dfm(cls, path: Path | str) -> Tokenizer:
        """Read the tokenizer of a `.dfm`; the weights are not touched. Raises InvalidModelFile."""
        return cls(read_header(path))

    def encode(self, text: str) -> list[int]:
        """Return the ids of a raw prompt, control tokens recognised, BOS added where it belongs.

        Raises InvalidRequest for text that is not valid Unicode.
        """
        return self._with_bos(self._encode_marked(text))

    def encode_text(self, text: str) -> list[int]:
        """Return the ids of plain text: no control token, no BOS.

        Raises InvalidRequest for text that is not valid Unicode.
        """
        try:
            # Not `encode`, which holds the interpreter lock: a second for a prompt of a megabyte.
            encoded = self._inner.encode_batch_fast([text], add_special_tokens=False)
            return list(encoded[0].ids)
        except (UnicodeEncodeError, TypeError) as error:
            raise InvalidRequest("the text is not valid Unicode: a lone surrogate") from error

    def encode_chat(self, messages: Sequence[Mapping[str, str]]) -> list[int]:
        """Return the ids of a conversation, up to where the assistant speaks next.

        Raises InvalidRequest when the model has no chat template, or the template refuses.
        """
        if self._chat is None:
            raise InvalidRequest("this model has no chat template; send a prompt", "messages")
        veil = _unused_character(messages)
        controls = list(self._control)

        def hidden(match: re.Match[str]) -> str:
            return f"{veil}{controls.index(match[0])}{veil}"

        veiled = [
            {name: self._control_pattern.sub(hidden, value) for name, value in message.items()}
            for message in messages
        ]
        placeholder = re.compile(f"{veil}([0-9]+){veil}")

        def shown(text: str) -> str:
            return placeholder.sub(lambda match: controls[int(match[1])], text)

        return self._with_bos(self._encode_marked(self._chat.render(veiled), shown))

    def piece(self, token_id: int) -> bytes:
        """Return exactly the bytes that a token appends to the output; none for control tokens."""
        if not 0 <= token_id < self.vocab_size:
            raise IndexError(f"token {token_id} is outside the vocabulary of {self.vocab_size}")
        return self._pieces[token_id]

    def decode(self, ids: Iterable[int]) -> str:
        """Return the text of a sequence; bytes that form no character become U+FFFD."""
        return b"".join(map(self.piece, ids)).decode("utf-8", errors="replace")

    def _with_bos(self, ids: list[int]) -> list[int]:
        bos_id = self.bos_id
        if self._tokens.add_bos and bos_id is not None and ids[:1] != [bos_id]:
            return [bos_id, *ids]
        return ids

    def _encode_marked(self, text: str, shown: Callable[[str], str] = str) -> list[int]:
        ids: list[int] = []
        # a pattern with one group: texts at even places, control tokens at odd ones
        for place, part in enumerate(self._control_pattern.split(text)):
            if place % 2:
                ids.append(self._control[part])
            elif part:
                ids += self.encode_text(shown(part))
        return ids

    def _compiled(self, chat_source: str | None) -> ChatTemplate | None:
        if chat_source is None:
            return None
        names = {index: text for text, index in self._control.items()}
        return ChatTemplate(
            chat_source,
            bos_token=None if self.bos_id is None else names.get(self.bos_id),
            eos_token=names.get(self._tokens.eos_ids[0]),
        )

    @cached_property
    def _pieces(self) -> list[bytes]:
        control = frozenset(self._tokens.control_ids)
        verbatim = self._inner.get_added_tokens_decoder()
        pieces = []
        for index in range(self.vocab_size):
            text = self._inner.id_to_token(index)
            if text is None or index in control:
                pieces.append(b"")
            elif index in verbatim or not _BYTE_OF.keys() >= set(text):
                pieces.append(text.encode())
            else:
                pieces.append(bytes(_BYTE_OF[character] for character in text))
        return pieces


def _byte_table() -> dict[str, int]:
    # GPT-2's bytes_to_unicode, turned round: printable bytes stand for themselves, the others
    # for the characters from U+0100 on
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [byte for byte in range(256) if byte not in printable]
    return {chr(byte): byte for byte in printable} | {
        chr(256 + place): byte for place, byte in enumerate(others)
    }


_BYTE_OF = _byte_table()


def _unused_character(messages: Sequence[Mapping[str, str]]) -> str:
    """Return a noncharacter that no message contains, to mark places in a rendered template."""
    used = set().union(*(value for message in messages for value in message.values()))
    for code in range(0xFDD0, 0xFDF0):
        if chr(code) not in used:
            return chr(code)
    raise InvalidRequest("the messages use every Unicode noncharacter", "messages")
