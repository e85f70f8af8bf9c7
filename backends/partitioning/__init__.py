"""Graph partitioning: operators that an engine does not support run on the CPU, in one program with the others."""
