"""Calls of the abstract recurrent operators, which `recurrent_operators.py` registers with torch."""

from __future__ import annotations

_RECURRENT = frozenset({"neuron_lstm.lstm.default", "neuron_lstm.rnn.default"})


def is_recurrent(target: object) -> bool:
    """Whether the target of a graph's node is one of these operators: LSTM, GRU or plain RNN.

    >>> is_recurrent("neuron_lstm.lstm.default"), is_recurrent("neuron_lstm.last_timestep.default")
    (True, False)
    """
    return str(target) in _RECURRENT
