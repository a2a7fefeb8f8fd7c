"""The words that choose rewrites: names of rules, phases and tags, and Theano's names."""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache

from symdnn.errors import ConfigError, RewriteError
from symdnn.flags import nearest
from symdnn.libraries.table import ALL_RULES
from symdnn.opt.phases import PHASES, Selection
from symdnn.rewriting.registry import outside
from symdnn.rewriting.rewrite import GraphRewrite, Rewrite

__all__ = ["LEVELS", "THEANO", "check_required", "check_words", "known_words"]

#: Tags for levels of optimisation.
LEVELS = frozenset({"fast_run", "fast_compile", "unsafe", "always", "optional"})

_THEANO_TEXT = """
    add_destroy_handler batchnorm_dnn blas blas_opt_inplace BlasOpt c_blas canonicalize_db
    constant_folding_for_scan2 conv_fft conv_gemm conv_meta conv3d_fft conv3d_gemm cxx_only
    dimshuffle_as_view dnn elemwise elemwise_fusion gpu gpu_after_fusion gpu_elemwise_fusion
    gpu_inplace_opt gpu_local_optimizations gpu_opt gpu_scan gpu_seqopt gpuablas_opt_inplace
    gpua_elemwise_fusion gpua_scanOp_make_inplace gpuarray gpuarray_after_fusion
    gpuarray_cut_transfers gpuarray_graph_optimization gpuarray_local_optimizations gpuarray_opt
    in2out inplace_elemwise_optimizer inplace_elemwise_opt InplaceElemwiseOptimizer inplace_opt
    inplace_setsubtensor input_to_gpu InputToGpuOptimizer jax lift_transpose_through_dot
    local_abs_merge local_abstractconv3d_cudnn_alt local_abstractconv_cudnn_alt local_alpha_merge
    local_argmax_pushdown local_batch_norm_inplace_output local_cut_useless_reduce
    local_dot_to_dot22 local_dot22_to_dot22scalar
    local_elemwise_fusion local_fill_cut local_fill_to_alloc local_gemm_to_gemv local_gemm_to_ger
    local_greedy_distributor local_inplace_DiagonalSubtensor local_inplace_incsubtensor1
    local_inplace_remove0 local_inplace_setsubtensor local_inplace_sparse_block_gemm
    local_intdiv_lift local_IncSubtensor_serialize local_max_and_argmax local_merge_alloc
    local_mul_canonizer local_mul_switch_sink local_add_canonizer local_output_merge
    local_reciprocal_canon local_remove_all_assert local_remove_switch_const_cond
    local_replace_AdvancedIndexing local_setsubtensor_of_constants local_shape_i_lift
    local_subtensor_rfft local_track_shape_i local_useless_fill local_useless_reduce
    local_useless_slice_subtensor lstm merge merge1 merge1.1 merge1.2 merge2 merge3
    minimum_compile more_mem numba opt pool_dnn python random random_make_inplace
    remove_all_assert scan_eqopt1 scan_eqopt2 scan_inplace scan_make_inplace scan_merge
    scan_merge_inouts scan_seqopt scan_seqopt1 scanOp_make_inplace scanOp_merge
    scanOp_merge_inouts scanOp_remove_constants_and_unused_inputs0 scipy_blas softmax_dnn
    specialize specialize_device uncanonicalize use_c_blas use_c_ger use_scipy_blas
    use_scipy_ger useless
"""

#: Tags and names of Theano's rewrites that are accepted without effect; docs/theano.md lists them.
THEANO = frozenset(_THEANO_TEXT.split())


def known_words() -> frozenset[str]:
    """Every word that a flag or a mode may name; those of registered rewrites too."""
    return _words_of_own_rules() | _words_of(outside())


@cache
def _words_of_own_rules() -> frozenset[str]:
    return _words_of(ALL_RULES) | {*PHASES, *LEVELS, *THEANO}


def _words_of(rules: Iterable[Rewrite | GraphRewrite]) -> frozenset[str]:
    return frozenset(word for r in rules for word in (r.name, r.phase, *r.tags))


def _nearest(word: str) -> str:
    """Advice: the known word that looks most like ``word``; empty where none does."""
    found = nearest(word, sorted(known_words()))
    return f" Did you mean {found!r}?" if found else ""


def check_words(words: Iterable[str], where: str) -> None:
    """Raise :class:`~symdnn.errors.ConfigError` for a word that names no rewrite, phase or tag.

    >>> check_words(["fuson"], "Mode.excluding")
    Traceback (most recent call last):
    symdnn.errors.ConfigError: Mode.excluding: no rewrite or tag 'fuson'. Did you mean 'fusion'?
    """
    known = known_words()
    for word in words:
        if word not in known:
            raise ConfigError(f"{where}: no rewrite or tag {word!r}.{_nearest(word)}")


def check_required(selection: Selection) -> None:
    """Raise :class:`~symdnn.errors.RewriteError` for a required word that names no rewrite."""
    for word in sorted(selection.require):
        if word not in _words_of((*ALL_RULES, *outside())):
            raise RewriteError(f"optimizer_requiring: no rewrite or tag {word!r}.{_nearest(word)}")
