// Runs one compiled bucket of an unpacked archive (backend: inductor) without Python.
//
//   run_inductor PROGRAM WEIGHTS.safetensors ANSWERS NAME=FILE.npy...
//
// PROGRAM is a folder such as programs/inductor/sequence/b4_t16. The weights are those that export_weights.py writes
// from the archive. The inputs, by their names in PROGRAM/signature.json, are padded to the bucket; the answers become
// ANSWERS/0.npy, ANSWERS/1.npy, ...

#include <ATen/ops/empty.h>
#include <c10/core/GradMode.h>
#include <torch/csrc/inductor/aoti_runner/model_container_runner_cpu.h>

#include <exception>
#include <iostream>
#include <string>
#include <vector>

#include "../npy.h"
#include "signature.h"
#include "weights.h"

using torch::inductor::AOTIModelContainerRunnerCpu;
using torch::inductor::TensorConstantMap;

const std::vector<std::pair<std::string, at::ScalarType>> kDtypes = {
    {"f4", at::kFloat}, {"f8", at::kDouble}, {"i8", at::kLong}, {"i4", at::kInt}, {"b1", at::kBool}};

at::Tensor to_tensor(const Array& array) {
  for (const auto& [name, dtype] : kDtypes)
    if (name == array.dtype) {
      const auto tensor = at::empty(array.shape, dtype);
      std::memcpy(tensor.data_ptr(), array.bytes.data(), array.bytes.size());
      return tensor;
    }
  throw std::runtime_error("arrays of " + array.dtype + " are not read by this example");
}

void write(const std::string& path, const at::Tensor& answer) {
  for (const auto& [name, dtype] : kDtypes)
    if (dtype == answer.scalar_type()) return write_npy(path, name, answer.sizes().vec(), answer.const_data_ptr());
  throw std::runtime_error("answers of this dtype are not written by this example");
}

// Points the library at the weights, which it does not copy: `weights` must live as long as `program`.
void give_weights(AOTIModelContainerRunnerCpu& program, const Signature& signature, Weights& weights) {
  for (const auto& wanted : signature.weights) {
    if (!weights.contains(wanted.name)) throw std::runtime_error("the weights have no '" + wanted.name + "'");
    check(wanted, weights.at(wanted.name));
  }
  TensorConstantMap shared;
  for (const auto& [name, original] : program.getConstantNamesToOriginalFQNs()) shared[name] = &weights.at(original);
  // In use at once, none missing, and the memory stays ours.
  program.update_constant_buffer(shared, false, true, true);
}

void run(const std::string& folder, const std::string& weights_file, const std::string& answers, const Named& files) {
  const Signature signature = read_signature(folder + "/signature.json");
  Weights weights = read_weights(weights_file);
  AOTIModelContainerRunnerCpu program(folder + "/program.so");
  give_weights(program, signature, weights);
  std::vector<at::Tensor> inputs;
  for (const auto& wanted : signature.inputs) {
    inputs.push_back(to_tensor(read_npy(file_of(wanted.name, files))));
    check(wanted, inputs.back());
  }
  const at::NoGradGuard no_gradients;
  const auto outputs = program.run(inputs);
  for (std::size_t i = 0; i < outputs.size(); ++i)
    write(answers + "/" + std::to_string(i) + ".npy", outputs[i].contiguous());
}

int main(int count, char** words) {
  if (count < 5) {
    std::cerr << "usage: run_inductor PROGRAM WEIGHTS.safetensors ANSWERS NAME=FILE.npy...\n";
    return 2;
  }
  try {
    run(words[1], words[2], words[3], read_named(words + 4, words + count));
  } catch (const std::exception& error) {
    std::cerr << "error: " << error.what() << "\n";
    return 1;
  }
}
