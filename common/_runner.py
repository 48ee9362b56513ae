"""Running a ``.pte`` from Python without ExecuTorch's traps."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.utils import _pytree as pytree

from common._errors import PteExecutionError, PteFormatError, PteLoadError
from common._isolated import check_isolated
from common._pte_file import (
    ScalarSpec,
    TensorSpec,
    find_plan,
    operator_names,
    output_structure,
    read_description,
    read_pte,
    value_spec,
    verify_checksum,
)
from common._runtime import (
    LOCK,
    LOG,
    available_backends,
    check_consistency,
    empty_log,
    explain,
    log_taken,
    missing_backends,
    missing_operators,
    runtime,
)
from common._threads import ALIVE


class PteRunner:
    """A loaded ``.pte`` that is called like a module: ``runner(x)``.

    The raw API returns wrong numbers for a tensor in another memory layout, crashes when the
    program's bytes are freed, and reports most mistakes as a hex code. This class converts the
    layout, keeps everything alive, and checks each input before C++ sees it.

    Args:
        path_or_bytes: path of a ``.pte``, or its bytes. A file is read once and not kept open;
            when a ``.sha256`` file lies beside it (see ``save_pte``), it is compared.
        method: the method to run.
        isolated_check: first load the program and run it on zeros in a child process, and refuse
            it when that process ends or the run fails: damage inside a delegate can end a process
            in a way that no exception tells of. Once in the life of a process for each program.
            On Linux a fork does it, which takes 25 to 250 ms, the more the larger this process
            is; elsewhere a worker, 3 to 10 s for the first program and some ms for each further
            one. Each takes the time of loading and of two runs besides.

    Raises:
        TypeError: neither a path nor bytes.
        FileNotFoundError, IsADirectoryError: the path leads to no file.
        PteFormatError: no whole ExecuTorch program; the message says what it is instead. Weights
            of XNNPACK are compared with the checksums in the file, at about 1 ms a MB.
        PteLoadError: a backend or a kernel is missing, or ``isolated_check`` came to no result;
            the message says which.
        ValueError: the program has no such method.

    Note:
        A NaN that goes into an int8 delegate comes out as an ordinary number.
        ExecuTorch holds the GIL while it runs: threads do not make it faster.

    Example:
        >>> from common.executorch_utils import lower_to_xnnpack
        >>> model = torch.nn.Linear(4, 2).eval()
        >>> _, pte = lower_to_xnnpack(model, (torch.zeros(1, 4),))
        >>> runner = PteRunner(pte)
        >>> x = torch.ones(1, 4)
        >>> torch.allclose(runner(x), model(x), atol=1e-6)
        True
        >>> runner(torch.ones(2, 4))
        Traceback (most recent call last):
        ...
        ValueError: input 0: expected shape (1, 4), got (2, 4): dimension 0 is 2, not 1
    """

    def __init__(
        self,
        path_or_bytes: str | os.PathLike[str] | bytes | bytearray | memoryview,
        *,
        method: str = "forward",
        isolated_check: bool = False,
    ) -> None:
        data = read_pte(path_or_bytes)
        if isinstance(path_or_bytes, (str, os.PathLike)):
            verify_checksum(path_or_bytes, data)
        program = read_description(data)
        if isolated_check:  # nothing in C++ sees the program before
            _check_loadable(find_plan(program, method))
            check_isolated(data, program, method)
        check_consistency(data)
        plan = find_plan(program, method)
        _check_loadable(plan)
        try:
            self.inputs = tuple(value_spec(plan.values[i].val) for i in plan.inputs)
            self.outputs = tuple(value_spec(plan.values[i].val) for i in plan.outputs)
        except (IndexError, KeyError, AttributeError) as error:
            raise PteFormatError(f"the program is damaged: {error!r}") from error
        self.delegates = tuple(d.id for d in plan.delegates)
        self._method_name = method
        self._structure = output_structure(plan)
        # ExecuTorch copies neither: the Method points into the Program, the Program into the bytes.
        self._data = data
        ALIVE.add(self)
        self.reset()
        self._checks = tuple(_matcher(spec) for spec in self.inputs)

    def reset(self) -> None:
        """Load the program anew: buffers that a model changes while it runs start again."""
        with log_taken():
            try:
                program = self._load_program()
                method = program.load_method(self._method_name)
            except RuntimeError as error:
                raise PteLoadError(
                    f"the program cannot be loaded: {explain(error, LOG.getvalue())}"
                ) from None
        self._program, self._method = program, method
        self._execute: Callable[[Sequence[Any]], Sequence[Any]] = method.execute

    def _load_program(self) -> Any:
        return runtime().load_program(self._data)

    def __call__(self, *inputs: Any) -> Any:
        """Run the method.

        Args:
            inputs: one value for each input of the program, in its order. A tensor may have any
                memory layout and may require a gradient.

        Returns:
            The output tensor; several outputs come as a tuple, or as the dicts and lists that
            the model's ``forward`` returns. They are the caller's own and are not overwritten by
            the next call.

        Raises:
            TypeError: an input is no dense tensor on the CPU, or has another dtype.
            ValueError: the number of inputs, a rank or a dimension does not fit.
            PteExecutionError: the program failed although its inputs fit.
        """
        checks = self._checks
        args: Sequence[Any]
        if len(inputs) == len(checks) == 1 and checks[0](inputs[0]):
            args = inputs  # the usual case first: each step here is a percent of a small program
        elif len(inputs) != len(checks):
            raise ValueError(f"expected {self._signature()}, got {len(inputs)}")
        else:
            args = [
                value if fits(value) else self._prepare(i, value)
                for i, (fits, value) in enumerate(zip(checks, inputs, strict=True))
            ]
        # As log_taken() does, written out because it is faster.
        with LOCK:
            before, sys.stderr = sys.stderr, LOG
            try:
                outputs = self._execute(args)
            except RuntimeError as error:
                raise PteExecutionError(
                    f"the program failed while it ran: {explain(error, LOG.getvalue())}"
                ) from None
            finally:
                sys.stderr = before
                if LOG.tell():
                    empty_log()
        if self._structure is not None:
            return pytree.tree_unflatten(outputs, self._structure)
        return outputs[0] if len(outputs) == 1 else tuple(outputs)

    def __repr__(self) -> str:
        outputs = "; ".join(map(str, self.outputs))
        return (
            f"PteRunner({len(self._data):,} B, {self._signature()} -> {outputs}, "
            f"delegates: {', '.join(self.delegates) or 'none'})"
        )

    def _signature(self) -> str:
        specs = "; ".join(map(str, self.inputs))
        return f"{len(self.inputs)} input{'s' * (len(self.inputs) != 1)}" + (
            f": {specs}" if specs else ""
        )

    def _prepare(self, i: int, value: Any) -> Any:
        """Convert an input to what C++ takes, or say what is wrong with it."""
        spec = self.inputs[i]
        if isinstance(spec, ScalarSpec):
            return _scalar(i, spec, value)
        x = _tensor(i, spec, value)
        if self.delegates and not x.numel():
            raise ValueError(
                f"input {i}: shape {tuple(x.shape)} holds no element, for which a delegate fails "
                "or ends the process. There is nothing to compute: leave out the call."
            )
        return x


def _matcher(spec: TensorSpec | ScalarSpec) -> Callable[[Any], bool]:
    """Return a test, as cheap as possible, for inputs that need no preparation at all."""
    if (
        not isinstance(spec, TensorSpec)
        or spec.dim_order != tuple(range(len(spec.shape)))
        or spec.dynamic
        or spec.dtype.is_complex
        or 0 in spec.shape
    ):
        return lambda value: False
    dtype, shape, kind = spec.dtype, torch.Size(spec.shape), torch.Tensor

    def fits(x: Any) -> bool:
        try:
            return (
                type(x) is kind
                and x.dtype is dtype
                and x.shape == shape
                and x.is_cpu
                and x.is_contiguous()
                and not x.is_neg()
                and x.data_ptr() != 0
            )
        except RuntimeError:  # of is_contiguous or data_ptr: no tensor with plain memory
            return False

    return fits


def _scalar(i: int, spec: ScalarSpec, value: Any) -> Any:
    kinds = {"Int": int, "Double": float, "Bool": bool, "String": str, "Null": type(None)}
    kind = kinds.get(spec.kind)
    if kind is None or type(value) is not kind:
        raise TypeError(f"input {i}: expected {spec}, got {type(value).__name__}")
    # The value was fixed at export; C++ refuses another one with a code only.
    if value != spec.value:
        raise ValueError(f"input {i}: the program was exported for {spec}, got {value!r}")
    return value


def _tensor(i: int, spec: TensorSpec, value: Any) -> torch.Tensor:
    if not isinstance(value, torch.Tensor):
        is_array = hasattr(value, "__array_interface__")
        how = ". Convert it: torch.from_numpy(array)" if is_array else ""
        raise TypeError(f"input {i}: expected a torch.Tensor, {spec}; got {_type_name(value)}{how}")
    if value.layout != torch.strided or value.is_nested or not value.is_cpu:
        layout = "nested" if value.is_nested else _name(value.layout)
        raise TypeError(
            f"input {i}: expected a dense tensor on the CPU, got a {layout} one on {value.device}"
        )
    # C++ knows torch.Tensor only: not nn.Parameter, not other subclasses.
    x = value.detach().as_subclass(torch.Tensor)
    if x.dtype != spec.dtype:
        raise TypeError(
            f"input {i}: expected dtype {_name(spec.dtype)}, got {_name(x.dtype)}. "
            f"Convert it: x.to(torch.{_name(spec.dtype)})"
        )
    _check_shape(i, spec, tuple(x.shape))
    if not x.numel():
        return torch.empty(x.shape, dtype=x.dtype)  # C++ aborts on the strides of an empty view
    if not _has_memory(x):
        raise TypeError(
            f"input {i}: this tensor has no memory to read: its storage was freed, or it stands "
            "for another one inside torch.func (vmap, grad). Call the runner outside, and on data."
        )
    x = x.resolve_conj().resolve_neg()
    # C++ reads the memory in the order stored in the file, whatever the strides say.
    order = spec.dim_order
    back = [order.index(d) for d in range(len(order))]
    return x.permute(order).contiguous().permute(back)


def _has_memory(x: torch.Tensor) -> bool:
    try:
        return x.data_ptr() != 0
    except RuntimeError:
        return False


def _check_shape(i: int, spec: TensorSpec, shape: tuple[int, ...]) -> None:
    expected = str(spec).split("(", 1)[1].split(")")[0]
    wrong = f"input {i}: expected shape ({expected}), got {shape}"
    if len(shape) != len(spec.shape):
        raise ValueError(f"{wrong}: {len(shape)} dimensions instead of {len(spec.shape)}")
    for d, (got, most) in enumerate(zip(shape, spec.shape, strict=True)):
        if got > most if spec.dynamic else got != most:
            how = f"at most {most}" if spec.dynamic else f"not {most}"
            raise ValueError(f"{wrong}: dimension {d} is {got}, {how}")


def _check_loadable(plan: Any) -> None:
    backends = missing_backends([d.id for d in plan.delegates])
    if backends:
        raise PteLoadError(
            f"the program needs the backend {', '.join(backends)}, which this runtime does not "
            f"have; it has: {', '.join(available_backends())}. Lower the model for one of these, "
            "or run the program where the backend is."
        )
    operators = missing_operators(operator_names(plan))
    if operators:
        raise PteLoadError(
            f"the program calls {', '.join(operators)}, for which this runtime has no kernel. "
            "Import the module that registers it before loading the program."
        )


def _name(of_torch: torch.dtype | torch.layout) -> str:
    return str(of_torch).removeprefix("torch.")


def _type_name(value: Any) -> str:
    kind = type(value)
    return kind.__name__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__name__}"
