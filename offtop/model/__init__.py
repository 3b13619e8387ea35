"""The model: plain values and pure functions, without I/O, clock or screen."""
