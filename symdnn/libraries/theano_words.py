"""Names and tags of Theano's rewrites: which of symdnn's they mean, if any."""

from __future__ import annotations

__all__ = ["MEANT", "THEANO"]

_MEANT = """
    batchnorm_dnn = local_abstract_batch_norm_train_cudnn local_abstract_batch_norm_train_grad_cudnn
        local_abstract_batch_norm_inference_cudnn
    pool_dnn = local_gpua_pool_dnn_alternative local_gpua_pool_dnn_grad_stride
        local_gpua_avg_pool_dnn_grad_stride
    softmax_dnn = local_softmax_dnn local_gpua_logsoftmax_to_dnn local_gpua_softmax_dnn_grad
        local_log_softmax_dnn
    FusionOptimizer = fusion
    elemwise_fusion = fusion
    gpu_elemwise_fusion = fusion
    gpua_elemwise_fusion = fusion
    local_elemwise_fusion = fusion
    log1pexp_to_softplus = log1p_of_exp
    log1msigm_to_softplus = log1p_of_neg_sigmoid
    local_log_add = log_of_exp_plus_exp
    logsigm_to_softplus = log_of_sigmoid
    local_abstractconv_dnn = local_abstractconv_cudnn
    local_abstractconv_gi_dnn = local_abstractconv_gi_cudnn
    local_abstractconv_gw_dnn = local_abstractconv_gw_cudnn
"""

_TEXT = """
    BlasOpt InplaceBlasOpt InplaceElemwiseOptimizer InplaceGpuaBlasOpt InputToGpuOptimizer
    abstract_batch_norm_db abstract_batch_norm_db2 add_destroy_handler all_pushout_opt
    assert_no_cpu_op blas blas_opt_inplace c_blas canonicalize_db cond_merge_ifs_false
    cond_merge_ifs_true cond_merge_random_op cond_remove_identical constant_folding_for_scan2
    conv3d2d conv3d_fft conv3d_gemm conv_fft conv_gemm conv_meta conv_metaopt ctc cusolver
    cut_gpua_constant_transfers cut_gpua_host_transfers cxx_only dimshuffle_as_view dnn elemwise
    fast_compile_gpu gpu gpu_after_fusion gpu_inplace_opt gpu_local_optimizations gpu_opt
    gpu_scan gpu_seqopt gpua_assert_no_cpu_op gpua_constant_folding gpua_inplace_opt
    gpua_scanOp_make_inplace gpuablas_opt_inplace gpuarray gpuarray_after_fusion
    gpuarray_cut_transfers gpuarray_graph_optimization gpuarray_local_optimizations
    gpuarray_local_optimiziations gpuarray_opt graph_merge_softmax_with_crossentropy_softmax
    ifelse_condPushOut_equilibrium ifelse_equilibriumOpt
    ifelse_lift_single_if_through_acceptable_ops in2out inline_ofg_expansion
    inplace_elemwise_opt inplace_elemwise_optimizer inplace_opt inplace_setsubtensor
    input_to_gpu jax lift_transpose_through_dot local_0_dot_x local_IncSubtensor_serialize
    local_abs_merge local_abstract_batch_norm_inference local_abstract_batch_norm_train
    local_abstract_batch_norm_train_grad local_abstractconv3d2d local_abstractconv3d_alt
    local_abstractconv3d_cudnn_alt local_abstractconv3d_gemm local_abstractconv3d_gemm_def
    local_abstractconv3d_gemm_gradweights_alt local_abstractconv3d_gradinputs
    local_abstractconv3d_gradinputs_gemm local_abstractconv3d_gradinputs_gemm_alt
    local_abstractconv3d_gradweight_gemm local_abstractconv3d_gradweights_gemm
    local_abstractconv_check local_abstractconv_cudnn_alt local_abstractconv_gemm
    local_abstractconv_gemm_alt local_abstractconv_gemm_def
    local_abstractconv_gemm_gradweights_alt local_abstractconv_gradinputs
    local_abstractconv_gradinputs_gemm local_abstractconv_gradinputs_gemm_alt
    local_abstractconv_gradweight_gemm local_abstractconv_gradweights_gemm local_add_canonizer
    local_addsd_ccode local_adv_sub1_adv_inc_sub1
    local_advanced_indexing_crossentropy_onehot_grad local_advincsub1_gpua_inplace
    local_alloc_empty_to_zeros local_alloc_unary local_alpha_merge local_argmax_pushdown
    local_assert_no_cpu_op local_batch_norm_inplace_output local_canonicalize_alloc
    local_conv2d_cpu local_conv2d_gradinputs_cpu local_conv2d_gradweight_cpu local_conv_gpu_conv
    local_crossentropy_to_crossentropy_with_softmax_grad local_csm_grad_c
    local_csm_properties_csm local_ctc_no_grad local_cut_gpua_host_gpua local_cut_useless_reduce
    local_dense_from_sparse_sparse_from_dense local_det_chol local_dimshuffle_alloc
    local_dimshuffle_subtensor local_div_switch_sink local_dot22_to_dot22scalar
    local_dot22_to_ger_or_gemv local_dot_to_dot22 local_elemwise_sub_zeros local_fill_cut
    local_fill_to_alloc local_flatten_lift local_func_inv local_gemm_to_gemv local_gemm_to_ger
    local_gpu_alloc_diag local_gpu_average_pool_grad local_gpu_cholesky
    local_gpu_contiguous_gpu_contiguous local_gpu_crossentropycategorical1hot
    local_gpu_crossentropycategorical1hotgrad local_gpu_ctc local_gpu_ctc_no_grad
    local_gpu_downsample_factor_max_grad_grad local_gpu_elemwise_careduce local_gpu_extract_diag
    local_gpu_magma_cholesky local_gpu_magma_eigh local_gpu_magma_matrix_inverse
    local_gpu_magma_qr local_gpu_magma_qr_incomplete local_gpu_magma_svd local_gpu_max_pool_grad
    local_gpu_max_pool_rop local_gpu_maxandargmax local_gpu_pdbbreakpoint_op local_gpu_pool
    local_gpu_solve local_gpua_advanced_boolean_incsubtensor
    local_gpua_advanced_boolean_subtensor local_gpua_advanced_incsubtensor
    local_gpua_advanced_incsubtensor1 local_gpua_advanced_subtensor
    local_gpua_advanced_subtensor1 local_gpua_alloc2 local_gpua_alloc_empty
    local_gpua_alloc_empty_to_zeros local_gpua_assert local_gpua_assert_graph
    local_gpua_careduce local_gpua_contiguous local_gpua_crossentropysoftmax1hotwithbiasdx
    local_gpua_crossentropysoftmaxargmax1hotwithbias local_gpua_cumop local_gpua_dimshuffle
    local_gpua_dot22 local_gpua_dot22scalar local_gpua_elemwise local_gpua_error_convop
    local_gpua_eye local_gpua_flatten local_gpua_gemm local_gpua_gemm_alpha_merge
    local_gpua_gemm_output_merge local_gpua_gemmbatch local_gpua_gemmbatch_alpha_merge
    local_gpua_gemmbatch_output_merge local_gpua_gemv local_gpua_ger local_gpua_images2neibs
    local_gpua_inc_subtensor local_gpua_join local_gpua_join_1 local_gpua_lazy_ifelse
    local_gpua_lift_abstractconv_graph local_gpua_mrg local_gpua_mrg_graph
    local_gpua_multinomial local_gpua_multinomial_wor local_gpua_print_op local_gpua_rebroadcast
    local_gpua_reshape local_gpua_scan_to_gpua local_gpua_shape local_gpua_shape_graph
    local_gpua_softmax local_gpua_softmaxwithbias local_gpua_sparseblockgemv
    local_gpua_sparseblockouter local_gpua_specifyShape local_gpua_specifyShape_graph
    local_gpua_split local_gpua_subtensor local_gpua_subtensor_graph local_gpua_topkop
    local_gpua_tri local_gpuaalloc local_gpualloc_memset_0 local_grad_log_erfc_neg
    local_greedy_distributor local_hard_sigmoid local_incsubtensor_of_allocs
    local_incsubtensor_of_zeros local_incsubtensor_of_zeros_to_setsubtensor
    local_inplace_DiagonalSubtensor local_inplace_addsd_ccode local_inplace_gemm
    local_inplace_gemv local_inplace_ger local_inplace_gpu_cholesky
    local_inplace_gpu_magma_cholesky local_inplace_gpu_magma_matrix_inverse
    local_inplace_gpu_solve local_inplace_incsubtensor1 local_inplace_remove0
    local_inplace_setsubtensor local_inplace_sparse_block_gemm local_inplace_sparse_block_gemv
    local_inplace_sparse_block_outer local_inplace_sparseblockgemv
    local_inplace_sparseblockouter local_intdiv_lift local_join_make_vector local_log_erfc
    local_log_pow local_log_prod_sqr local_logsoftmax_grad local_max_and_argmax local_max_to_min
    local_merge_alloc local_merge_switch_same_cond local_mul_canonizer local_mul_s_d
    local_mul_s_v local_mul_switch_sink local_neg_div_neg local_neg_to_mul local_opt_alloc
    local_output_merge local_pow_specialize_device local_print_as_we_go_along
    local_rebroadcast_lift local_reciprocal_canon local_reduce_join local_remove_all_assert
    local_remove_switch_const_cond local_replace_AdvancedIndexing local_reshape_dimshuffle
    local_sampling_dot_csr local_scalar_tensor_scalar local_set_to_inc_subtensor
    local_setsubtensor_of_allocs local_setsubtensor_of_constants local_shape_i_lift
    local_softmax_grad_to_crossentropy_with_softmax_grad local_softmax_with_bias
    local_structured_add_s_v local_structured_dot local_subtensor_of_dot
    local_subtensor_remove_broadcastable_index local_subtensor_rfft local_sum_prod_all_to_none
    local_sum_prod_div_dimshuffle local_sumsqr2dot local_tensor_scalar_tensor
    local_track_shape_i local_ultra_fast_sigmoid local_upcast_elemwise_constant_inputs
    local_useless_composite local_useless_crossentropy_softmax_1hot_with_bias_dx_alloc
    local_useless_dimshuffle_in_reshape local_useless_elemwise local_useless_fill
    local_useless_rebroadcast local_useless_reduce local_useless_slice_subtensor
    local_useless_tile local_useless_topk local_usmm local_usmm_csc_dense_inplace local_usmm_csx
    local_zero_div low_memory lstm magma make_c_gemv_destructive make_c_ger_destructive
    make_ger_destructive make_scipy_blas_destructive matrix_ops_db matrix_ops_db2 merge merge1
    merge1.1 merge1.2 merge2 merge3 minimum_compile more_mem mrg_random_make_inplace
    no_transpose_symmetric numba opt pool_db pool_db2 psd_solve_with_chol python random
    random_make_inplace remove_all_assert remove_constants_and_unused_inputs_scan
    remove_hint_nodes scanOp_make_inplace scanOp_merge scanOp_merge_inouts
    scanOp_remove_constants_and_unused_inputs0 scan_eqopt1 scan_eqopt2 scan_inplace
    scan_make_inplace scan_merge scan_merge_inouts scan_seqopt scan_seqopt1 scipy_blas
    seq_ifelse specialize specialize_device tag_solve_triangular transinv_to_invtrans
    typed_list_inplace_opt uncanonicalize use_c_blas use_c_gemv use_c_ger use_scipy_blas
    use_scipy_ger useless xent
"""

#: Words of Theano for rewrites of symdnn that are in no rewrite's own tags, with those rewrites.
MEANT = {
    line.split()[0]: tuple(line.split()[2:])
    for line in _MEANT.replace("\n        ", " ").strip().splitlines()
}

#: Those of Theano 1.0.5 and of 0.7 to 0.9 that mean nothing here.
THEANO = frozenset(_TEXT.split())
