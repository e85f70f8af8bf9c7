"""Graph partitioning: CPU fallback for operators that an engine does not support."""
