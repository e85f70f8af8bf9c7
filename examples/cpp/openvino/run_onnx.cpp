// Runs a self-contained .onnx (export_onnx.py writes one from an archive of backend: openvino) without Python.
//
//   run_openvino MODEL.onnx ANSWERS NAME=FILE.npy...
//
// The inputs may be of any batch and length; the answers become ANSWERS/0.npy, ANSWERS/1.npy, ...

#include <exception>
#include <iostream>
#include <openvino/openvino.hpp>
#include <string>
#include <vector>

#include "../npy.h"

const std::vector<std::pair<std::string, ov::element::Type>> kDtypes = {
    {"f4", ov::element::f32},
    {"f8", ov::element::f64},
    {"i8", ov::element::i64},
    {"i4", ov::element::i32},
    {"b1", ov::element::boolean}};

ov::Tensor to_tensor(const Array& array) {
  for (const auto& [name, dtype] : kDtypes)
    if (name == array.dtype) {
      ov::Tensor tensor(dtype, ov::Shape(array.shape.begin(), array.shape.end()));
      std::memcpy(tensor.data(), array.bytes.data(), array.bytes.size());
      return tensor;
    }
  throw std::runtime_error("arrays of " + array.dtype + " are not read by this example");
}

void write(const std::string& path, const ov::Tensor& answer) {
  const auto shape = answer.get_shape();
  for (const auto& [name, dtype] : kDtypes)
    if (dtype == answer.get_element_type())
      return write_npy(path, name, {shape.begin(), shape.end()}, std::as_const(answer).data());
  throw std::runtime_error("answers of this dtype are not written by this example");
}

void run(const std::string& model, const std::string& answers, const Named& files) {
  ov::Core core;
  auto compiled = core.compile_model(
      core.read_model(model),
      "CPU",
      ov::hint::inference_precision(ov::element::f32),
      ov::hint::performance_mode(ov::hint::PerformanceMode::LATENCY),
      ov::inference_num_threads(1),
      ov::num_streams(1));
  auto request = compiled.create_infer_request();
  for (const auto& input : compiled.inputs())
    request.set_tensor(input, to_tensor(read_npy(file_of(input.get_any_name(), files))));
  request.infer();
  for (std::size_t i = 0; i < compiled.outputs().size(); ++i)
    write(answers + "/" + std::to_string(i) + ".npy", request.get_output_tensor(i));
}

int main(int count, char** words) {
  if (count < 4) {
    std::cerr << "usage: run_openvino MODEL.onnx ANSWERS NAME=FILE.npy...\n";
    return 2;
  }
  try {
    run(words[1], words[2], read_named(words + 3, words + count));
  } catch (const std::exception& error) {
    std::cerr << "error: " << error.what() << "\n";
    return 1;
  }
}
