"""Packaging of a model that answers by its own code."""
