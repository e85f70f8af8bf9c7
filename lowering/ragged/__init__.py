"""Ragged batching: the graph of one request, traced alone, becomes a graph over padded batches.

Every value gets a leading dimension of rows [B, ...]. Each size that was computed from the request's number of
timesteps becomes a padded size, with one own size for each row. A rule for each operator keeps the invariant: within a
row's own sizes, the values are those of the request alone; beyond them they are arbitrary. The idea is that of
`jax.vmap` with ragged axes (`jax.interpreters.batching.RaggedAxis`).
"""
