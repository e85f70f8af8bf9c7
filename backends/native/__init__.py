"""Recurrent layers over ragged batches, in C++: what the engine `native` is made of."""
