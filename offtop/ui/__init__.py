"""The terminal UI, and the only code that uses Textual and Rich.

Pure functions turn a Picture into lines, and panels draw them.
"""
