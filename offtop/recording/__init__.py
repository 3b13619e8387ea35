"""A recording is a file that holds everything a source reported, tick by tick; it is replayed as a source.

`form` defines the file format, `writer` writes it, `reader` reads it as untrusted input, `replay` plays it.
"""
