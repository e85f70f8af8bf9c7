"""Streaming sessions between their requests: records, stores, and the decision on the next request.

This package is independent of models and servers. Only the network store needs more than the standard library.
"""
