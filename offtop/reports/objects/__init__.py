"""The JSON objects that `--json` prints, one Tick a line; `offtop schema` is made from them and their docstrings.

They are a contract: keys are only ever added. A key that is UNSET is left out.
"""
