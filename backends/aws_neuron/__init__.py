"""AWS Neuron engines: programs as Python source that an old torch reads, a compiler in a separate interpreter."""
