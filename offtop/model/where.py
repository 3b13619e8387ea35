"""Where a thread waits, in one line: the kernel's leaf, then the program's own frames up to where it began."""

from offtop.model.book import Book
from offtop.model.stack import Frame, Names

_LIBC = ("libc.so", "libc-", "libpthread", "ld-linux", "ld-musl", "libc.musl", "[vdso]")


def kernel_names(book: Book, kernel: int, names: Names) -> list[str]:
    """Leaf first, without the scheduler's tail."""
    return [names.of(frame) for frame in book.stack(kernel).trimmed]


def user_names(book: Book, user: int, names: Names) -> list[str]:
    """Leaf first."""
    return [names.of(frame) for frame in book.stack(user).frames]


def in_short(book: Book, kernel: int, user: int, names: Names) -> str:
    """The kernel's leaf and the frames of the program that led there, the C library's left out: those say
    nothing that the kernel's leaf does not."""
    leaf = kernel_names(book, kernel, names)[:1]
    frames = book.stack(user).frames
    own = [frame for frame in frames if not _is_libc(frame)] or list(frames)
    return " < ".join([*leaf, *(names.of(frame) for frame in own)])


def _is_libc(frame: Frame) -> bool:
    return frame.file.rpartition("/")[2].startswith(_LIBC)
