"""Chunks of time: the values that one passes on to the next, and the programs for them."""
