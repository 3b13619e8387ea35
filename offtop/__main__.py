"""`python -m offtop` is the command `offtop`."""

from offtop.start import main

main()
