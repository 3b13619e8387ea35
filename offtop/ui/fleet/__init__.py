"""The screen of `offtop fleet`: hosts, and the programs of one."""
