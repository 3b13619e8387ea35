"""The recording format: an SQLite database with one compressed change per tick, and each stack once.

Once a minute a tick also holds the whole snapshot, so that a replay can start there: it is a *whole tick*. The tables
are part of the format: a file with other tables is refused. Untrusted names are stored as bytes, since they need not be
UTF-8.
"""

APPLICATION_ID = 0x6F667470
"""`oftp`, where file(1) and SQLite expect it."""
BESIDE = ("-wal", "-shm", "-journal")
"""Suffixes of the files that SQLite creates beside a database."""
ABOUT = {"kernel": "kernel", "switch-in probe": "door", "run-queue time": "run-queue time"}
"""What a source says about itself → the key in `about` under which it is stored."""
SINCE = "since_ns"
"""Key in `about`: when the source began to measure (CLOCK_MONOTONIC). A clip begins later, a file that is full, too."""
NOTICE = "notice "
"""Prefix of keys in `about`: each of their values is a sentence about something that the recording machine lacked."""
FORMAT = 2
"""Stored as user_version. A newer format is refused; tables and fields that were added to this one are ignored by an
older offtop."""
TABLES = {
    "about": "CREATE TABLE about (key TEXT PRIMARY KEY, value TEXT NOT NULL)",
    "frames": "CREATE TABLE frames (id INTEGER PRIMARY KEY, file BLOB NOT NULL, offset INTEGER NOT NULL, "
    "name BLOB NOT NULL, told BLOB NOT NULL, used INTEGER NOT NULL)",
    "stacks": "CREATE TABLE stacks (id INTEGER PRIMARY KEY, frames BLOB NOT NULL, tail INTEGER NOT NULL, "
    "entry INTEGER NOT NULL, category TEXT NOT NULL, used INTEGER NOT NULL)",
    "ticks": "CREATE TABLE ticks (number INTEGER PRIMARY KEY, taken_ns INTEGER NOT NULL, at_ns INTEGER NOT NULL, "
    "change BLOB NOT NULL, whole BLOB)",
    "ticks_taken": "CREATE INDEX ticks_taken ON ticks (taken_ns)",
    "wholes": "CREATE INDEX wholes ON ticks (number) WHERE whole IS NOT NULL",
}
"""`frames.told` is the name of the frame as known at the end; `used` is the last whole tick that still used the row."""
LATER_TABLES = {
    "guessed": "CREATE TABLE guessed (stack INTEGER PRIMARY KEY, file BLOB NOT NULL)",
    "nameless": "CREATE TABLE nameless (file BLOB PRIMARY KEY, reason TEXT NOT NULL)",
    "outliers": "CREATE TABLE outliers (number INTEGER NOT NULL, outlier BLOB NOT NULL)",
    "files": "CREATE TABLE files (number INTEGER PRIMARY KEY, activity BLOB NOT NULL)",
    "disks": "CREATE TABLE disks (number INTEGER PRIMARY KEY, activity BLOB NOT NULL)",
}
"""Tables that the first recordings of this format lack.

`guessed`: Stack.guessed_in. `nameless`: why the functions of a file have no name, as known at the end. `outliers`,
`files` and `disks`: see outlier_rows, file_rows and disk_rows; `number` is that of their tick.
"""


def signed(offset: int) -> int:
    """Return `offset` as the signed 64-bit integer that SQLite stores: kernel addresses exceed its range."""
    return offset - (1 << 64) if offset >> 63 else offset


def unsigned(offset: int) -> int:
    return offset & (1 << 64) - 1


def text_bytes(text: str) -> bytes:
    return text.encode("utf-8", "surrogatepass")


def text_of(raw: object) -> str:
    """Decode a stored string. Raises ValueError if `raw` is not bytes."""
    if not isinstance(raw, bytes):
        raise ValueError("not the bytes of a string")
    return raw.decode("utf-8", "surrogatepass")
