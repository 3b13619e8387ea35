"""Outliers as text. The text is raw: escape it before it is shown."""

from offtop.model.aggregate import location as where
from offtop.model.aggregate.row_names import thread_name
from offtop.model.outliers.trigger import value_text
from offtop.model.values.outlier import AUTO, Outlier
from offtop.model.values.stack import Names
from offtop.units import duration


def thread_text(one: Outlier) -> str:
    """Return `worker-3(4250) of mysqld(4242)`; the program if it is not about one thread."""
    if one.wait is None:
        return one.program
    site = one.wait.site
    comm = thread_name(site.thread, one.catalog) or one.program
    return f"{comm}({site.tid})" if site.tid == site.pid else f"{comm}({site.tid}) of {one.program}({site.pid})"


def value_and_bound(one: Outlier) -> str:
    """Return `1.84s`, or `>1.84s` for a wait in progress, or one that began before it was first seen."""
    is_longer = one.is_going_on or (one.wait is not None and one.wait.began_earlier)
    return f"{'>' if is_longer else ''}{value_text(one.metric, one.value)}"


def threshold_text(one: Outlier) -> str:
    """Return the threshold that it crossed: the trigger, or what is usual."""
    if one.rule != AUTO:
        return one.rule
    return f"usually <={duration(one.usual_ns)}" if one.usual_ns else AUTO


def location_text(one: Outlier, names: Names) -> str:
    """Return where the thread waited and on what, what was slow, or the sentence of a suspect; otherwise empty."""
    return where.of_sleeper(one.catalog, one.wait.site, names) if one.wait else one.what


def one_line(one: Outlier, names: Names) -> str:
    """Describe an outlier in one line.

    `1.84s lock, usually <=12ms: worker-3(4250) of mysqld(4242): futex_wait < …`
    """
    location = one.says or ": ".join(filter(None, (thread_text(one), location_text(one, names))))
    return (
        f"{value_and_bound(one)} {one.category or 'in all'}, {threshold_text(one)}{f': {location}' if location else ''}"
    )
