"""What this level calls the things that a journal names neutrally."""

from __future__ import annotations

from dovetail.core.words import Words

WORDS = Words(
    job="microbatch",
    jobs="microbatches",
    task="pass",
    tasks="passes",
    kind="stage or link",
    kinds="stages and links",
    type="plan",
    device="device or link",
    devices="devices and links",
    setup="",
    setups="",
    waiting="passes",
    parts=True,
)
