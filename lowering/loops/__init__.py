"""Loops over timesteps, recognised in an unrolled trace and computed for all timesteps at once."""
