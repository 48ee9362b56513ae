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
from common._kernel_dtypes import check_kernel_dtypes
from common._pte_file import (
    ScalarSpec,
    TensorSpec,
    find_plan,
    is_nested,
    method_specs,
    operator_names,
    output_structure,
    read_description,
    read_pte,
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
from common._shapes import read_bounds
from common._signature import CONTAINERS, read_signature
from common._text import torch_name
from common._threads import ALIVE


class PteRunner:
    """A loaded ``.pte`` that is called like the model: ``runner(x)``, ``runner(x, mask=mask)``.

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
        refuse_nan: refuse an input that holds a NaN. It reads each float input once more.

    Raises:
        TypeError: neither a path nor bytes.
        FileNotFoundError, IsADirectoryError: the path leads to no file.
        PteFormatError: no whole ExecuTorch program; the message says what it is instead. Weights
            of XNNPACK are compared with the checksums in the file, at about 1 ms a MB.
        PteLoadError: a backend or a kernel is missing, or ``isolated_check`` came to no result;
            the message says which.
        ValueError: the program has no such method.

    Note:
        A NaN that goes into an int8 delegate comes out as an ordinary number, and XNNPACK's
        ``max_pool2d``, ``maximum`` and ``minimum`` drop one in float32 as well: see ``refuse_nan``.
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
        refuse_nan: bool = False,
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
        bounds = read_bounds(program, plan)
        try:
            self.inputs, self.outputs = method_specs(plan, bounds)
        except (IndexError, KeyError, AttributeError) as error:
            raise PteFormatError(f"the program is damaged: {error!r}") from error
        self.delegates = tuple(d.id for d in plan.delegates)
        self._method_name = method
        self._returns = output_structure(plan)
        self._structure = self._returns if self._returns and is_nested(self._returns) else None
        self._signature = read_signature(plan)
        flat = tuple(f"input {i}" for i in range(len(self.inputs)))
        self._labels = self._signature.labels if self._signature else flat
        self._bounds = bounds if bounds and bounds.relate else None
        # ExecuTorch copies neither: the Method points into the Program, the Program into the bytes.
        self._data = data
        ALIVE.add(self)
        self.reset()
        self._refuse_nan = refuse_nan
        checks = (_matcher(spec) for spec in self.inputs)
        self._checks = tuple(_without_nan(fits) if refuse_nan else fits for fits in checks)

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

    def __call__(self, *inputs: Any, **keywords: Any) -> Any:
        """Run the method.

        Args:
            inputs: what the model's ``forward`` takes, lists and dicts included; or one value for
                each input of the program, in its order. A tensor may have any memory layout and
                may require a gradient. A number, a bool or None must be that of the export.
            keywords: the keyword inputs with which the model was exported, in any order.

        Returns:
            The output tensor; several outputs come as a tuple, or as the dicts and lists that
            the model's ``forward`` returns. They are the caller's own and are not overwritten by
            the next call.

        Raises:
            TypeError: an input is no dense tensor on the CPU, or has another dtype; a list or a
                dict stands where none was expected, or the other way round.
            ValueError: the number of inputs, a name, a rank or a dimension does not fit, or the
                dimensions of several inputs do not fit together.
            PteExecutionError: the program failed although its inputs fit.
        """
        checks = self._checks
        args: Sequence[Any]
        if len(inputs) == len(checks) == 1 and not keywords and checks[0](inputs[0]):
            args = inputs  # the usual case first: each step here is a percent of a small program
        else:
            args = [
                value if fits(value) else self._prepare(i, value)
                for i, (fits, value) in enumerate(
                    zip(checks, self._in_order(inputs, keywords), strict=True)
                )
            ]
            if self._bounds is not None:
                self._bounds.check(args, self._labels)
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
            f"PteRunner({len(self._data):,} B, {self._described_inputs()} -> {outputs}, "
            f"delegates: {', '.join(self.delegates) or 'none'})"
        )

    def _described_inputs(self) -> str:
        names = [label.partition(" (")[2].removesuffix(")") for label in self._labels]
        both = zip(names, self.inputs, strict=True)
        specs = "; ".join(f"{name}: {spec}" if name else str(spec) for name, spec in both)
        return f"{len(self.inputs)} input{'s' * (len(self.inputs) != 1)}" + (
            f": {specs}" if specs else ""
        )

    def _find_misfit(self, values: Sequence[Any]) -> str | None:
        """Say which size does not fit the others; ``None`` where all do, or nothing is known."""
        shapes = [getattr(value, "shape", ()) for value in values]
        return self._bounds.find_problem(shapes, self._labels) if self._bounds else None

    def _in_order(self, inputs: tuple[Any, ...], keywords: dict[str, Any]) -> Sequence[Any]:
        """Put the inputs of a call into the program's order."""
        signature = self._signature
        structured = signature is not None and not signature.is_flat
        if structured and (keywords or any(isinstance(value, CONTAINERS) for value in inputs)):
            assert signature is not None
            return signature.flatten(inputs, keywords)
        if keywords:
            raise ValueError(
                f"expected {self._described_inputs()}, all of them by position, got "
                f"{', '.join(keywords)} by name. To give an input by name, export the model with "
                "example_kwargs."
            )
        if len(inputs) != len(self.inputs):
            how = f", or {signature}" if structured else ""
            raise ValueError(f"expected {self._described_inputs()}{how}, got {len(inputs)}")
        return inputs

    def _prepare(self, i: int, value: Any) -> Any:
        """Convert an input to what C++ takes, or say what is wrong with it."""
        spec, label = self.inputs[i], self._labels[i]
        if isinstance(spec, ScalarSpec):
            return _scalar(label, spec, value)
        x = _tensor(label, spec, value)
        if self.delegates and not x.numel():
            raise ValueError(
                f"{label}: shape {tuple(x.shape)} holds no element, for which a delegate fails "
                "or ends the process. There is nothing to compute: leave out the call."
            )
        if self._refuse_nan and _has_nan(x):
            raise ValueError(
                f"{label}: holds a NaN, first at index {tuple(x.isnan().nonzero()[0].tolist())}. "
                "An int8 delegate, or a float32 max_pool2d, maximum or minimum of XNNPACK, would "
                "make an ordinary number of it. Clean the data first."
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


def _without_nan(fits: Callable[[Any], bool]) -> Callable[[Any], bool]:
    return lambda x: fits(x) and not _has_nan(x)


def _has_nan(x: torch.Tensor) -> bool:
    return (x.is_floating_point() or x.is_complex()) and bool(x.isnan().any())


def _scalar(label: str, spec: ScalarSpec, value: Any) -> Any:
    kinds = {"Int": int, "Double": float, "Bool": bool, "String": str, "Null": type(None)}
    kind = kinds.get(spec.kind)
    if kind is None or type(value) is not kind:
        raise TypeError(f"{label}: expected {spec}, got {type(value).__name__}")
    # The value was fixed at export; C++ refuses another one with a code only.
    if value != spec.value:
        raise ValueError(f"{label}: the program was exported for {spec}, got {value!r}")
    return value


def _tensor(label: str, spec: TensorSpec, value: Any) -> torch.Tensor:
    if not isinstance(value, torch.Tensor):
        is_array = hasattr(value, "__array_interface__")
        how = ". Convert it: torch.from_numpy(array)" if is_array else ""
        raise TypeError(f"{label}: expected a torch.Tensor, {spec}; got {_type_name(value)}{how}")
    if value.layout != torch.strided or value.is_nested or not value.is_cpu:
        layout = "nested" if value.is_nested else torch_name(value.layout)
        raise TypeError(
            f"{label}: expected a dense tensor on the CPU, got a {layout} one on {value.device}"
        )
    # C++ knows torch.Tensor only: not nn.Parameter, not other subclasses.
    x = value.detach().as_subclass(torch.Tensor)
    if x.dtype != spec.dtype:
        raise TypeError(
            f"{label}: expected dtype {torch_name(spec.dtype)}, got {torch_name(x.dtype)}. "
            f"Convert it: x.to(torch.{torch_name(spec.dtype)})"
        )
    _check_shape(label, spec, tuple(x.shape))
    if not x.numel():
        return torch.empty(x.shape, dtype=x.dtype)  # C++ aborts on the strides of an empty view
    if not _has_memory(x):
        raise TypeError(
            f"{label}: this tensor has no memory to read: its storage was freed, or it stands "
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


def _check_shape(label: str, spec: TensorSpec, shape: tuple[int, ...]) -> None:
    expected = str(spec).split("(", 1)[1].split(")")[0]
    wrong = f"{label}: expected shape ({expected}), got {shape}"
    if len(shape) != len(spec.shape):
        raise ValueError(f"{wrong}: {len(shape)} dimensions instead of {len(spec.shape)}")
    # A dynamic tensor of a file that does not say which dimensions move: any may be smaller.
    minimum = spec.minimum or ((0,) * len(shape) if spec.dynamic else spec.shape)
    for d, (got, least, most) in enumerate(zip(shape, minimum, spec.shape, strict=True)):
        if not least <= got <= most:
            how = f"at most {most}" if got > most else f"at least {least}"
            how = f"not {most}" if least == most else how
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
    check_kernel_dtypes(plan)


def _type_name(value: Any) -> str:
    kind = type(value)
    return kind.__name__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__name__}"
