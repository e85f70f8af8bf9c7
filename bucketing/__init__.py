"""The core: which compiled shape runs which request, and the padding in and out of it.

B is the number of batch rows, T of timesteps, F of features. Nothing here knows of a server, a file or an engine.
"""
