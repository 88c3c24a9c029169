"""The buffers of FSDP2 and DistributedDataParallel, which they do not show: private attributes, looked up with care."""


def state_of(module):
    """FSDP2's state of a module that fully_shard() was called with, or None."""
    return getattr(module, "_get_fsdp_state", lambda: None)()


def reshards(state):
    """False if FSDP2 keeps what a module gathered in forward until backward."""
    group = getattr(state, "_fsdp_param_group", None)
    return getattr(group, "post_forward_mesh_info", True) is not None


def unsharded_tensors(model):
    """(layer's name, tensor) of all gathered parameters and their gradients. Absent attributes are passed over, so that
    their bytes show as unexplained."""
    for name, module in model.named_modules():
        state = state_of(module)
        groups = getattr(state, "_fsdp_param_groups", None) or [getattr(state, "_fsdp_param_group", None)]
        for group in groups:
            for parameter in getattr(group, "fsdp_params", ()):
                for tensor in getattr(parameter, "all_gather_outputs", None) or ():
                    yield name, tensor
                unsharded = getattr(parameter, "_unsharded_param", None)
                if unsharded is not None:
                    yield name, unsharded
                    if unsharded.grad is not None:
                        yield name, unsharded.grad
                inner = getattr(parameter, "_unsharded_inner_tensors", None) or ()
                for tensor in inner:
                    yield name, tensor


def bucket_sizes(model):
    """The bytes of each bucket in which DistributedDataParallel reduces gradients."""
    for module in model.modules():
        figures = getattr(module, "_get_ddp_logging_data", dict)()
        for key in ("bucket_sizes", "rebuilt_bucket_sizes"):
            yield from (int(one) for one in str(figures.get(key, "")).split(",") if one.strip())


def bucket_bytes(called):
    """Bytes of all buckets of DistributedDataParallel; 0 of another module. The second step makes other buckets, with
    the same sum."""
    sizes = getattr(called, "_get_ddp_logging_data", dict)().get("bucket_sizes", "")
    return sum(int(one) for one in str(sizes).split(",") if one.strip())
