// Arrays in numpy's .npy files (version 1.0, C order), which hold the inputs and the answers of the examples.

#pragma once

#include <cstdint>
#include <cstring>
#include <fstream>
#include <iterator>
#include <map>
#include <regex>
#include <stdexcept>
#include <string>
#include <vector>

struct Array {
  std::string dtype;  // as numpy writes it, without the byte order: f4, f8, i8, i4, b1
  std::vector<std::int64_t> shape;
  std::vector<char> bytes;

  std::int64_t size() const {
    std::int64_t numbers = 1;
    for (auto length : shape) numbers *= length;
    return numbers;
  }
};

inline std::string read_file(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  if (!file) throw std::runtime_error("cannot read " + path);
  return {std::istreambuf_iterator<char>(file), {}};
}

// [4, 16, 6]: a shape as Python and JSON write it.
inline std::vector<std::int64_t> read_numbers(const std::string& text) {
  static const std::regex number("[0-9]+");
  std::vector<std::int64_t> numbers;
  for (std::sregex_iterator found(text.begin(), text.end(), number), end; found != end; ++found)
    numbers.push_back(std::stoll(found->str()));
  return numbers;
}

// NAME=FILE.npy, the form of the examples' inputs.
using Named = std::map<std::string, std::string>;

inline Named read_named(char** first, char** end) {
  Named files;
  for (; first != end; ++first) {
    const std::string word = *first;
    const auto sign = word.find('=');
    if (sign == std::string::npos) throw std::runtime_error(word + ": expected NAME=FILE.npy");
    files[word.substr(0, sign)] = word.substr(sign + 1);
  }
  return files;
}

inline const std::string& file_of(const std::string& name, const Named& files) {
  const auto found = files.find(name);
  if (found == files.end()) throw std::runtime_error("the program takes '" + name + "': give " + name + "=FILE.npy");
  return found->second;
}

inline Array read_npy(const std::string& path) {
  const std::string content = read_file(path);
  std::uint16_t length = 0;
  if (content.size() < 10 || content.compare(0, 7, "\x93NUMPY\x01") != 0)
    throw std::runtime_error(path + " is no .npy file of version 1.0: write it with numpy.save");
  std::memcpy(&length, content.data() + 8, 2);
  const std::string header = content.substr(10, length);
  static const std::regex described("'descr': '[<|](\\w+)'.*'fortran_order': False.*'shape': \\(([^)]*)\\)");
  std::smatch found;
  if (!std::regex_search(header, found, described))
    throw std::runtime_error(path + " is not little-endian in C order: write numpy.ascontiguousarray(...)");
  const std::string data = content.substr(10 + length);
  Array array{found[1], read_numbers(found[2]), {data.begin(), data.end()}};
  if (array.size() * (array.dtype.back() - '0') != static_cast<std::int64_t>(data.size()))
    throw std::runtime_error(path + " is cut off");
  return array;
}

inline void write_npy(
    const std::string& path, const std::string& dtype, const std::vector<std::int64_t>& shape, const void* data) {
  std::string sizes;
  std::int64_t bytes = dtype.back() - '0';
  for (auto length : shape) {
    sizes += std::to_string(length) + ",";
    bytes *= length;
  }
  const std::string order = dtype.back() == '1' ? "|" : "<";
  std::string header = "{'descr': '" + order + dtype + "', 'fortran_order': False, 'shape': (" + sizes + "), }";
  header.append(64 - (10 + header.size() + 1) % 64, ' ');
  header += '\n';
  const auto length = static_cast<std::uint16_t>(header.size());
  std::ofstream file(path, std::ios::binary);
  file.write("\x93NUMPY\x01\x00", 8);
  file.write(reinterpret_cast<const char*>(&length), 2);
  file << header;
  file.write(static_cast<const char*>(data), bytes);
  if (!file.flush()) throw std::runtime_error("cannot write " + path);
}
