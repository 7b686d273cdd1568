// Stands for torch/torch.h in CUDA code: tensors and operators, without modules, optimisers, pybind11 and the rest of the host's API.
#pragma once
#include <torch/types.h>
