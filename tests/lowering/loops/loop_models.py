"""Models with loops over timesteps, as users and published repositories write them."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

FEATURES, HIDDEN = 5, 6


def statistics(features: int) -> nn.BatchNorm1d:
    """Return a batch normalisation whose statistics are not those of a new layer."""
    layer = nn.BatchNorm1d(features)
    for values in (layer.running_mean, layer.running_var, layer.weight, layer.bias):
        assert values is not None
        nn.init.uniform_(values, 0.9, 1.1)
    return layer


class Looping(nn.Module):
    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.function = function
        self.cell = nn.LSTMCell(FEATURES, HIDDEN)
        self.back = nn.LSTMCell(FEATURES, HIDDEN)
        self.gru = nn.GRUCell(HIDDEN, HIDDEN)
        self.rnn = nn.RNNCell(FEATURES, HIDDEN, bias=False)
        self.score = nn.Linear(FEATURES, 1)
        self.layers = nn.ModuleList([nn.LSTMCell(FEATURES if i == 0 else HIDDEN, HIDDEN) for i in range(2)])
        self.dropout = nn.Dropout(0.5)
        self.out = nn.Linear(HIDDEN, 3)
        self.frames = nn.Conv1d(FEATURES, FEATURES, 3, stride=2, padding=1)
        self.gates = nn.Linear(FEATURES + HIDDEN, 4 * HIDDEN)
        self.first, self.normalize = nn.Linear(FEATURES, HIDDEN), nn.LayerNorm(HIDDEN)
        self.shift = nn.Conv1d(1, 1, 3, padding=1)
        self.start = nn.Parameter(torch.linspace(-1, 1, HIDDEN))
        self.transitions = nn.Parameter(torch.eye(HIDDEN))
        self.words = nn.GRU(1, 4, batch_first=True, bidirectional=True)
        self.parts = nn.LSTM(1, 4, batch_first=True)
        self.step = nn.LSTM(FEATURES, HIDDEN, 2)
        self.statistics = nn.ModuleList([statistics(FEATURES if i == 0 else HIDDEN) for i in range(2)])

    def forward(self, x: Tensor) -> Any:
        return self.function(self, x)


def zeros(x: Tensor) -> tuple[Tensor, Tensor]:
    return x.new_zeros(x.size(0), HIDDEN), torch.zeros(x.size(0), HIDDEN)


def cells_in_turn(m: Looping, x: Tensor) -> Any:
    (h, c), g, outputs = zeros(x), None, []
    buffer = x.new_zeros(x.size(0), x.size(1), HIDDEN)
    for t in range(x.size(1)):
        h, c = m.cell(x[:, t], (h, c))
        g = m.gru(torch.relu(h), g)
        buffer[:, t] = g
        outputs.append(m.out(g))
    return torch.stack(outputs, 1), h, c, buffer


def backwards_into_a_buffer(m: Looping, x: Tensor) -> Any:
    state, states = None, x.new_zeros(x.size(0), x.size(1), HIDDEN)
    for t in range(x.size(1) - 1, -1, -1):
        state = m.cell(x[:, t], state)
        states[:, t] = state[0]
    return states


def mean_of_a_list(m: Looping, x: Tensor) -> Any:
    """A sum of a list begins with the number 0."""
    assert x.size(1) > 0, f"{x.size(1)} timesteps"
    outputs = cells_in_turn(m, x)[0].unbind(1)
    return sum(outputs) / len(outputs)


def two_sequences(m: Looping, x: Tensor) -> Any:
    h, c, outputs = *zeros(x), []
    for own, other in zip(x.transpose(0, 1), x.tanh().transpose(0, 1), strict=True):
        h, c = m.cell(torch.sigmoid(m.score(own)) * other - torch.sigmoid(m.score(other)) * own, (h, c))
        outputs.append(h)
    return torch.stack(outputs, 1)


def channels_in_turn(m: Looping, x: Tensor) -> Any:
    pairs = torch.stack([x, x.tanh()], 3).transpose(2, 3).contiguous().view(x.size(0), x.size(1), 2 * FEATURES)
    h, c, outputs = *zeros(x), []
    for t in range(x.size(1)):
        h, c = m.cell(pairs[:, t, 2 : 2 + FEATURES], (h, c))
        outputs.append(h)
    return torch.stack(outputs, 1)


def backwards_by_positions(m: Looping, x: Tensor) -> Any:
    positions = torch.arange(x.size(1) - 1, -1, -1)
    rows = torch.cat([x, x[:, positions]])
    flat = m.statistics[0](rows.reshape(rows.size(0) * rows.size(1), FEATURES)).reshape(rows.shape)
    h, c, outputs = *zeros(rows), []
    for t in range(x.size(1)):
        h, c = m.cell(flat[:, t], (h, c))
        outputs.append(h)
    ahead, back = torch.stack(outputs, 1).chunk(2)
    return torch.cat([ahead, back[:, positions]], 2)


def stacked_cells(m: Looping, x: Tensor) -> Any:
    states, outputs = [zeros(x) for _ in m.layers], []
    for step in torch.tanh(x).transpose(0, 1):
        y = step
        for i, cell in enumerate(m.layers):
            states[i] = cell(y, states[i])
            y = m.dropout(states[i][0])
        outputs.append(y)
    return torch.stack(outputs).transpose(0, 1), outputs[-1]


def both_directions(m: Looping, x: Tensor) -> Any:
    steps, state, forward = x.size(1), None, []
    for t in range(steps):
        state = m.cell(x[:, t, :], state)
        forward.append(state[0])
    state, backward = None, [x] * steps
    for t in reversed(range(steps)):
        state = m.back(x[:, t, :], state)
        backward[t] = state[0]
    y = torch.stack([torch.cat(pair, -1) for pair in zip(forward, backward, strict=True)], dim=1)
    return y, y.mean(1)


def after_a_stride(m: Looping, x: Tensor) -> Any:
    return cells_in_turn(m, m.frames(x.transpose(1, 2)).transpose(1, 2))


def first_step_apart(m: Looping, x: Tensor) -> Any:
    """The state is read back from the buffer that holds the results."""
    states = torch.zeros(x.size(0), x.size(1), HIDDEN)
    states[:, 0] = m.rnn(x[:, 0])
    for t in range(1, x.size(1)):
        states[:, t] = m.rnn(x[:, t], states[:, t - 1])
    return states


def no_recurrence(m: Looping, x: Tensor) -> Any:
    return torch.stack([torch.relu(m.score(step)) * 2 for step in x.unbind(1)], 1)


def own_cell(m: Looping, x: Tensor) -> Any:
    h, c = zeros(x)
    for t in range(x.size(1)):
        i, f, g, o = m.gates(torch.cat([x[:, t], h], 1)).chunk(4, 1)
        c = torch.sigmoid(f) * c + torch.sigmoid(i) * torch.tanh(g)
        h = torch.sigmoid(o) * torch.tanh(c)
    return h


def every_state(m: Looping, x: Tensor) -> Any:
    """The cell states of all timesteps, which a fused layer does not return."""
    state, cells = zeros(x), []
    for t in range(x.size(1)):
        state = m.cell(x[:, t], state)
        cells.append(state[1])
    return torch.stack(cells, 1)


def own_cell_over_attention(m: Looping, x: Tensor) -> Any:
    state = x.new_zeros(x.size(0), HIDDEN)
    outputs: list[Tensor] = []
    for t in reversed(range(x.size(1))):
        new = torch.tanh(m.gates(torch.cat([x[:, t], state], 1))[:, :HIDDEN])
        weight = torch.sigmoid(m.score(x[:, t]))
        state = weight * new + (1 - weight) * state
        outputs.insert(0, m.out(state))
    return torch.stack(outputs, 1), state


def reset_by_an_input(m: Looping, x: Tensor) -> Any:
    h, c = zeros(x)
    outputs: list[Tensor] = []
    for t in range(x.size(1)):
        keep = (x[:, t, :1] < 0.5).float()
        h, c = m.cell(x[:, t], (keep * h, keep * c))
        outputs.append(h)
    return torch.stack(outputs, 1), c


def own_layers(m: Looping, x: Tensor) -> Any:
    """Steps of a part of what was computed in place."""
    g, mean = x.new_zeros(x.size(0), HIDDEN), x.new_zeros(x.size(0), HIDDEN)
    both = nn.functional.leaky_relu(torch.cat([x, -x], 2), inplace=True)
    for step in both.split(FEATURES, 2)[1].unbind(1):
        g = m.gru(m.rnn(step, mean), g)
        mean = 0.9 * mean + 0.1 * g
    return mean, g


def zoned_out(cell: Callable[..., Any], x: Tensor, state: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    """Return a mean of the states before and after a step; nothing reads that of the last c."""
    return tuple(0.1 * old + 0.9 * new for old, new in zip(state, cell(x, state), strict=True))


def mean_of_states(m: Looping, x: Tensor) -> Any:
    state: tuple[Tensor, ...] = zeros(x)
    outputs = []
    for step in x.unbind(1):
        state = zoned_out(m.cell, step, state)
        outputs.append(state[0] + m.normalize(m.gates(torch.cat([step, state[0]], 1))[:, :HIDDEN]))
    own = torch.stack([m.normalize(m.shift(m.first(step).unsqueeze(1)).squeeze(1)) for step in x.unbind(1)], 1)
    return torch.stack(outputs, 1) + own


def appended(m: Looping, x: Tensor) -> Any:
    state, outputs, reversed_outputs = zeros(x), None, None
    for t in range(x.size(1)):
        state = m.cell(x[:, t], state)
        h = torch.max(state[0], 0.5 * state[0]).unsqueeze(1)
        outputs = h if outputs is None else torch.cat((outputs, h), 1)
        reversed_outputs = h if reversed_outputs is None else torch.cat([h, reversed_outputs], dim=1)
    return outputs, reversed_outputs


def normalized_layers(m: Looping, x: Tensor) -> Any:
    for normalize, cell in zip(m.statistics, m.layers, strict=True):
        (h, c), outputs = zeros(x), []
        for t in range(x.size(1)):
            h, c = cell(normalize(x[:, t]), (h, c))
            outputs.append(h)
        x = torch.stack(outputs, 1)
    return x, c


def tags_before_batch(m: Looping, x: Tensor) -> Any:
    """The forward algorithm of a CRF, from the second timestep on: one timestep has no step of the loop.

    The scores are [tags, B], of other strides before the first step.
    """
    emissions = m.first(x)
    score = (m.start + emissions[:, 0]).t()
    for t in range(1, x.size(1)):
        paths = score.unsqueeze(0) + m.transitions.unsqueeze(2) + emissions[:, t].t().unsqueeze(1)
        score = torch.logsumexp(paths, dim=1)
    return torch.logsumexp(score.t() + m.start, dim=1)


def highway(m: Looping, x: Tensor) -> Any:
    state, outputs = x.new_zeros(x.size(0), HIDDEN), []
    for t in range(x.size(1)):
        new, carry, more, last = m.gates(torch.cat([x[:, t], state], 1)).chunk(4, 1)
        gate = torch.sigmoid(carry)
        state = torch.tanh(new) * gate + state * (1 - gate)
        gate = torch.sigmoid(last + m.gru.bias_hh[:HIDDEN])
        state = torch.tanh(more + state) * gate + state * (1 - gate)
        outputs.append(state)
    return torch.stack(outputs, 1)


def simple_recurrent_unit(m: Looping, x: Tensor) -> Any:
    values, forgets = m.first(x), torch.sigmoid(m.first(x.flip(2)))
    resets = torch.sigmoid(values - forgets)
    c, outputs = x.new_zeros(x.size(0), HIDDEN), []
    for t in range(x.size(1)):
        c = forgets[:, t] * c + (1 - forgets[:, t]) * values[:, t]
        outputs.append(resets[:, t] * torch.tanh(c) + (1 - resets[:, t]) * values[:, t])
    return torch.stack(outputs, dim=1), c


def exponential_gates(m: Looping, x: Tensor) -> Any:
    """Exponential gates, made stable by a maximum, with a function that torch composes (xLSTM)."""
    h, c, n, largest = (x.new_zeros(x.size(0), HIDDEN) for _ in range(4))
    outputs = []
    for t in range(x.size(1)):
        new, enter, keep, out = m.gates(torch.cat([x[:, t], h], 1)).chunk(4, 1)
        kept = nn.functional.logsigmoid(keep) + largest
        largest = torch.max(kept, enter)
        c = torch.exp(kept - largest) * c + torch.exp(enter - largest) * torch.tanh(new)
        n = torch.exp(kept - largest) * n + torch.exp(enter - largest)
        h = torch.sigmoid(out) * c / n
        outputs.append(h)
    return torch.stack(outputs, 1)


def zipped(m: Looping, x: Tensor) -> Any:
    """A memory that gates erase and write: iteration over three tensors, and a call twice a timestep."""
    erase, write = torch.sigmoid(m.first(x)), torch.tanh(m.first(x.flip(2)))
    memory, states = m.transitions.unsqueeze(0).repeat(x.size(0), 1, 1), []
    for e, a, w in zip(erase.unbind(1), write.unbind(1), torch.softmax(erase, -1).unbind(1), strict=True):
        states.append(memory)
        memory = memory * (1 - w.unsqueeze(-1) * e.unsqueeze(1)) + w.unsqueeze(-1) * a.unsqueeze(1)
    return torch.stack(states, 1).sum(-1)


def over_unpacked(m: Looping, x: Tensor) -> Any:
    padded, lengths = pad_packed_sequence(pack_padded_sequence(x, [x.size(1)], batch_first=True), batch_first=True)
    (h, c), outputs, last = zeros(x), [], 0
    for t in range(padded.size(1)):
        while lengths[last] <= t:
            last -= 1
        h, c = m.cell(padded[: last + 1, t], (h, c))
        outputs.append(h)
    return torch.stack(outputs, 1)


def layers_of_each_timestep(m: Looping, x: Tensor) -> Any:
    vectors, state = [], None
    for t in range(x.size(1)):
        words, last = m.words(x[:, t].unsqueeze(2))
        _, (h, c) = m.parts(x[:, t].unsqueeze(2))
        _, state = m.parts(x[:, t].unsqueeze(2), state)
        vectors.append(torch.cat([words.mean(1), last[-1], h[0], c[0], state[0][0]], 1))
    return torch.stack(vectors, 1), state


def layer_called_each_timestep(m: Looping, x: Tensor) -> Any:
    state, outputs = None, []
    for t in range(x.size(1)):
        y, state = m.step(x[:, t].unsqueeze(0), state)
        outputs.append(y.squeeze(0))
    return torch.stack(outputs, 1)


def clipped_rows(m: Looping, x: Tensor) -> Any:
    """Two layers in both directions over the rows that have not ended (AllenNLP's ELMo)."""
    lengths, inputs = [x.size(1)] * x.size(0), [x, x]
    for _ in range(2):
        for forwards in (True, False):
            rows, memory = inputs[not forwards], x.new_zeros(x.size(0), FEATURES)
            outputs = torch.zeros_like(rows)
            for t in range(x.size(1)):
                place, last = (t, 0) if forwards else (x.size(1) - 1 - t, 0)
                while last < len(lengths) - 1 and lengths[last + 1] > place:
                    last += 1
                own = torch.tanh(m.score(rows[0 : last + 1, place]) + memory[0 : last + 1].clone()).clamp(-0.9, 0.9)
                memory = memory.clone()
                memory[0 : last + 1] = own
                outputs[0 : last + 1, place] = own
            inputs[not forwards] = outputs
    return torch.cat(inputs, 2)


LOOPS = (backwards_into_a_buffer, own_cell)
CELLS = (normalized_layers, layer_called_each_timestep)
"""Loops of published cells, compared at every length of a small grid."""
MORE_CELLS = (
    *(simple_recurrent_unit, layers_of_each_timestep, clipped_rows),
    *(tags_before_batch, highway, exponential_gates),
)
"""Other cells; two of them are cut into chunks by other tests."""
MORE_LOOPS = (
    *(zipped, mean_of_a_list, mean_of_states, both_directions),
    *(every_state, after_a_stride, reset_by_an_input, appended),
)
"""Other forms of the same."""
FURTHER_LOOPS = (
    *(two_sequences, over_unpacked, stacked_cells, no_recurrence),
    *(own_cell_over_attention, channels_in_turn, first_step_apart, own_layers),
    backwards_by_positions,
)
