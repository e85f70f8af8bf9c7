"""One file for each command of `neuron-lstm`, with what only that command needs."""
