"""A watched process: which model trains, when its steps end, and which instruments hear of it."""

import atexit
import os
import sys
import threading
import time
import weakref

import torch
from torch.compiler import is_compiling
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

from . import report, words
from .attaching import steps_of
from .documents import ALWAYS_WRITTEN, Document
from .host import Host
from .memory import Memory
from .owners import WRAPPED, folded
from .storages import Storages, seconds_of_crossing
from .trained_model import Observed, trained_model
from .values import Values
from .weights import Weights
from .wire import Wire

DEFAULT = (Memory, Wire, Host, Weights)
INSTRUMENTS = {one.name: one for one in (*DEFAULT, Values)}


class Session:
    def __init__(self, folder, measure, steps):
        self.names = [name for name in (measure or ",".join(one.name for one in DEFAULT)).split(",") if name]
        self.first, self.last = steps_of(steps)
        self.phase, self.collective = "setup", ""
        self.device = "cpu"
        self.stack, self.thread, self.busy, self.backward_depth = [], None, False, 0
        self._group = None
        self._models, self._optimizers, self._given = [], [], (None, None)
        self._optimizer_names = []
        self._names, self._parameter_names = {}, {}
        self.spent, self.failed, self.model_text = {}, {}, ""
        self.observed, self.trained = Observed(), None
        self.phase_since = time.monotonic()
        self.storages = Storages(self.place, [], "memory" in self.names)
        self._begin()
        self.document = Document(folder, self)
        self._handles = []

    def _begin(self):
        """Nothing has been measured yet."""
        self.step, self.steps_ended = 1, 0
        self.step_seconds, self.begun = [], None
        self.instruments = [INSTRUMENTS[name](self) for name in self.names]
        self.storages.observers = [self._guarded(one) for one in self.instruments if hasattr(one, "observe")]

    def _guarded(self, instrument):
        """`observe` of an instrument, whose errors do not reach the program."""

        def observe(*arguments):
            if instrument.name in self.failed:
                return
            try:
                instrument.observe(*arguments)
            except Exception as error:
                self.fail(instrument, error, "observe")

        return observe

    def fail(self, instrument, error, event):
        why = f"{type(error).__name__}: {error} (step {self.step}, {event})"
        self.failed[instrument.name] = why
        if hasattr(instrument, "ends_incomplete"):
            instrument.ends_incomplete(why)

    # What instruments ask.

    def place(self):
        return self.phase, self.step, self.stack[-1][1] if self.stack else ""

    def models(self):
        """(prefix of names, module) of the models that are alive."""
        alive = [(label, one()) for label, one in self._models if one() is not None]
        return [(f"{label}." if len(alive) > 1 else "", model) for label, model in alive]

    def optimizers(self):
        return [one() for one in self._optimizers if one() is not None]

    def parameters_of(self, optimizer):
        for number, group in enumerate(optimizer.param_groups):
            for index, parameter in enumerate(group["params"]):
                yield self._parameter_names.get(id(parameter), f"parameter {index} of group {number}"), parameter, group

    def name_of(self, module):
        return self._names.get(id(module), type(module).__name__)

    def group(self):
        """(rank, number of ranks): of the process group while it lives, and afterwards what they were."""
        distributed = torch.distributed
        if distributed.is_available() and distributed.is_initialized():
            self._group = distributed.get_rank(), distributed.get_world_size()
        return self._group or (int(os.environ.get("RANK") or 0), int(os.environ.get("WORLD_SIZE") or 1))

    def rank(self):
        return self.group()[0]

    def world(self):
        return self.group()[1]

    def seconds(self):
        """Seconds of the median step; None before two steps have ended."""
        later = sorted(self.step_seconds[1:])
        return later[len(later) // 2] if later else None

    def overhead(self):
        """{instrument: seconds in a step}, from their own clocks; a call of the dispatch mode is counted as measured
        before the program began."""
        steps = max(1, self.steps_ended)
        out = {name: spent / steps for name, spent in self.spent.items()}
        if self.storages.calls:
            mode = self.storages.spent + self.storages.calls * self.crossing
            owner = next(name for name in ("memory", "traffic", "values") if name in self.names)
            out[owner] = out.get(owner, 0.0) + mode / steps
        return out

    # Attaching.

    def start(self):
        self.crossing = 0.0
        if "memory" in self.names or self.storages.observers:  # memory needs the registered storages
            self.crossing = seconds_of_crossing()
            self.storages.__enter__()
            self.storages.off = False
        keywords = any(hasattr(INSTRUMENTS[name], "got_keywords") for name in self.names)
        self._handles = [
            register_module_forward_pre_hook(self._enter),
            *([register_module_forward_hook(self._returns, with_kwargs=True)] if keywords else []),
            register_module_forward_hook(self._leave, always_call=True),
            register_optimizer_step_pre_hook(self._before_update),
            register_optimizer_step_post_hook(self._after_update),
        ]
        self._watch_backward()
        atexit.register(self._ended)
        os.register_at_fork(after_in_child=self._forked)
        hook = sys.excepthook
        sys.excepthook = lambda *error: self._crashed(hook, error)
        self.document.start()

    def name(self, model, optimizer):
        """What the program itself states of its model and optimizer. Steps of other optimizers so far were none."""
        if model is None and optimizer is None:
            return
        if optimizer is not None and self.steps_ended:
            for one in self.instruments:
                if hasattr(one, "discard"):
                    one.discard()
            self._begin()
        self._given = (weakref.ref(model) if model is not None else None,
                       weakref.ref(optimizer) if optimizer is not None else None)
        if model is not None:
            self._models = []
            self._add_model(model)
        if optimizer is not None:
            self._optimizers = [weakref.ref(optimizer)]

    def guesses(self):
        """What the session guessed because the program did not name it, in words."""
        out = []
        if self._given[0] is None and self._models:
            out.append(f"model: {', '.join(label for label, _ in self._models)} (the outermost module called)")
        if self._given[1] is None and self._optimizer_names:
            names = self._optimizer_names
            more = f", the first of {len(names)} optimizers" if len(names) > 1 else ""
            out.append(f"a step ends with a step of {names[0]}{more}")
        return out

    def _watch_backward(self):
        autograd, session = torch.autograd, self
        original = autograd.backward

        def backward(tensors, *args, **kwargs):
            roots = [tensors] if isinstance(tensors, torch.Tensor) else list(tensors)
            session._backward_begins(roots)
            try:
                return original(tensors, *args, **kwargs)
            finally:
                session._backward_ends(roots)

        backward.__doc__, backward.__name__, backward.__wrapped__ = original.__doc__, original.__name__, original
        autograd.backward = backward

    # Events. What torch.compile traces has none: it would trace the hooks too, which change objects of their own.

    def _is_measured(self):
        return self.step >= self.first and (self.last is None or self.step <= self.last)

    def tell(self, event, *arguments):
        """Calls the instruments; none of their operations is counted, and their errors do not reach the program."""
        if self.busy:
            return
        self.busy, was_off, self.storages.off = True, self.storages.off, True
        try:
            for instrument in self.instruments:
                handler = getattr(instrument, event, None)
                if handler is None or instrument.name in self.failed:
                    continue
                begin = time.perf_counter()
                try:
                    with torch.no_grad():
                        handler(*arguments)
                except Exception as error:
                    self.fail(instrument, error, event)
                self.spent[instrument.name] = self.spent.get(instrument.name, 0.0) + time.perf_counter() - begin
        finally:
            self.busy, self.storages.off = False, was_off

    def _set_phase(self, phase):
        if phase != self.phase:
            self.phase, self.phase_since = phase, time.monotonic()

    def _enter(self, module, inputs):
        if is_compiling():
            return
        if self.thread is None:
            self.thread = threading.get_ident()
        if self.busy or threading.get_ident() != self.thread:
            return
        outermost = not self.stack and self.phase != "backward"
        if outermost:
            self._outermost(module)
            self.observed.model_begins(inputs)
        self.observed.enters(module, inputs, self.device)
        self.observed.recomputes |= self.phase == "backward"
        self.stack.append((module, folded(self.name_of(module))))
        if self._is_measured():
            self.tell("enter", module)
            if outermost:
                self.tell("called", module, inputs)

    def _returns(self, module, _, keywords, __):
        """Called before _leave(). The global hooks before a call do not see what a module gets by keyword."""
        if is_compiling() or self.busy or threading.get_ident() != self.thread or not keywords:
            return
        if len(self.stack) == 1 and self.stack[0][0] is module and self._is_measured():
            self.tell("got_keywords", module, keywords)

    def _leave(self, module, _, output):
        if is_compiling() or self.busy or threading.get_ident() != self.thread:
            return
        if self._is_measured():
            self.tell("leave", module)
            self.tell("returned", module, output)
        while self.stack:  # a module that raised an error may not have left
            if self.stack.pop()[0] is module:
                break

    def _outermost(self, module):
        if self.begun is None:
            self.begun = time.perf_counter()
        if next(module.parameters(), None) is None:
            return
        self._set_phase("forward")
        if self._given[0] is None and not any(module in model.modules() for _, model in self.models()):
            self._add_model(module)

    def _add_model(self, model):
        for label, one in list(self._models):
            if one() is not None and any(inner is one() for inner in model.modules()):
                self._models.remove((label, one))  # it is called by itself, too
        labels = [label for label, _ in self._models]
        label = type(model).__name__
        self._models.append((label if label not in labels else f"{label} {len(labels) + 1}", weakref.ref(model)))
        self._name_all()
        devices = {parameter.device.type for parameter in model.parameters()}
        self.device = "cuda" if "cuda" in devices else self.device
        self.tell("model_found")

    def _name_all(self):
        self._names, self._parameter_names = {}, {}  # a second model gives the first one's names a prefix
        for prefix, model in self.models():
            for name, module in model.named_modules():
                self._names[id(module)] = prefix + WRAPPED.sub("", name) or type(module).__name__
            for name, parameter in model.named_parameters(remove_duplicate=False):
                self._parameter_names.setdefault(id(parameter), prefix + WRAPPED.sub("", name))

    def _backward_begins(self, roots):
        self.backward_depth += 1
        if self.backward_depth > 1:
            return  # recomputation of a checkpoint, inside backward
        self.observed.backward_begins()
        self._set_phase("backward")
        if self._is_measured():
            self.tell("backward_begins", roots)

    def _backward_ends(self, roots):
        self.backward_depth -= 1
        if self.backward_depth > 0:
            return
        if self._is_measured():
            self.tell("backward_ends", roots)
        self._set_phase(words.BETWEEN)

    def _before_update(self, optimizer, *_):
        if self.begun is None:
            self.begun = time.perf_counter()
        self._set_phase("optimizer")
        if self._given[1] is None and all(one() is not optimizer for one in self._optimizers):
            self._optimizers.append(weakref.ref(optimizer))
            self._optimizer_names.append(type(optimizer).__name__)
            self._name_all()
        if self._is_measured():
            self.tell("before_update", optimizer)

    def _after_update(self, optimizer, *_):
        if not self._optimizers or self._optimizers[0]() is not optimizer:
            return
        now = time.perf_counter()
        self.group()  # the program destroys it before it ends
        self.stack.clear()
        self.observed.step_ends()
        if self._is_measured():
            self.tell("step_ends")
            self.steps_ended += 1
            self.step_seconds.append(now - self.begun)
            self._write_results()
        self.begun = time.perf_counter()
        self._set_phase(words.AFTER_STEP)
        if self.last is not None and self.step >= self.last:
            self._detach()
        self.step += 1

    def _write_results(self):
        try:
            self.model_text = report.model(self)
            if self.steps_ended <= ALWAYS_WRITTEN:
                self.trained = trained_model(self)
            self.document.step_ended()
        except Exception as error:  # such as a full disk; the optimizer's step runs on
            self.failed["results"] = f"{type(error).__name__}: {error} (step {self.step})"

    # The end.

    def _detach(self):
        """After the last step that is measured the program runs without instruments."""
        for handle in self._handles:
            handle.remove()
        self._handles, self.storages.off = [], True
        for instrument in self.instruments:
            if hasattr(instrument, "close"):
                instrument.close()

    def _forked(self):
        """A child, such as a process that reads data, measures nothing."""
        self.storages.off = True
        self.document.disown()
        self.busy = True

    def _crashed(self, hook, error):
        try:
            self.document.ended(f"{error[0].__name__}: {error[1]}".splitlines()[0][:300])
        finally:
            hook(*error)

    def _ended(self):
        self.document.ended(None)

    def describe(self):
        """What the process has measured so far: the content of its document."""
        return report.describe(self)
