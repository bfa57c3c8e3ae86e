"""Templates of prompts: `{name}` stands for an input's text, `{{` and `}}` for braces. Nothing is ever executed."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any

from msgspec import Struct

_PART = re.compile(r"\{\{|\}\}|\{([^{}]*)\}|[{}]")


class PromptFault(Exception):  # noqa: N818
    """What is wrong with a template."""


class PromptTemplate:
    """A text with names in braces.

    >>> template = PromptTemplate("Translate to {language}: {text} {{as JSON}}")
    >>> template.names
    ('language', 'text')
    >>> template.fill({"language": "Greek", "text": "an {apple}"}.__getitem__)
    'Translate to Greek: an {apple} {as JSON}'
    """

    def __init__(self, text: str) -> None:
        self._parts: list[tuple[bool, str]] = []  # whether it is a name, and the text
        at = 0
        for found in _PART.finditer(text):
            self._parts.append((False, text[at : found.start()]))
            at, part = found.end(), found.group()
            if part in ("{{", "}}"):
                self._parts.append((False, part[0]))
            elif found.group(1) is not None and found.group(1).strip():
                self._parts.append((True, found.group(1).strip()))
            else:
                place = f"at character {found.start() + 1}"
                raise PromptFault(f"{part!r} {place}: expected {{name}}, or {{{{ and }}}} for braces")
        self._parts.append((False, text[at:]))

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(text for is_name, text in self._parts if is_name))

    @property
    def only(self) -> str | None:
        """The name that is all there is, if so."""
        return self.names[0] if [part for part in self._parts if part != (False, "")] == [(True, *self.names)] else None

    def fill(self, value: Callable[[str], str]) -> str:
        """The text with the value of each name in its place; what values hold is left as it is."""
        return "".join(value(text) if is_name else text for is_name, text in self._parts)


class PromptMessage(Struct, forbid_unknown_fields=True):
    """A message of a chat, as the file gives it."""

    role: str
    content: str


Prompt = str | list[PromptMessage | str]  # of a list, a text that is one `{name}` stands for messages that are given


class PromptRule:
    """What a node's model is asked: a text, or the messages of a chat."""

    def __init__(self, prompt: Prompt) -> None:
        self._text = PromptTemplate(prompt) if isinstance(prompt, str) else None
        self._messages: list[tuple[str, PromptTemplate]] = []
        for i, message in enumerate(() if isinstance(prompt, str) else prompt):
            role, content = ("", message) if isinstance(message, str) else (message.role, message.content)
            try:
                self._messages.append((role, PromptTemplate(content)))
            except PromptFault as error:
                raise PromptFault(f"message {i + 1}: {error}") from None
            if isinstance(message, str) and self._messages[-1][1].only is None:
                raise PromptFault(f"message {i + 1}: expected role and content, or one {{name}}, found {message!r}")
        if not prompt:
            raise PromptFault("expected a text or messages, found nothing")

    @property
    def names(self) -> tuple[str, ...]:
        """The inputs that it takes."""
        return tuple(dict.fromkeys(name for template in self._templates for name in template.names))

    @property
    def _templates(self) -> list[PromptTemplate]:
        return [self._text] if self._text is not None else [content for _, content in self._messages]

    @property
    def length(self) -> int:
        """Characters beside those of its inputs."""
        return sum(len(template.fill(lambda name: "")) for template in self._templates)

    def ask(self, text: Callable[[str], str], messages: Callable[[str], Sequence[Any]]) -> dict[str, Any]:
        """The `prompt`, or the `messages`, for a model; an input as text, or as the messages that it is."""
        if self._text is not None:
            return {"prompt": self._text.fill(text)}
        asked: list[Any] = []
        for role, content in self._messages:
            if role:
                asked.append({"role": role, "content": content.fill(text)})
            else:
                asked += messages(content.names[0])
        return {"messages": asked}
