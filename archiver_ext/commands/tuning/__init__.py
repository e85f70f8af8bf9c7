"""Modules of `neuron-lstm tune`: the proposal, and its chart."""
