"""Loops over timesteps: their calls are recognised in an unrolled trace, and computed for all timesteps at once."""
