"""A stand-in for `sgl_kernel`, which has no build for CPUs and may be missing on a GPU host. A Llama that runs on plain
torch and Triton calls nothing in it."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import NoReturn

_PACKAGE = "sgl_kernel"
_DUAL_GEMM = "sglang.kernels.ops.gemm.cutedsl_dual_gemm"
#: SGLang calls these functions when it starts. The stand-in answers False.
_QUESTIONS = {f"{_PACKAGE}.utils.is_arch_support_pdl", f"{_DUAL_GEMM}.can_use_dual_gemm"}


class Absent:
    def __init__(self, name: str) -> None:
        self._name = name

    def __getattr__(self, name: str) -> Absent:
        if name.startswith("__"):
            raise AttributeError(name)
        return Absent(f"{self._name}.{name}")

    def __call__(self, *_args: object, **_kwargs: object) -> NoReturn:
        raise NotImplementedError(
            f"{self._name} was called, and SGLang's compiled kernels are not installed: this engine runs with plain "
            "torch and Triton alone. Use a plain model, no quantisation and no speculative decoding, or, on a GPU, "
            "install the package sglang-kernel."
        )


class _AbsentModule(ModuleType):
    def __getattr__(self, name: str) -> object:
        if name.startswith("__"):
            raise AttributeError(name)
        full_name = f"{self.__name__}.{name}"
        return (lambda *_: False) if full_name in _QUESTIONS else Absent(full_name)


class _Finder(MetaPathFinder, Loader):
    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname.partition(".")[0] != _PACKAGE and fullname != _DUAL_GEMM:
            return None
        return ModuleSpec(fullname, self, is_package=True)

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        return _AbsentModule(spec.name, __doc__)

    def exec_module(self, module: ModuleType) -> None:
        """Do nothing: the stand-in has no code to run."""


def in_use() -> bool:
    return isinstance(sys.modules.get(_PACKAGE), _AbsentModule)


def install() -> None:
    if not any(isinstance(finder, _Finder) for finder in sys.meta_path):
        sys.meta_path.insert(0, _Finder())
