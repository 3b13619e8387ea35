"""Location of a wait in one line: the kernel's leaf, then the program's frames."""

from collections.abc import Iterable

from offtop.model.aggregate.pool import Convoy
from offtop.model.classify.causes import PYTHON_FUNCTION, Rule
from offtop.model.values.catalog import Catalog, SiteKey
from offtop.model.values.stack import Frame, Names, functions, nameless
from offtop.model.values.wake import FIRST_WAKE, NO_WAKE, NOBODY, UNIX, Storm
from offtop.units import count, percent

_ENTRY = "_start"
_LIBC = ("libc.so", "libc-", "libpthread", "ld-linux", "ld-musl", "libc.musl", "[vdso]")


def kernel_names(catalog: Catalog, kernel: int, names: Names) -> list[str]:
    """Leaf first, without the scheduler's frames."""
    return names_of(catalog.stack(kernel).trimmed, names)


def user_names(catalog: Catalog, user: int, names: Names) -> list[str]:
    """Leaf first."""
    return names_of(catalog.stack(user).frames, names)


def names_of(frames: Iterable[Frame], names: Names) -> list[str]:
    """Return the names of all functions of these frames, including inlined ones."""
    return [name for frame in frames for name in functions(names.of(frame))]


def in_short(catalog: Catalog, kernel: int, user: int, names: Names, wake: int = NO_WAKE) -> str:
    """Return the kernel's leaf and the program's frames, without the C library's.

    Those say nothing that the leaf does not. `wake` is the wake id, to include the peers.
    """
    peers = peers_text(catalog, kernel, wake)
    leaf = [f"{name} ({peers})" if peers else name for name in kernel_names(catalog, kernel, names)[:1]]
    return " < ".join([*leaf, *_own_names(catalog, user, names), *_missing(catalog, user)])


def peers_text(catalog: Catalog, kernel: int, wake: int) -> str:
    """Return the peers of the object waited on at that kernel stack, or what an epoll watches.

    Empty if unknown. Raw.
    """
    return catalog.peers_of(catalog.wake(wake).object).text(catalog.stack(kernel))


def of_sleeper(catalog: Catalog, site: SiteKey, names: Names) -> str:
    """Return where it waits, and the waker, or else the peers if known."""
    if _has_waker(catalog, site):
        return f"{in_short(catalog, site.kernel, site.user, names)} <- {catalog.wake(site.wake).waker.label}"
    return in_short(catalog, site.kernel, site.user, names, site.wake)


def of_object(catalog: Catalog, site: SiteKey, names: Names) -> str:
    """Return the peers of an object if known, where it is waited on, and the waker."""
    place, peers = in_short(catalog, site.kernel, site.user, names), peers_text(catalog, site.kernel, site.wake)
    woken = f" <- {catalog.wake(site.wake).waker.label}" if _has_waker(catalog, site) else ""
    return f"{peers}; {place}{woken}" if peers else f"{place}{woken}"


def with_rule(catalog: Catalog, site: SiteKey, rule: Rule | None, place: str) -> str:
    """Put the cause before the place. Raw.

    `an answer from PostgreSQL at 10.0.0.5:5432: tcp_recvmsg < …`
    """
    return f"{rule.name}{_identification(catalog, site)}: {place}" if rule else place


def _identification(catalog: Catalog, site: SiteKey) -> str:
    """Return what identifies the object beyond the rule's text."""
    what = catalog.wake(site.wake).object
    if what.kind == UNIX:
        return f" of {what.peer}" if what.peer and not catalog.peers_of(what).sides else ""
    if what.peer:
        return f" at {what.peer}"
    return f" on {what.name}" if what.kind == "file" and what.name.startswith("/") else ""


def of_waker(catalog: Catalog, site: SiteKey, names: Names) -> str:
    """Return the waker's stack and the woken process.

    Without a known waker, where the thread waits.
    """
    waker, woken = catalog.wake(site.wake).waker, catalog.process(site.pid)
    if waker.kind == NOBODY:
        return in_short(catalog, site.kernel, site.user, names)
    return f"{in_short(catalog, waker.kernel, waker.user, names)} -> {woken}".lstrip()


def of_storm(storm: Storm, span_ns: int) -> str:
    """Return how often, how many, and what they cost."""
    per_s = 1e9 / span_ns if span_ns else 0.0
    again = percent(storm.slept_again, storm.woken)
    return (
        f"{count(storm.storms * per_s)}/s wake up to {storm.largest:,}; {again:.0f}% sleep again within 1 ms: "
        f"{count(storm.wasted_switches * per_s)} switches/s"
    )


def of_convoy(catalog: Catalog, convoy: Convoy, names: Names, cause_name: str = "") -> str:
    """Return how many wait for the same thing, and for what.

    The futex says more than the kernel's leaf. `cause_name` is the name of the cause.
    """
    site = convoy.site
    what = ["one futex"] if convoy.futex else kernel_names(catalog, site.kernel, names)[:1]
    place = " < ".join([*what, *_own_names(catalog, site.user, names)])
    return f"{convoy.waiting}/{convoy.of} {f'{cause_name}: ' if cause_name else ''}{place}"


def _has_waker(catalog: Catalog, site: SiteKey) -> bool:
    return site.wake >= FIRST_WAKE and catalog.wake(site.wake).has_waker


def _missing(catalog: Catalog, user: int) -> list[str]:
    """Return marks for missing or uncertain callers."""
    stack = catalog.stack(user)
    return ["…"] if stack.missing else ["~"] if stack.is_guessed else []


def _own_names(catalog: Catalog, user: int, names: Names) -> list[str]:
    """Return the program's functions, without what precedes main().

    The C library's if there are no others.
    """
    frames = catalog.stack(user).frames
    own = names_of([frame for frame in frames if not _is_libc(frame)], names)
    return [name for name in own if name != _ENTRY] or names_of(frames, names)


def own_function(catalog: Catalog, user: int, names: Names) -> str:
    """Return the innermost function of the program outside of the C library; empty if none has a name.

    It is the innermost Python function, if there are any: the interpreter's own functions say nothing.
    """
    frames = [frame for frame in catalog.stack(user).frames if not _is_libc(frame)]
    found = [name for frame in frames if names.of(frame) != nameless(frame) for name in functions(names.of(frame))]
    return next(filter(PYTHON_FUNCTION.fullmatch, found), next(iter(found), ""))


def _is_libc(frame: Frame) -> bool:
    return frame.file.rpartition("/")[2].startswith(_LIBC)
