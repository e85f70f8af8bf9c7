"""A double of the GPU's kernel of recurrent layers: the same contract, by torch's operators."""

from dataclasses import dataclass, field

import torch
from torch import Tensor

from torchserve_neuron_lstm.backends.cuda.kernels.interface import KernelError, LayerCall


@dataclass
class TorchKernel:
    """Layers of up to so many hidden units, each row to its own end."""

    widest: int = 1 << 30
    cells: list[str] = field(default_factory=list)
    """Cells of the calls, in their order."""
    weights: set[int] = field(default_factory=set)
    """Addresses of the recurrent weights of the calls."""
    broken: bool = False
    """Whether CUDA refuses all launches."""

    def computes(self, hidden: int) -> bool:
        return hidden <= self.widest

    def enqueue(self, call: LayerCall) -> None:
        if self.broken:
            raise KernelError("CUDA_ERROR_INVALID_CLUSTER_SIZE")
        self.cells.append(call.cell)
        self.weights.add(call.w_hh.data_ptr())
        operands = (call.gates, call.w_hh, call.b_hn, call.lengths, call.h_0, call.c_0, call.y, call.h_n, call.c_n)
        for tensor in operands:
            assert tensor is None or tensor.is_contiguous()
            assert tensor is None or tensor.dtype == (torch.int64 if tensor is call.lengths else torch.float32)
        for direction in range(call.gates.shape[2]):
            _run(call, direction)


def _run(call: LayerCall, direction: int) -> None:
    batch, time = call.gates.shape[:2]
    hidden = call.w_hh.shape[2]
    own = slice(direction * hidden, (direction + 1) * hidden)
    h, c = call.h_0[direction], None if call.c_0 is None else call.c_0[direction]
    lengths = torch.full((batch,), time, device=h.device) if call.lengths is None else call.lengths
    for step in range(time):
        alive = (step < lengths)[:, None]
        at = (lengths - 1 - step).clamp(min=0) if direction else torch.full_like(lengths, step)
        gates = call.gates[:, :, direction].gather(1, at[:, None, None].expand(-1, 1, call.gates.shape[3]))[:, 0]
        bias = None if call.b_hn is None else call.b_hn[direction]
        after, cell = _step(call.cell, gates, h @ call.w_hh[direction].t(), bias, h, c)
        h = torch.where(alive, after, h)
        if c is not None and cell is not None:
            c = torch.where(alive, cell, c)
        place = at[:, None, None].expand(-1, 1, hidden)
        former = call.y[:, :, own].gather(1, place)
        call.y[:, :, own].scatter_(1, place, torch.where(alive[:, None], h[:, None], former))
    ran = (lengths > 0)[:, None]
    call.h_n[direction].copy_(torch.where(ran, h, call.h_n[direction]))
    if c is not None and call.c_n is not None:
        call.c_n[direction].copy_(torch.where(ran, c, call.c_n[direction]))


def _step(
    cell: str, gates: Tensor, product: Tensor, bias: Tensor | None, h: Tensor, c: Tensor | None
) -> tuple[Tensor, Tensor | None]:
    """One timestep of all rows: the new hidden state, and the new cell state of an LSTM."""
    if cell == "lstm":
        assert c is not None
        i, f, g, o = (gates + product).chunk(4, 1)
        c = f.sigmoid() * c + i.sigmoid() * g.tanh()
        return o.sigmoid() * c.tanh(), c
    if cell == "gru":
        assert bias is not None
        (r, z, n), (r_h, z_h, n_h) = gates.chunk(3, 1), product.chunk(3, 1)
        candidate = (n + (r + r_h).sigmoid() * (n_h + bias)).tanh()
        update = (z + z_h).sigmoid()
        return (1 - update) * candidate + update * h, None
    return ((gates + product).tanh() if cell == "rnn_tanh" else (gates + product).relu()), None
