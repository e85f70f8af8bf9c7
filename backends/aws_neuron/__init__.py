"""AWS Neuron engines: programs as Python source, compiled in a separate interpreter."""
