"""Run the command `offtop` as `python -m offtop`."""

from offtop.start import main

main()
