"""Export of forward() by torch, and the graphs that result."""
