"""The cores of this host, and those that the runtime's environment makes visible."""

import os


def host_cores() -> int:
    """The cores of the simulated host."""
    return int(os.environ.get("NEURON_DOUBLE_CORES", "2"))


def visible_cores() -> int:
    """Cores of this process: NEURON_RT_VISIBLE_CORES, else NEURON_RT_NUM_CORES; 0 or neither means all.

    Raises:
        RuntimeError: the cores are not contiguous, or do not exist.
    """
    here = host_cores()
    listed = os.environ.get("NEURON_RT_VISIBLE_CORES")
    if listed:
        cores = _listed(listed)
        if cores != list(range(cores[0], cores[-1] + 1)):
            raise RuntimeError("Neuron cores are not contiguous")
        wanted, last = len(cores), cores[-1]
    else:
        wanted = int(os.environ.get("NEURON_RT_NUM_CORES", "0")) or here
        last = wanted - 1
    if here == 0 or last >= here:
        raise RuntimeError(f"NRT:nrt_allocate_neuron_cores NeuronCore(s) not available - Requested:{wanted} of {here}")
    return wanted


def _listed(text: str) -> list[int]:
    if "-" in text:
        first, last = (int(part) for part in text.split("-"))
        return list(range(first, last + 1))
    return [int(part) for part in text.split(",")]
