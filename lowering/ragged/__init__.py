"""Ragged batching: the graph of one request, traced alone, becomes a graph over padded batches.

The reference of lowering is each request alone, so the trace of one request is exact by definition: it has no other
rows, no padding and no masks. This package runs that graph on a whole batch. Every value gets a leading dimension of
rows [B, ...]. Each size that was computed from the request's number of timesteps becomes a padded size, with one own
size for each row. A rule for each operator keeps the first invariant: within a row's own sizes, the values are those of
the request alone; beyond them they are arbitrary. An operator that reads along a ragged dimension gets its input masked
first; one without a rule is refused.

The idea is that of `jax.vmap` with ragged axes (`jax.interpreters.batching.RaggedAxis`) and of torch's nested tensors
with jagged layout.
"""
