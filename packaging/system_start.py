#!/usr/bin/python3 -I
# -I: root must not import what lies in the current directory, nor what PYTHONPATH names.
import sys

sys.path.insert(0, "/usr/lib/offtop")
from offtop.start import main

main()
