"""Everything offtop can fail with, as a tree; each error says what is wrong and then what to do."""


class OfftopError(Exception):
    """A run-time error: one sentence and its remedy."""

    status = 1


class UsageError(OfftopError):
    """The command line asks for something that cannot be."""

    status = 2


class PrivilegeError(OfftopError):
    """The kernel would let root do this."""

    status = 3


class CaughtError(OfftopError):
    """Something was caught, which was asked to be a failure."""

    status = 5


class KernelError(OfftopError):
    """This kernel, or this bcc, cannot do what is needed."""

    status = 4
