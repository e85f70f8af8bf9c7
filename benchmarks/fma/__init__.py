"""Rate of fused multiply-adds of the cores: the limit of a matrix product."""
