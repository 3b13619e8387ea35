"""A recording is a file that holds everything a source reported, tick by tick; it is replayed as a source.

`file_format` defines the tables, and the modules `*_rows` encode their rows. `writer` writes a recording, `reader`
reads one as untrusted input, `replay` plays it, and `report` sums it up. `tick_encoder` makes the rows of a tick, for a
file or a stream. `stream` and `stream_writer` send ticks to another machine, where `streamed` makes snapshots of them.
"""
