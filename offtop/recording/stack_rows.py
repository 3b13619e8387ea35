"""Encodes and decodes the stacks of a recording: the ids of their frames, and how they end."""

import struct
from collections.abc import Sequence

from offtop.model.values.stack import (
    CLOSED,
    DROPPED,
    ENDS,
    GONE,
    LINKED,
    UNREAD,
    WHOLE,
    Frame,
    Stack,
)
from offtop.recording import checked

_MOST_FRAMES = 1_024
"""Several times as many as offtop takes of one stack."""
_END, _UNSURE, _OTHER = "end-", "-unsure", "other"


def encode_frames(ids: Sequence[int]) -> bytes:
    """Encode the frames of a stack, leaf first."""
    return struct.pack(f"<{len(ids)}I", *ids)


def decode_frames(raw: object) -> tuple[int, ...]:
    """Decode what `encode_frames` encoded. Raises ValueError."""
    if not isinstance(raw, bytes) or len(raw) % 4:
        raise ValueError("not the frames of a stack")
    if len(raw) > 4 * _MOST_FRAMES:
        raise ValueError("a stack is too deep")
    return struct.unpack(f"<{len(raw) // 4}I", raw)


def category_of(stack: Stack) -> str:
    """Return the category of a kernel stack; for a user stack, how it ends and whether it is unsure.

    All frames of a user stack may be Python functions that could not be read: they look like those of a kernel stack,
    but kernel stacks are whole.
    """
    if stack.end == WHOLE and not stack.is_unsure and not _is_user_stack(stack.frames):
        return stack.category
    return f"{_END}{stack.end}{_UNSURE if stack.is_unsure else ''}"


def _is_user_stack(frames: Sequence[Frame]) -> bool:
    """Return whether these are user frames: kernel frames have no offset."""
    return any(frame.offset or frame.file in (GONE, CLOSED, UNREAD, DROPPED) for frame in frames)


def stack_of(frames: Sequence[Frame], tail: object, entry: object, category: object) -> Stack:
    """Build a stack from its columns. Raises ValueError if they are invalid."""
    # The first recordings store no end: their user stacks were unwound along frame pointers.
    word, end, unsure = checked.word(category), LINKED if _is_user_stack(frames) else WHOLE, False
    if word.startswith(_END):
        unsure = word.endswith(_UNSURE)
        word, end = _OTHER, word.removeprefix(_END).removesuffix(_UNSURE)
        if end not in ENDS:
            raise ValueError("a stack has an unknown end")
    made = Stack(tuple(frames), checked.integer(tail), word, checked.integer(entry), end, unsure)
    if not 0 <= made.tail <= len(frames) or not 0 <= made.entry <= len(frames):
        raise ValueError("a stack hides more frames than it has")
    return made
