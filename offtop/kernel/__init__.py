"""How we know: the only room with bcc, root and /proc."""
