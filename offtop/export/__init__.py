"""What people take away: one file for each format, each a pure function of what was measured."""
