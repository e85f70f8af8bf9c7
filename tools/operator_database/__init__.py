"""Trials of the rules of ragged batches by the sample calls of torch's own tests."""
