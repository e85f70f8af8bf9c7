// The inputs for which a program was compiled, from the signature.json beside it. Compiled code does not check them:
// with other shapes it runs and returns wrong values, with other dtypes it ends the process.

#pragma once

#include <ATen/core/Tensor.h>

#include <regex>
#include <stdexcept>
#include <string>
#include <vector>

#include "../npy.h"

struct TensorType {
  std::string name;
  std::string dtype;  // float32, int64, ...
  std::vector<std::int64_t> shape;
};

struct Signature {
  std::vector<TensorType> inputs;   // in the order of the call
  std::vector<TensorType> weights;  // by the names of the state dict
};

inline std::vector<TensorType> read_types(const std::string& text) {
  static const std::regex entry(R"re("([^"]+)": \{"dtype": "(\w+)", "shape": \[([^\]]*)\])re");
  std::vector<TensorType> types;
  for (std::sregex_iterator found(text.begin(), text.end(), entry), end; found != end; ++found)
    types.push_back({(*found)[1], (*found)[2], read_numbers((*found)[3])});
  return types;
}

inline Signature read_signature(const std::string& path) {
  const std::string text = read_file(path);
  const auto weights = text.find("\"weights\": {");
  if (weights == std::string::npos) throw std::runtime_error(path + " is damaged");
  return {read_types(text.substr(0, weights)), read_types(text.substr(weights + 11))};
}

inline std::string dtype_name(const at::Tensor& tensor) {
  switch (tensor.scalar_type()) {
    case at::kFloat: return "float32";
    case at::kDouble: return "float64";
    case at::kHalf: return "float16";
    case at::kBFloat16: return "bfloat16";
    case at::kLong: return "int64";
    case at::kInt: return "int32";
    case at::kBool: return "bool";
    default: return c10::toString(tensor.scalar_type());
  }
}

inline void check(const TensorType& wanted, const at::Tensor& given) {
  if (dtype_name(given) == wanted.dtype && given.sizes() == at::IntArrayRef(wanted.shape)) return;
  std::string sizes, expected;
  for (auto size : given.sizes()) sizes += (sizes.empty() ? "" : ", ") + std::to_string(size);
  for (auto size : wanted.shape) expected += (expected.empty() ? "" : ", ") + std::to_string(size);
  throw std::runtime_error(
      "'" + wanted.name + "' is " + dtype_name(given) + " [" + sizes + "], but the program was compiled for " +
      wanted.dtype + " [" + expected + "]");
}
