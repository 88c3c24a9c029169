"""Who holds the storages that are alive: parameters, gradients, optimizers, modules, variables of the program, and
autograd. The first owner wins, in that order."""

import collections
import functools
import os
import re
import sys
import sysconfig
import time
import types

import torch

from .. import fsdp_private

DEPTH, MOST_OBJECTS, MOST_SECONDS, MOST_NODES = 8, 40_000, 0.5, 50_000
OPTIMIZED = 1  # CO_OPTIMIZED: the code of a function, whose variables are copied when they are read
# Objects that hold no tensors of their own, or that everything refers to.
PASSED_OVER = (
    str, bytes, bytearray, int, float, complex, type(None), type, types.ModuleType, types.CodeType,
    torch.dtype, torch.device, torch.Size, torch.Generator, torch.UntypedStorage,
)
HERE = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
TORCH = os.path.dirname(os.path.abspath(torch.__file__))
INSTALLED = re.compile(r"[/\\](site|dist)-packages[/\\]")
# What wrappers put before the names of the modules inside them.
WRAPPED = re.compile(r"(?:^|(?<=\.))(?:_fsdp_wrapped_module|_checkpoint_wrapped_module|_orig_mod)(?:\.|$)")
FSDP_STATE = re.compile(r"__composable_api_state_key_[0-9a-f-]+")
STANDARD = sysconfig.get_path("stdlib")


@functools.cache
def folded(name):
    """blocks.12.attn -> blocks.*.attn; without the names of wrappers, and of FSDP2's state, which differ by run"""
    name = FSDP_STATE.sub("fsdp_state", WRAPPED.sub("", name))
    return re.sub(r"(^|\.)\d+(?=\.|$)", r"\1*", name)


@functools.cache
def is_programs_own(file):
    """True for a file of the program itself: neither Python's, nor a package's, nor this one's."""
    if not file or file.startswith("<"):
        return False
    file = os.path.abspath(file)
    return not (INSTALLED.search(file) or file.startswith((STANDARD + os.sep, TORCH + os.sep, HERE + os.sep)))


@functools.cache
def is_of_torch(file):
    """True for a file of PyTorch or of these instruments, whose variables are not the program's."""
    return os.path.abspath(file).startswith((HERE + os.sep, TORCH + os.sep))


def variables_of(frame):
    """The variables of a function that is running. Until Python 3.12 the copy stays with the frame, and would keep
    alive what the function has let go of, so it is emptied."""
    if not frame.f_code.co_flags & OPTIMIZED:
        return {}  # a module's, which are its globals
    held = frame.f_locals
    copy = dict(held)
    if isinstance(held, dict):
        held.clear()
    return copy


class Search:
    """Finds the owners of the entries of `storages` that are alive on one kind of device."""

    def __init__(self, storages, device):
        self.storages, self.device = storages, device
        self.unclaimed = storages.alive(device)
        self.claimed = {}  # identity of a storage -> (kind, label, entry)
        self.graphs = []  # (label, node of autograd)
        self.truncated = False
        self._seen = {}  # by identity; holds what was seen, so that no identity is used twice
        self._hidden = ""  # a graph that is alive and whose saved tensors cannot be looked at

    def claim(self, tensor, kind, label):
        for entry in self.storages.add(tensor):
            key = id(entry.reference())
            if entry.device == self.device and key not in self.claimed:
                self.unclaimed.pop(key, None)
                self.claimed[key] = (kind, label, entry)
                self.storages.move(entry, kind, label)

    def pass_over(self, things):
        self._seen.update((id(thing), thing) for thing in things)

    def follow(self, roots, kind):
        """Claims the tensors that can be reached from `roots`, (object, label), the nearest first, until every storage
        has an owner."""
        queue = collections.deque((thing, label, 0) for thing, label in roots)
        deadline, visited = time.perf_counter() + MOST_SECONDS, 0
        while queue and self.unclaimed:
            thing, label, depth = queue.popleft()
            if id(thing) in self._seen or issubclass(type(thing), PASSED_OVER):
                continue
            self._seen[id(thing)] = thing
            visited += 1
            if visited > MOST_OBJECTS or visited % 256 == 0 and time.perf_counter() > deadline:
                self.truncated = True
                return
            if issubclass(type(thing), torch.Tensor):
                self._tensor(thing, kind, label)
            if depth < DEPTH:
                queue.extend((inner, name, depth + 1) for inner, name in inside(thing, label))

    def _tensor(self, tensor, kind, label):
        self.claim(tensor.detach() if tensor.grad_fn is not None else tensor, kind, label)
        if tensor.grad_fn is not None:
            self.graphs.append((label, tensor.grad_fn))
        if tensor.is_leaf and tensor.grad is not None:
            self.claim(tensor.grad, "gradient", label)

    def follow_graphs(self, roots=()):
        """Claims what autograd holds behind the tensors of `roots` and those that were found."""
        seen, nodes = {}, 0  # holds the nodes, so that no identity is used twice
        for label, root in [*((None, one.grad_fn) for one in roots if one.grad_fn is not None), *self.graphs]:
            stack = [root]
            while stack and self.unclaimed and nodes < MOST_NODES:
                node = stack.pop()
                if node is None or id(node) in seen:
                    continue
                seen[id(node)] = node
                nodes += 1
                self._node(node, label)
                stack += [following for following, _ in node.next_functions]
        self.truncated |= nodes >= MOST_NODES

    def _node(self, node, label):
        behind = f" (graph of {label})" if label else ""
        for tensor in saved_tensors(node):
            if tensor is None:
                if label and (not self._hidden or "[*]" in label):
                    self._hidden = label
            else:
                self.claim(tensor, "context", f"{node.name()}: saved{behind}")
        own = getattr(node, "__dict__", None)
        if own:
            roots = [(value, f"{node.name()}.{name}{behind}") for name, value in own.items()]
            self.follow(roots, "context")

    def rest(self, buckets):
        """Gives what has no owner the kind `unexplained`, with what made it. `buckets`: the bytes of each bucket that
        DistributedDataParallel made before the first step; its reducer is C++."""
        buckets = collections.Counter(self.storages.rounded(size, self.device) for size in buckets)
        for key, entry in self.unclaimed.items():
            phase, module = entry.made
            kind, label = "unexplained", f"nothing that was found; {phase}{' by ' + module if module else ''}"
            if self._hidden and phase == "made in forward":
                kind, label = "context", f"saved tensors, perhaps of the graph of {self._hidden}; {label.partition('; ')[2]}"
            is_bucket = phase == "made in setup" and buckets[entry.size] > 0
            buckets[entry.size] -= is_bucket
            if is_bucket or module.endswith("DistributedDataParallel"):
                kind, label = "recipe_state", f"{module or 'DistributedDataParallel'}'s reducer (buckets of gradients)"
            self.claimed[key] = (kind, label, entry)
            self.storages.move(entry, kind, label)

    def by_label(self):
        """{(kind, label): bytes}"""
        out = collections.Counter()
        for kind, label, entry in self.claimed.values():
            out[kind, label] += entry.size
        return {key: size for key, size in out.items() if size}

    def by_kind(self):
        out = collections.Counter()
        for kind, _, entry in self.claimed.values():
            out[kind] += entry.size
        return dict(out)


def saved_tensors(node):
    """The tensors that an operation's node saved and backward has not freed. A tensor that a hook packed, as
    recomputation does, is left out: unpacking would compute it. None for a node that this PyTorch does not show without unpacking."""
    for name in dir(node):
        if not name.startswith("_raw_saved_"):
            continue
        try:
            raw = getattr(node, name)
            for one in raw if isinstance(raw, (tuple, list)) else (raw,):
                if not hasattr(one, "data"):
                    yield None
                elif getattr(one, "unpack_hook", None) is None and isinstance(one.data, torch.Tensor):
                    yield one.data
        except (RuntimeError, AttributeError):
            continue  # freed


CONTAINERS = (list, tuple, set, frozenset, collections.deque)


def inside(thing, label):
    """(object, label) of everything that a container, an object or a function holds. Calls no method of a subclass: it
    may do work, such as import what it names."""
    kind = type(thing)
    try:
        if issubclass(kind, dict):
            return [(value, f"{label}[{key!r}]" if type(key) is str and len(key) < 40 else f"{label}[*]")
                    for key, value in list(dict.items(thing))]
        if base := next((one for one in CONTAINERS if issubclass(kind, one)), None):
            return [(value, f"{label}[*]") for value in base.__iter__(thing)]
        if issubclass(kind, types.FunctionType):
            cells = zip(thing.__code__.co_freevars, thing.__closure__ or ())
            return [(cell.cell_contents, f"{label}: {name}") for name, cell in cells if _is_filled(cell)]
        if issubclass(kind, types.BuiltinFunctionType):  # such as the `append` of a list
            return [(thing.__self__, label)]
        if issubclass(kind, types.MethodType):
            return [(thing.__self__, label), (thing.__func__, label)]
        if issubclass(kind, functools.partial):
            return [(thing.args, label), (thing.keywords, label), (thing.func, label)]
        if issubclass(kind, types.GeneratorType):
            frame = thing.gi_frame
            return [(value, f"{label}: {name}") for name, value in variables_of(frame).items()] if frame else []
        held = object.__getattribute__(thing, "__dict__")
    except (AttributeError, RuntimeError, TypeError, ValueError):
        return _slots(thing, label)
    return [(value, f"{label}.{name}") for name, value in list(held.items())] + _slots(thing, label)


def _is_filled(cell):
    try:
        return cell.cell_contents is not None
    except ValueError:
        return False


def _slots(thing, label):
    out = []
    for kind in type(thing).__mro__:
        names = kind.__dict__.get("__slots__", ())
        for name in (names,) if isinstance(names, str) else names:
            descriptor = kind.__dict__.get(name)
            if isinstance(descriptor, types.MemberDescriptorType):
                try:
                    out.append((descriptor.__get__(thing), f"{label}.{name}"))
                except AttributeError:
                    continue
    return out


def program_roots():
    """(object, label) of the variables of functions that are running, and of the globals and classes of the program's
    own modules. First the program's own functions, then functions of packages."""
    own, others = [], []
    frame = sys._getframe(1)
    while frame is not None:
        file = frame.f_code.co_filename
        if not is_of_torch(file):
            roots = own if is_programs_own(file) else others
            where = f"{frame.f_code.co_name}(): "
            roots += [(value, where + name if name != "self" else type(value).__name__)
                      for name, value in variables_of(frame).items()]
        frame = frame.f_back
    for name, module in list(sys.modules.items()):
        file = getattr(module, "__file__", None) if type(module) is types.ModuleType else None
        if not file or not is_programs_own(file):
            continue
        where = f"{os.path.basename(file)}: "
        for variable, value in list(vars(module).items()):
            if variable.startswith("__"):
                continue
            own.append((value, where + variable))
            if issubclass(type(value), type) and value.__module__ == name:
                own += [(one, f"{where}{variable}.{key}") for key, one in list(vars(value).items())]
    return own + others


def claim_all(search, models, optimizers, roots_of_backward=()):
    """Finds every owner. `models`: (prefix of names, module)."""
    parameters = {}
    for prefix, model in models:
        for name, parameter in model.named_parameters(remove_duplicate=False):
            parameters.setdefault(id(parameter), (prefix + name, parameter))
    for optimizer in optimizers:
        for index, group in enumerate(optimizer.param_groups):
            for parameter in group["params"]:
                parameters.setdefault(id(parameter), (f"parameter of group {index}", parameter))
    for name, parameter in parameters.values():
        search.claim(parameter.detach(), "parameter", folded(name))
    lists = []  # such as the directions of LBFGS, and the factors of optimizers that precondition
    for optimizer in optimizers:
        for parameter, state in list(optimizer.state.items()):
            name = parameters.get(id(parameter), ("", None))[0]
            for key, value in state.items() if isinstance(state, dict) else ():
                label = folded(f"{name}.{key}" if name else key)
                if isinstance(value, torch.Tensor):
                    search.claim(value, "optimizer_state", label)
                elif isinstance(value, (list, tuple, dict)):
                    lists.append((value, label))
    search.follow(lists, "optimizer_state")
    for name, parameter in parameters.values():
        if parameter.grad is not None:
            search.claim(parameter.grad, "gradient", folded(name))
    for prefix, model in models:
        for name, tensor in fsdp_private.unsharded_tensors(model):
            search.claim(tensor, "unsharded", folded(prefix + name))
    search.pass_over(one for _, one in parameters.values())
    attributes, gathered = [], []
    for prefix, model in models:
        for name, module in model.named_modules():
            search.pass_over([module])
            for key, value in list(vars(module).items()):
                if key in ("_parameters", "_modules"):
                    continue
                if key == "_handle":  # FSDP's first form
                    gathered.append((value, folded(f"{prefix}{name}".strip("."))))
                    continue
                if key == "_buffers":
                    attributes += [(one, folded(f"{prefix}{name}.{which}".strip("."))) for which, one in value.items()]
                elif not key.endswith("_hooks"):
                    attributes.append((value, folded(f"{prefix}{name}.{key}".strip("."))))
    search.follow(gathered, "unsharded")
    search.follow(attributes, "recipe_state")
    for optimizer in optimizers:
        search.pass_over([optimizer.state, optimizer.param_groups])
        name = type(optimizer).__name__
        held = [(value, f"{name}.{key}") for key, value in vars(optimizer).items() if not key.endswith("_hooks")]
        search.follow(held, "optimizer_state")
        search.pass_over([optimizer])
    if search.unclaimed:
        search.follow(program_roots(), "variable")
    search.follow_graphs(roots_of_backward)
    search.rest(size for _, model in models for size in fsdp_private.bucket_sizes(model))
