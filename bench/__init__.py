"""Benchmarks of offtop's cost and accuracy, next to other tools: `make bench`, or `python -m bench`."""
