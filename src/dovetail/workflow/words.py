"""What this level calls the things that a journal names neutrally."""

from __future__ import annotations

from dovetail.core.words import Words

WORDS = Words(
    job="request",
    jobs="requests",
    task="node",
    tasks="nodes",
    kind="model",
    kinds="models",
    type="workflow",
    device="GPU",
    devices="GPUs",
    setup="switch",
    setups="switches",
    waiting="nodes",
    resume="`--resume` goes on",
)
