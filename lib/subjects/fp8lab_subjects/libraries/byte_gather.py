"""All-gathers of FSDP2 that send bytes: gloo refuses FP8 types. By FSDP2's public set_custom_all_gather."""

import torch
import torch.distributed as dist
from torch.distributed.fsdp import FSDPModule


class ByteGather:
    """What FSDP2 calls in place of its own all-gather; tensors of one byte an element travel as uint8."""

    def allocate(self, size, *, dtype, device):
        return torch.empty(*size, dtype=dtype, device=device)

    def __call__(self, output_tensor, input_tensor, group, async_op=False):
        if input_tensor.element_size() == 1:
            output_tensor, input_tensor = output_tensor.view(torch.uint8), input_tensor.view(torch.uint8)
        return dist.all_gather_into_tensor(output_tensor, input_tensor, group=group, async_op=async_op)


def install(model):
    for module in model.modules():
        if isinstance(module, FSDPModule) and hasattr(module, "set_custom_all_gather"):
            module.set_custom_all_gather(ByteGather())
