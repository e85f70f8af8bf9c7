"""The built-in server: `neuron-lstm serve --server builtin`."""
