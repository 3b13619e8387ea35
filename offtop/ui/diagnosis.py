"""What rules say of what is on the screen, in one line."""

from offtop.model.diagnoser import most
from offtop.model.picture import Picture


def in_full(picture: Picture) -> str:
    """What most of the selection waits for, and what to look at next; empty where nothing is known of enough of it."""
    told = most(picture.diagnosis)
    return told.in_full(picture.book, picture.view.pid is None) if told else ""


def heading(picture: Picture) -> str:
    """The same for the title of a tree."""
    told = most(picture.diagnosis)
    return told.in_short(picture.book, with_process=False) if told else ""
