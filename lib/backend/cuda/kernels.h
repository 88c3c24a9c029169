#pragma once

#include "backend/kernels.h"

// The GPU's kernels, one file per family in this folder; cuda_device.cpp lists them in the device's table. Each
// launches on the context's stream and returns; each is deterministic. Bitwise the `cpu` kernel unless its file says
// why not.
namespace fp8lab::cuda {

void fill(const FillArgs& args, ExecContext& context);
void random(const RandomArgs& args, ExecContext& context);
void cast(const CastArgs& args, ExecContext& context);
void add(const AddArgs& args, ExecContext& context);
void scale(const ScaleArgs& args, ExecContext& context);
void column_sum(const ColumnSumArgs& args, ExecContext& context);
void amax(const AmaxArgs& args, ExecContext& context);
/// The amax of a kernel's result, in a pass of its own, at `place` where the kernel's arguments give one.
void measure(const MatrixView& result, float* place, ExecContext& context);
void quantize(const QuantizeArgs& args, ExecContext& context);
void quantize_list(const QuantizeListArgs& args, ExecContext& context);
void dequantize(const DequantizeArgs& args, ExecContext& context);
void delayed_update(const DelayedUpdateArgs& args, ExecContext& context);
void gemm(const GemmArgs& args, ExecContext& context);
void norm_forward(const NormForwardArgs& args, ExecContext& context);
void norm_backward(const NormBackwardArgs& args, ExecContext& context);
void activation_forward(const ActivationForwardArgs& args, ExecContext& context);
void activation_backward(const ActivationBackwardArgs& args, ExecContext& context);
void norm_quantize(const NormQuantizeArgs& args, ExecContext& context);
void activation_quantize(const ActivationQuantizeArgs& args, ExecContext& context);
void gemm_quantize(const GemmQuantizeArgs& args, ExecContext& context);
void rope(const RopeArgs& args, ExecContext& context);
void dropout(const DropoutArgs& args, ExecContext& context);
void attention_forward(const AttentionForwardArgs& args, ExecContext& context);
void attention_backward(const AttentionBackwardArgs& args, ExecContext& context);
void sum_loss(const SumLossArgs& args, ExecContext& context);
void mse_loss(const MseLossArgs& args, ExecContext& context);
void mse_loss_backward(const MseLossBackwardArgs& args, ExecContext& context);
void square_sum(const SquareSumArgs& args, ExecContext& context);
void clip_coefficient(const ClipCoefficientArgs& args, ExecContext& context);
void adam(const AdamArgs& args, ExecContext& context);
void list_op(const ListOpArgs& args, ExecContext& context);

}  // namespace fp8lab::cuda
