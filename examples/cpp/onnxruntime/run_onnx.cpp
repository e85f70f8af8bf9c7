// Runs a self-contained .onnx (export_onnx.py writes one from an archive) in ONNX Runtime without Python.
//
//   run_onnxruntime MODEL.onnx ANSWERS NAME=FILE.npy...
//
// The inputs may be of any batch and length; the answers become ANSWERS/0.npy, ANSWERS/1.npy, ...

#include <onnxruntime_cxx_api.h>

#include <exception>
#include <iostream>
#include <string>
#include <vector>

#include "../npy.h"

const std::vector<std::pair<std::string, ONNXTensorElementDataType>> kDtypes = {
    {"f4", ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT},
    {"f8", ONNX_TENSOR_ELEMENT_DATA_TYPE_DOUBLE},
    {"i8", ONNX_TENSOR_ELEMENT_DATA_TYPE_INT64},
    {"i4", ONNX_TENSOR_ELEMENT_DATA_TYPE_INT32},
    {"b1", ONNX_TENSOR_ELEMENT_DATA_TYPE_BOOL}};

// A view of the array's memory, which must live as long as the value does.
Ort::Value to_value(Array& array) {
  static const auto memory = Ort::MemoryInfo::CreateCpu(OrtArenaAllocator, OrtMemTypeDefault);
  for (const auto& [name, dtype] : kDtypes)
    if (name == array.dtype)
      return Ort::Value::CreateTensor(
          memory, array.bytes.data(), array.bytes.size(), array.shape.data(), array.shape.size(), dtype);
  throw std::runtime_error("arrays of " + array.dtype + " are not read by this example");
}

void write(const std::string& path, const Ort::Value& answer) {
  const auto type = answer.GetTensorTypeAndShapeInfo();
  for (const auto& [name, dtype] : kDtypes)
    if (dtype == type.GetElementType()) return write_npy(path, name, type.GetShape(), answer.GetTensorRawData());
  throw std::runtime_error("answers of this dtype are not written by this example");
}

void run(const std::string& model, const std::string& answers, const Named& files) {
  const Ort::Env environment(ORT_LOGGING_LEVEL_ERROR, "run_onnxruntime");
  Ort::SessionOptions options;
  options.SetIntraOpNumThreads(1);
  Ort::Session session(environment, model.c_str(), options);
  const Ort::AllocatorWithDefaultOptions allocator;
  std::vector<std::string> input_names, output_names;
  for (std::size_t i = 0; i < session.GetInputCount(); ++i)
    input_names.emplace_back(session.GetInputNameAllocated(i, allocator).get());
  for (std::size_t i = 0; i < session.GetOutputCount(); ++i)
    output_names.emplace_back(session.GetOutputNameAllocated(i, allocator).get());
  std::vector<Array> arrays;
  for (const auto& name : input_names) arrays.push_back(read_npy(file_of(name, files)));
  std::vector<Ort::Value> inputs;
  for (auto& array : arrays) inputs.push_back(to_value(array));
  std::vector<const char*> given, wanted;
  for (const auto& name : input_names) given.push_back(name.c_str());
  for (const auto& name : output_names) wanted.push_back(name.c_str());
  const auto outputs =
      session.Run(Ort::RunOptions{}, given.data(), inputs.data(), inputs.size(), wanted.data(), wanted.size());
  for (std::size_t i = 0; i < outputs.size(); ++i) write(answers + "/" + std::to_string(i) + ".npy", outputs[i]);
}

int main(int count, char** words) {
  if (count < 4) {
    std::cerr << "usage: run_onnxruntime MODEL.onnx ANSWERS NAME=FILE.npy...\n";
    return 2;
  }
  try {
    run(words[1], words[2], read_named(words + 3, words + count));
  } catch (const std::exception& error) {
    std::cerr << "error: " << error.what() << "\n";
    return 1;
  }
}
