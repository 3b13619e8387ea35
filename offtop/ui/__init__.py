"""What you see: the only Textual and Rich. Pure functions make lines of a Picture, panels draw them."""
