"""offtop is `top` for waiting: where every thread's time goes while it is not running."""

__version__ = "0.1.0"
