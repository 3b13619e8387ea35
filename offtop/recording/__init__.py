"""A recording is a file with all that a source told: written tick by tick, and replayed as a source itself.

`form` says what is in the file, `writer` makes it, `reader` reads it whoever made it, `replay` plays it.
"""
