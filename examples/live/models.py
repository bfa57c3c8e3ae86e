"""Models that any machine can run: functions in the place of networks. A factory is called when its model is loaded."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

Answers = Callable[[dict[str, Any]], Any]
ENGLISH = {"das": "the", "der": "the", "die": "the", "meer": "sea", "ist": "is", "weit": "wide", "himmel": "sky"}


def translator(model: Any) -> Answers:
    """Word by word; words that it does not know stay as they are."""

    def translate(inputs: dict[str, Any]) -> str:
        words = inputs["text"].split()
        return " ".join(ENGLISH.get(word.lower().strip(".,"), word) for word in words)

    return translate


def summariser(model: Any) -> Answers:
    """Keeps the first words: fewer, the more often it was told that it was too long."""

    def summarise(inputs: dict[str, Any]) -> dict[str, Any]:
        most = int(inputs.get("limit") or 8)
        return {"summary": " ".join(inputs["english"].split()[:most])}

    return summarise


def judge(model: Any) -> Answers:
    """Says how long a summary is, and how long the next one may be."""

    def score(inputs: dict[str, Any]) -> dict[str, Any]:
        words = len(inputs["summary"].split())
        return {"words": words, "limit": max(words - 2, 4)}

    return score


def searcher(model: Any) -> Answers:
    """Looks one thing up."""
    return lambda inputs: {"hit": f"{inputs['topics']}: {len(inputs['topics'])} letters"}


def topics(model: Any) -> Answers:
    """The long words of a text, each once."""

    def find(inputs: dict[str, Any]) -> dict[str, Any]:
        words = dict.fromkeys(word for word in inputs["summary"].split() if len(word) > 3)
        return {"topics": list(words)[:4]}

    return find


def writer(model: Any) -> Answers:
    """Puts it all together."""
    return lambda inputs: "\n".join([inputs["summary"], *inputs["hit"]])
