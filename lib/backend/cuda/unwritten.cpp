#include "backend/cuda/kernels.h"
#include "core/check.h"

// Kernels still to be written.
namespace fp8lab::cuda {

void column_sum(const ColumnSumArgs&, ExecContext&) { fail("device 'cuda' has no kernel 'column_sum' yet"); }
void norm_forward(const NormForwardArgs&, ExecContext&) { fail("device 'cuda' has no kernel 'norm_forward' yet"); }
void norm_backward(const NormBackwardArgs&, ExecContext&) { fail("device 'cuda' has no kernel 'norm_backward' yet"); }
void activation_forward(const ActivationForwardArgs&, ExecContext&) { fail("device 'cuda' has no kernel 'activation_forward' yet"); }
void activation_backward(const ActivationBackwardArgs&, ExecContext&) { fail("device 'cuda' has no kernel 'activation_backward' yet"); }
void rope(const RopeArgs&, ExecContext&) { fail("device 'cuda' has no kernel 'rope' yet"); }
void sum_loss(const SumLossArgs&, ExecContext&) { fail("device 'cuda' has no kernel 'sum_loss' yet"); }
void mse_loss(const MseLossArgs&, ExecContext&) { fail("device 'cuda' has no kernel 'mse_loss' yet"); }
void mse_loss_backward(const MseLossBackwardArgs&, ExecContext&) { fail("device 'cuda' has no kernel 'mse_loss_backward' yet"); }

}  // namespace fp8lab::cuda
