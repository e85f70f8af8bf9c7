// The two recurrent operators that compiled programs may call back, as Python's half of the package defines them
// (backends/masked.py) in the same calls of torch: GRUs and plain RNNs always, LSTMs with a projection or in float64.
// Linking this file is enough; a program without such calls does not need it.

#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/gru.h>
#include <ATen/ops/lstm.h>
#include <ATen/ops/rnn_relu.h>
#include <ATen/ops/rnn_tanh.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/where.h>
#include <ATen/ops/zeros_like.h>
#include <torch/library.h>

#include <functional>
#include <optional>
#include <string>
#include <tuple>
#include <vector>

namespace {

using at::Tensor;
using Tensors = std::vector<Tensor>;
using MaybeLengths = std::optional<Tensor>;

// One layer in one direction: x[T, B, F], its states [B, H] and its weights to y[T, B, H] and the states at the end.
using Layer = std::function<std::pair<Tensor, Tensors>(const Tensor&, const Tensors&, const Tensors&)>;

// Closes a gate, or opens it, completely.
constexpr double kShut = 1e4;

// The positions of the real timesteps of a padded batch; all tensors are time-major.
class Rows {
 public:
  Rows(const Tensor& x, const MaybeLengths& lengths) : lengths_(lengths) {
    if (!lengths) return;
    const auto steps = at::arange(x.size(1), lengths->options()).unsqueeze(1);
    padding_ = steps.ge(lengths->unsqueeze(0)).unsqueeze(2);
    mirror_ = (lengths->unsqueeze(0) - 1 - steps).clamp_min(0).unsqueeze(2);
    last_ = (*lengths - 1).unsqueeze(0).unsqueeze(2);
  }

  bool ragged() const { return lengths_.has_value(); }

  Tensor clean(const Tensor& x) const { return ragged() ? at::where(padding_, 0.0, x) : x; }

  Tensor reversed(const Tensor& x) const { return ragged() ? x.gather(0, mirror_.expand(x.sizes())) : x.flip(0); }

  Tensor last(const Tensor& y) const { return y.gather(0, last_.expand({1, y.size(1), y.size(2)}))[0]; }

  // A column that is 1 on padding, with weights that keep the cell state there as it is. The gates are i, f, g, o.
  std::pair<Tensor, Tensors> with_closing_column(const Tensor& x, Tensors weights) const {
    const auto hidden = weights[0].size(0) / 4;
    const auto column = at::cat(
        {weights[0].new_full({hidden, 1}, -kShut),
         weights[0].new_full({hidden, 1}, kShut),
         weights[0].new_zeros({2 * hidden, 1})});
    weights[0] = at::cat({weights[0], column}, 1);
    return {at::cat({x, padding_.to(x.scalar_type())}, 2), weights};
  }

 private:
  MaybeLengths lengths_;
  Tensor padding_, mirror_, last_;
};

std::pair<Tensor, Tensors> run_direction(
    const Layer& layer, Tensor x, const Rows& rows, const Tensors& states, Tensors weights, bool reverse, bool hold) {
  if (reverse) x = rows.clean(rows.reversed(x));
  if (hold && rows.ragged()) std::tie(x, weights) = rows.with_closing_column(x, weights);
  auto [y, final] = layer(x, states, weights);
  if (rows.ragged()) final[0] = rows.last(y);
  return {reverse ? rows.reversed(y) : y, final};
}

// All layers and directions: y[B, T, D*H], then each kind of state [L*D, B, H].
std::pair<Tensor, Tensors> run_layers(
    const Layer& layer, Tensor x, const MaybeLengths& lengths, const Tensors& states, at::TensorList weights,
    std::int64_t layers, bool bidirectional, bool hold) {
  const std::int64_t directions = bidirectional ? 2 : 1;
  const auto each = weights.size() / (layers * directions);
  const Rows rows(x, lengths);
  std::vector<Tensors> finals(states.size());
  x = rows.clean(x.transpose(0, 1));
  for (std::int64_t index = 0; index < layers; ++index) {
    Tensors outputs;
    for (std::int64_t direction = 0; direction < directions; ++direction) {
      const auto row = index * directions + direction;
      Tensors begins;
      for (const auto& state : states) begins.push_back(state[row]);
      const auto own = weights.slice(row * each, each).vec();
      const auto [y, final] = run_direction(layer, x, rows, begins, own, direction == 1, hold);
      outputs.push_back(y);
      for (std::size_t kind = 0; kind < final.size(); ++kind) finals[kind].push_back(final[kind]);
    }
    x = rows.clean(bidirectional ? at::cat(outputs, 2) : outputs[0]);
  }
  Tensors together;
  for (const auto& kind : finals) together.push_back(at::stack(kind));
  return {x.transpose(0, 1).contiguous(), together};
}

std::tuple<Tensor, Tensor, Tensor> lstm(
    const Tensor& x, const MaybeLengths& lengths, const Tensor& h_0, const Tensor& c_0, at::TensorList weights,
    bool bias, std::int64_t layers, bool bidirectional, bool need_cell) {
  const Layer layer = [bias](const Tensor& x, const Tensors& states, const Tensors& weights) {
    const Tensors begins = {states[0].unsqueeze(0), states[1].unsqueeze(0)};
    const auto [y, h_n, c_n] = at::lstm(x, begins, weights, bias, 1, 0.0, false, false, false);
    return std::pair<Tensor, Tensors>(y, {h_n[0], c_n[0]});
  };
  const auto [y, final] = run_layers(layer, x, lengths, {h_0, c_0}, weights, layers, bidirectional, need_cell);
  return {y, final[0], need_cell ? final[1] : at::zeros_like(final[1])};
}

std::tuple<Tensor, Tensor> rnn(
    const Tensor& x, const MaybeLengths& lengths, const Tensor& h_0, at::TensorList weights, c10::string_view cell,
    bool bias, std::int64_t layers, bool bidirectional) {
  const std::string name(cell);
  const Layer layer = [bias, name](const Tensor& x, const Tensors& states, const Tensors& weights) {
    const auto begin = states[0].unsqueeze(0);
    const auto [y, h_n] = name == "gru"      ? at::gru(x, begin, weights, bias, 1, 0.0, false, false, false)
                          : name == "rnn_tanh" ? at::rnn_tanh(x, begin, weights, bias, 1, 0.0, false, false, false)
                                             : at::rnn_relu(x, begin, weights, bias, 1, 0.0, false, false, false);
    return std::pair<Tensor, Tensors>(y, {h_n[0]});
  };
  const auto [y, final] = run_layers(layer, x, lengths, {h_0}, weights, layers, bidirectional, false);
  return {y, final[0]};
}

}  // namespace

TORCH_LIBRARY(neuron_lstm, library) {
  library.def(
      "lstm(Tensor x, Tensor? lengths, Tensor h_0, Tensor c_0, Tensor[] weights, bool bias, int layers, "
      "bool bidirectional, bool need_cell) -> (Tensor y, Tensor h_n, Tensor c_n)");
  library.def(
      "rnn(Tensor x, Tensor? lengths, Tensor h_0, Tensor[] weights, str cell, bool bias, int layers, "
      "bool bidirectional) -> (Tensor y, Tensor h_n)");
}

TORCH_LIBRARY_IMPL(neuron_lstm, CompositeExplicitAutograd, library) {
  library.impl("lstm", lstm);
  library.impl("rnn", rnn);
}
