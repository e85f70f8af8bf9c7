// Weights by their names, from a .safetensors file.

#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>

#include <cstdint>
#include <cstring>
#include <map>
#include <regex>
#include <stdexcept>
#include <string>

#include "../npy.h"

using Weights = std::map<std::string, at::Tensor>;

// A length of 8 bytes, a header in JSON, and the tensors one after the other.
inline Weights read_weights(const std::string& path) {
  static const std::map<std::string, at::ScalarType> dtypes = {
      {"F64", at::kDouble}, {"F32", at::kFloat}, {"F16", at::kHalf},   {"BF16", at::kBFloat16}, {"I64", at::kLong},
      {"I32", at::kInt},    {"I16", at::kShort}, {"I8", at::kChar},    {"U8", at::kByte},       {"BOOL", at::kBool}};
  static const std::regex entry(
      R"re("([^"]+)"\s*:\s*\{\s*"dtype"\s*:\s*"(\w+)"\s*,\s*"shape"\s*:\s*\[([^\]]*)\]\s*,\s*)re"
      R"re("data_offsets"\s*:\s*\[([^\]]*)\])re");
  const std::string content = read_file(path);
  std::uint64_t length = 0;
  if (content.size() < 8) throw std::runtime_error(path + " is cut off");
  std::memcpy(&length, content.data(), 8);
  const std::string header = content.substr(8, length);
  Weights weights;
  for (std::sregex_iterator found(header.begin(), header.end(), entry), end; found != end; ++found) {
    const auto tensor = at::empty(read_numbers((*found)[3]), dtypes.at((*found)[2]));
    const auto range = read_numbers((*found)[4]);
    const auto bytes = static_cast<std::int64_t>(tensor.nbytes());
    const auto begin = static_cast<std::int64_t>(8 + length) + range.at(0);
    if (range.at(1) - range[0] != bytes || begin + bytes > static_cast<std::int64_t>(content.size()))
      throw std::runtime_error(path + " is damaged");
    std::memcpy(tensor.data_ptr(), content.data() + begin, bytes);
    weights[(*found)[1]] = tensor;
  }
  return weights;
}
