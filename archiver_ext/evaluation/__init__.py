"""Evaluation of candidate engines: compiled, verified against eager mode, measured."""
