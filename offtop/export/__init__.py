"""Export formats, one file each; each is a pure function of what was measured."""
