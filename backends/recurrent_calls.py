"""Calls of the abstract recurrent operators, which `recurrent_operators.py` registers with torch."""

from __future__ import annotations


def is_recurrent(target: object) -> bool:
    """Whether the target of a graph's node is one of these operators: LSTM, GRU or plain RNN.

    >>> is_recurrent("neuron_lstm.lstm.default"), is_recurrent("aten.lstm.input")
    (True, False)
    """
    return str(target).startswith("neuron_lstm.")
