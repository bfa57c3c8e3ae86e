"""The text of tokens as they come: whole characters only, and nothing from a stop string on."""

from __future__ import annotations

from collections.abc import Callable, Sequence

_HALF = "\ufffd"  # what half a character is decoded to


class TextStream:
    """Pieces of text that together are the text of all tokens, up to the first stop string.

    Tokens are decoded with those of the piece before them, because many tokenizers write the first token of a text
    otherwise than the same token later on.

    >>> stream = TextStream(lambda ids: bytes(ids).decode(errors="replace"), ["end"])
    >>> [stream.take(byte) for byte in "né e".encode()]
    ['n', '', 'é', ' ', '']
    >>> [stream.take(byte) for byte in "x end".encode()], stream.stopped, stream.text
    (['ex', ' ', '', '', ''], True, 'né ex ')
    """

    def __init__(self, decode: Callable[[Sequence[int]], str], stop: Sequence[str] = ()) -> None:
        self._decode = decode
        self._stop = [text for text in stop if text]
        self._tokens: list[int] = []
        self._before = ""  # the text of the tokens of the last piece, which are the first of `_tokens`
        self._count = 0  # how many those are
        self._held = ""  # maybe the beginning of a stop string
        self.text = ""
        self.stopped = False

    def take(self, token: int) -> str:
        """What is certain with one more token, and was not before."""
        self._tokens.append(token)
        decoded = self._decode(self._tokens)
        if decoded.endswith(_HALF) or len(decoded) <= len(self._before):
            return ""
        fresh = decoded[len(self._before) :]
        self._tokens = self._tokens[self._count :]
        self._count = len(self._tokens)
        self._before = self._decode(self._tokens)
        return self._passed(fresh)

    def end(self) -> str:
        """The rest."""
        decoded = self._decode(self._tokens)
        rest = self._passed(decoded[len(self._before) :]) + self._held
        self.text += self._held
        self._tokens, self._before, self._count, self._held = [], "", 0, ""
        return rest

    def _passed(self, fresh: str) -> str:
        if self.stopped:
            return ""
        text = self._held + fresh
        found = [at for at in map(text.find, self._stop) if at >= 0]
        self.stopped = bool(found)
        until = min(found) if found else len(text) - self._begun(text)
        self._held = "" if found else text[until:]
        self.text += text[:until]
        return text[:until]

    def _begun(self, text: str) -> int:
        """How many characters at the end may begin a stop string."""
        longest = max(map(len, self._stop), default=1) - 1
        for size in range(min(longest, len(text)), 0, -1):
            if any(stop.startswith(text[-size:]) for stop in self._stop):
                return size
        return 0
