"""Gradients under Theano's names: what ``theano.gradient`` has."""

from symdnn.autodiff import GradientError, Lop, Rop, grad, subgraph_grad, verify_grad
from symdnn.autodiff_rows import hessian, hessian_vector_product, jacobian
from symdnn.errors import DisconnectedInput as DisconnectedInputError
from symdnn.errors import NonDifferentiable as NullTypeGradError
from symdnn.ops.core.gradient_control import (
    consider_constant,
    disconnected_grad,
    grad_clip,
    grad_scale,
    undefined_grad,
    zero_grad,
)

__all__ = [
    "DisconnectedInputError",
    "GradientError",
    "Lop",
    "NullTypeGradError",
    "Rop",
    "consider_constant",
    "disconnected_grad",
    "grad",
    "grad_clip",
    "grad_scale",
    "hessian",
    "hessian_vector_product",
    "jacobian",
    "subgraph_grad",
    "undefined_grad",
    "verify_grad",
    "zero_grad",
]
