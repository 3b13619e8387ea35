"""What offtop costs and how right it is, side by side with its peers: `make bench`, or python -m bench."""
