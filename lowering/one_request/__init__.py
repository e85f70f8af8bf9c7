"""Trace of one request alone, in which its lengths are known numbers."""
