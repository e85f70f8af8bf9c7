"""Assertions in exported graphs."""

from __future__ import annotations

import torch

from torchserve_neuron_lstm.backends.assertions import is_assertion


def test_calls_that_only_check_are_told_from_inputs_of_such_a_name() -> None:
    """An unused input may be called `asserted`; a check whose result is used is a value."""
    graph = torch.fx.Graph()
    named = graph.placeholder("asserted")
    checks = [
        graph.call_function(torch.ops.aten._assert_async.default, (named,)),
        graph.call_function(torch.ops.aten.sym_constrain_range_for_size.default, (named,)),
    ]
    unused = graph.placeholder("assertion")
    computed = graph.call_function(torch.ops.aten.relu.default, (named,))

    assert all(map(is_assertion, checks))
    assert not any(map(is_assertion, (named, unused, computed)))

    graph.output(checks[0])
    assert not is_assertion(checks[0])
