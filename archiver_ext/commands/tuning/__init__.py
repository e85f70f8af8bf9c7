"""What `neuron-lstm tune` needs: a proposal, and how it is shown."""
