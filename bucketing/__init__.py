"""Core: choice of a compiled shape for every request, padding into it and out of it.

B is the number of batch rows, T of timesteps, F of features. Nothing here depends on a server, a file or an engine.
"""
