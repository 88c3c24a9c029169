#pragma once

#include "fsdp/sharding.h"
#include "harness/cell/cell.h"
#include "nn/model.h"
#include "optim/adam.h"
#include "optim/foreach_optimizers.h"
#include "optim/learning_rate.h"

// What a cell requires from the library, in the library's terms.
namespace fp8lab {

/// The layer configuration of a cell's model, with defaults filled in.
LayerConfig layer_config(const ModelConfig& model, bool fp8_attention);

ModelOptions model_options(const CellConfig& cell);
ShardingOptions sharding_options(const CellConfig& cell);

/// The type of parameters, activations and gradients.
DType training_dtype(const CellConfig& cell);

LearningRate learning_rate(const TrainingConfig& training);

/// The options of the first step. `shards`: the ranks over which a parameter is sharded, or null.
AdamOptions adam_options(const TrainingConfig& training, ProcessGroup* shards);
SgdOptions sgd_options(const TrainingConfig& training);

}  // namespace fp8lab
