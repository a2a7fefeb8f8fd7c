"""What to write for names of NumPy, PyTorch, JAX, ... that symdnn does not have."""

from __future__ import annotations

from collections.abc import Mapping

__all__ = [
    "CONTROL", "FUNCTION", "FUNCTIONAL", "INIT", "LINALG", "METRICS", "MODELS", "MODULE", "NN",
    "NNET", "ONNX", "OPTIM", "PARALLEL", "RANDOM", "SCHEDULE",
    "SHARED", "SYMDNN", "TENSOR", "UTILS", "VARIABLE", "Advice",
]  # fmt: skip

#: By name, what to use instead.
Advice = Mapping[str, str]

_NO_VALUE = "a variable has a value in a call only: symdnn.function([inputs], x)(...) or x.eval()"
_NO_ASSIGNMENT = (
    "a variable is not changed: T.set_subtensor(x[index], y) and T.inc_subtensor(x[index], y) are "
    "new ones"
)

_DEVICE = "the flag device says where functions run, symdnn.Mode(target='cuda') where one does"
_DTYPE = "a dtype is a string, such as 'float32'"
_RANDOM = "symdnn.tensor.random.RandomStream(seed).normal((2, 3)), .uniform(...), ... are variables"
_NO_TAPE = "nothing is recorded: symdnn.grad(cost, x) is the gradient"
_VARIABLE = "T.matrix('x'), T.tensor('float32', (None, 3)) and their kin make variables"
_CONSTANT = "T.constant(value) does that; functions take arrays as they are"

#: Of a variable: attributes of NumPy's and JAX's arrays, PyTorch's tensors, shared variables.
VARIABLE: Advice = {
    "item": _NO_VALUE,
    "numpy": _NO_VALUE,
    "tolist": _NO_VALUE,
    "cpu": "functions return NumPy arrays; the flag device says where they run",
    "cuda": "the flag device=cuda says where functions run",
    "backward": "symdnn.grad(cost, x) is the gradient",
    "grad": "symdnn.grad(cost, x) is the gradient",
    "requires_grad": "symdnn.grad(cost, x) takes the variables to differentiate by",
    "add_": "a variable is not changed: write y = x + z",
    "mul_": "a variable is not changed: write y = x * z",
    **dict.fromkeys(("copy_", "apply_"), _NO_ASSIGNMENT),
    "zero_": "a variable is not changed: T.zeros_like(x) is a new one",
    **dict.fromkeys(
        ("values", "indices"), "x.max(dim=1) and its kin have both, x.max(axis=1) the values alone"
    ),
    "equal": "T.array_equal(x, y) does that, T.eq(x, y) compares elements",
    "H": "x.conj().T does that",
    "mH": "x.conj().mT does that",
    **dict.fromkeys(("is_floating_point", "is_complex", "is_signed"), "x.dtype is a string"),
    **dict.fromkeys(("element_size", "itemsize"), "x.type.numpy.itemsize does that"),
    **dict.fromkeys(("is_contiguous", "stride", "as_strided"), "the compiler chooses layouts"),
    "register_hook": "symdnn.grad(cost, x) is the gradient by any expression x",
    "retain_grad": "symdnn.grad(cost, x) is the gradient by any expression x",
    **dict.fromkeys(
        ("new_tensor", "new_empty"), "T.constant(value) does that, x.new_zeros(shape) makes zeros"
    ),
    **dict.fromkeys(
        ("put", "index_put", "sum_to_size", "renorm"),
        "T.set_subtensor, sums and norms of T make such a variable",
    ),
    **dict.fromkeys(
        ("bernoulli", "multinomial", "exponential"),
        "symdnn.tensor.random.RandomStream(seed) draws numbers",
    ),
    **dict.fromkeys(
        ("to_sparse", "to_dense"),
        "symdnn.sparse.csr_from_dense(x) and dense_from_sparse(x) do that",
    ),
    "mode": "T.unique(x, return_counts=True) has the values and how often each occurs",
    "resize": "x.reshape(shape) does that",
    "itemset": "T.set_subtensor(x[index], value) is a new variable",
    "nbytes": "sizes are known in a call only; x.size is symbolic",
    "strides": "the compiler chooses layouts",
    "flat": "x.flatten() is a vector of the elements",
    "data": _NO_VALUE,
    **dict.fromkeys(("device", "is_cuda"), "the flag device says where functions run"),
    "to_numpy": _NO_VALUE,
    "block_until_ready": _NO_VALUE,
    "get_value": f"only a shared variable has one; {_NO_VALUE}",
    "set_value": "only a shared variable has one: symdnn.shared(value)",
}

_VALUE = "x.get_value() is the value of a shared variable"
_NEW_VALUE = "x.set_value(array) changes a shared variable"

#: Of a shared variable.
SHARED: Advice = {
    **VARIABLE,
    **dict.fromkeys(("item", "numpy", "tolist", "data", "to_numpy", "cpu"), _VALUE),
    **dict.fromkeys(("copy_", "apply_", "zero_", "fill_", "add_", "mul_", "itemset"), _NEW_VALUE),
}

#: Of every tensor module: names of arrays and functions.
_ARRAYS: Advice = {
    **dict.fromkeys(("randn", "rand", "randint", "normal", "manual_seed", "PRNGKey"), _RANDOM),
    **dict.fromkeys(("no_grad", "enable_grad", "GradientTape"), _NO_TAPE),
    **dict.fromkeys(("device", "devices", "device_put", "cuda"), _DEVICE),
    **dict.fromkeys(("Tensor", "placeholder"), _VARIABLE),
}

#: Of ``symdnn``.
SYMDNN: Advice = {
    **_ARRAYS,
    **dict.fromkeys(("float16", "bfloat16", "float32", "float64", "int32", "int64"), _DTYPE),
    **dict.fromkeys(("array", "asarray", "from_numpy"), _CONSTANT),
    "random": _RANDOM,
    "tree": "symdnn.jit and its kin take trees: symdnn.register_tree",
    "eval_shape": "y.type.shape has the known sizes, symdnn.nn.summary(net, shape) all",
    "utils": "symdnn.nn.batches((x, t), size, shuffle=True) gives batches of data",
    "backends": "symdnn.nn.cudnn has benchmark, fastest and verbose; symdnn.config all flags",
    "models": "symdnn.nn.models has known networks",
    "losses": "symdnn.nn has losses, such as symdnn.nn.CrossEntropyLoss",
    "layers": "symdnn.nn has layers",
    "numpy": "symdnn.tensor has NumPy's functions, of variables",
    "lax": "symdnn.control has loops and conditions under the names of jax.lax",
    "optim": "symdnn.nn.optim has optimisers",
    "jacfwd": "symdnn.jacobian(y, x) does that",
    "jacrev": "symdnn.jacobian(y, x) does that",
    "stop_gradient": "symdnn.gradient.disconnected_grad(x) does that",
    "make_jaxpr": "symdnn.dprint(f) prints what f runs",
    "remat": "symdnn.checkpoint(f) does that",
    **dict.fromkeys(("custom_vjp", "custom_jvp"), "symdnn.custom_gradient replaces a gradient"),
    **dict.fromkeys(("amp", "autocast"), "the flag amp=bf16 or amp=fp16 is mixed precision"),
    "GradScaler": "symdnn.LossScale does that",
    "inference_mode": _NO_TAPE,
    "set_default_dtype": "the flag floatX does that",
    "tree_util": "symdnn.jit and its kin take trees: symdnn.register_tree",
    "pmap": "symdnn.distributed has training over several devices",
    "tree_map": "symdnn.jit and its kin take trees: symdnn.register_tree",
    "autograd": "symdnn.grad(cost, x) is the gradient",
    "func": "symdnn.grad, vmap, jacobian, jvp and vjp are functions of symdnn",
}

#: Of ``symdnn.tensor.random``.
RANDOM: Advice = dict.fromkeys(
    (
        "normal", "uniform", "randn", "rand", "randint", "random", "permutation", "choice",
        "bernoulli", "categorical", "seed", "manual_seed", "PRNGKey", "key", "split",
    ), _RANDOM,
)  # fmt: skip

#: Of ``symdnn.tensor``.
TENSOR: Advice = {
    **_ARRAYS,
    **dict.fromkeys(("from_numpy", "FloatTensor", "LongTensor"), _CONSTANT),
    **dict.fromkeys(("bernoulli", "multinomial", "randperm"), _RANDOM),
    "pin_memory": "functions take arrays of the host as they are",
    "one_hot": "T.extra_ops.to_one_hot(labels, classes) does that",
    "autograd": "symdnn.grad(cost, x) is the gradient",
    "special": "T.expit, T.gammaln, T.xlogy and their kin are functions of T",
    "inverse": "T.linalg.inv does that",
    "conj_physical": "T.conj does that",
    "mode": "T.unique(x, return_counts=True) has the values and how often each occurs",
    "cholesky_solve": "T.linalg.cho_solve((factor, True), b) does that",
    "conv2d": "T.nnet.conv2d(x, w) does that",
    "div": "x / y and x // y do that",
    "ger": "T.outer does that",
    "rsub": "y - x does that",
    "vectorize": "symdnn.vmap does that",
    "nn": "T.nnet has functions of neural networks, symdnn.nn layers",
    "scan": "symdnn.scan does that",
    "function": "symdnn.function does that",
    "shared": "symdnn.shared does that",
}

_CROSSENTROPY = "T.nnet.softmax_crossentropy(scores, labels) does that"

#: Of ``symdnn.tensor.nnet``.
NNET: Advice = {
    "cross_entropy": _CROSSENTROPY,
    "mse_loss": "((x - y) ** 2).mean() does that",
    "l1_loss": "abs(x - y).mean() does that",
    "log_softmax": "T.nnet.logsoftmax(x) does that",
    "linear": "T.dot(x, w) + b does that",
    "max_pool2d": "T.signal.pool.pool_2d(x, (2, 2), ignore_border=True) does that",
    "avg_pool2d": "T.signal.pool.pool_2d(x, (2, 2), ignore_border=True, mode='average_inc_pad') "
    "does that",
    "batch_norm": "T.nnet.batch_normalization_train and batch_normalization_test do that",
    "tanh": "T.tanh(x) does that",
}

_MODULE_MOVES = "the flag device says where functions run; parameters follow them"
_NO_ZERO = "gradients are not kept, so none is set to zero"

#: Of a module of ``symdnn.nn``.
MODULE: Advice = {
    "cuda": _MODULE_MOVES,
    "cpu": _MODULE_MOVES,
    "to": _MODULE_MOVES,
    "zero_grad": _NO_ZERO,
    "zeroGradParameters": _NO_ZERO,
    "backward": "symdnn.grad(loss, net.parameters()) are the gradients",
    **dict.fromkeys(
        ("register_forward_hook", "register_forward_pre_hook"),
        "a call gives an expression: keep it, and make it a result of the function",
    ),
    **dict.fromkeys(
        ("register_full_backward_hook", "register_backward_hook", "register_hook"),
        "symdnn.grad(loss, y) is the gradient by any expression y of the forward pass",
    ),
    "get_submodule": "dict(net.named_modules())[name] does that",
    "get_parameter": "net.named_parameters()[name] does that",
    "get_buffer": "net.named_buffers()[name] does that",
    "updateGradInput": "symdnn.grad(loss, x) is the gradient",
    "accGradParameters": "symdnn.grad(loss, net.parameters()) are the gradients",
    "updateParameters": "nn.optim.sgd(loss, net, lr) are the updates of symdnn.function",
    "gradInput": "symdnn.grad(loss, x) is the gradient",
    **dict.fromkeys(("output", "updateOutput"), "a call, net(x), gives the expression"),
    "getParameters": "nn.utils.parameters_to_vector(net.parameters()) is one vector of them",
    **dict.fromkeys(
        ("listModules", "findModules"), "net.named_modules() are all modules by their paths"
    ),
    "replace": "net[0] = module replaces one, nn.convert changes the libraries of all",
    "remove": "del net[0] does that",
    "reset": "make the module again, or nn.init.kaiming_normal_(layer.weight) and its kin",
    "clearState": "modules keep no results",
    "share": "one module called twice, or layer.weight = other.weight, shares parameters",
    "type": "float(), double() and half() change the dtype of parameters",
}

#: Of a compiled function.
FUNCTION: Advice = {
    "save": "symdnn.save(f, path) does that",
    **dict.fromkeys(("export", "to_onnx"), "symdnn.onnx.save(f, path) does that"),
    "graph": "f.fgraph has the nodes, symdnn.dprint(f) prints them",
    **dict.fromkeys(
        ("report", "explain", "summary", "cost_analysis"),
        "print f.lowering_report(), f.memory_report(), f.dnn_report() or f.profile",
    ),
    **dict.fromkeys(("lower", "compile"), "it is compiled; symdnn.dprint(f) prints what it runs"),
    "finder": "f[name] is the value of an input or a shared variable",
}

_BATCHES = "nn.batches((x, t), size, shuffle=True) gives batches; fit takes a DataLoader as it is"

#: Of ``symdnn.nn``.
NN: Advice = {
    **dict.fromkeys(("DataLoader", "Dataset", "TensorDataset"), _BATCHES),
    "Dense": "nn.Linear(inputs, outputs) does that",
    "BatchNorm": "nn.BatchNorm1d, BatchNorm2d and BatchNorm3d do that",
    "CrossEntropy": "nn.CrossEntropyLoss does that",
    **dict.fromkeys(("MaxPooling2D", "MaxPool2D"), "nn.MaxPool2d does that"),
    **dict.fromkeys(("AveragePooling2D", "AvgPool2D"), "nn.AvgPool2d does that"),
    "Conv2DTranspose": "nn.ConvTranspose2d does that",
    "GlobalAveragePooling2D": "nn.GlobalAveragePooling does that",
    "Activation": "nn.ReLU, nn.Tanh, nn.GELU, ... are layers",
    "Model": "write a subclass of nn.Module, or nn.Sequential",
    **dict.fromkeys(("Trainer", "compile"), "nn.fit trains, symdnn.function makes a step"),
    "EarlyStopping": "nn.fit(..., validation=data, patience=5) does that",
    "ModelCheckpoint": "nn.fit(..., checkpoint='run.safetensors') does that",
    "relu": "T.relu(x) is the function, nn.ReLU() the layer",
    "DataParallel": "symdnn.distributed.DataParallel does that",
    "DistributedDataParallel": "symdnn.distributed.DataParallel does that",
    "CrossMapLRN2d": "nn.SpatialCrossMapLRN does that",
    "NLLLoss2d": "nn.NLLLoss does that",
    "RNNBase": "nn.RNN, nn.LSTM and nn.GRU are layers",
    "RNNCellBase": "nn.RNNCell, nn.LSTMCell and nn.GRUCell are cells",
    "GradScaler": "symdnn.LossScale does that",
    **dict.fromkeys(("Input", "InputLayer"), "T.matrix('x') and its kin are inputs"),
    **dict.fromkeys(("Convolution2D", "Conv2D", "Conv2DLayer"), "nn.Conv2d does that"),
    "DenseLayer": "nn.Linear(inputs, outputs) does that",
    "TimeDistributed": "nn.Linear takes sequences; nn.Bottle(layer) joins leading dimensions",
    "loss": "nn.CrossEntropyLoss, nn.MSELoss, ... are losses",
    "data": _BATCHES,
    "SyncBatchNorm": "nn.sync_batch_norm(net) does that",
    "Buffer": "self.register_buffer(name, array) does that",
    **dict.fromkeys(
        (
            f"Lazy{name}{i or ''}{'d' if i else ''}"
            for name in ("Linear", "Conv", "ConvTranspose", "BatchNorm", "InstanceNorm")
            for i in ((0,) if name == "Linear" else (1, 2, 3))
        ),
        "sizes are given: nn.summary(net, shape) shows those of each layer",
    ),
    "Adam": "nn.optim.adam(loss, net, lr) are updates",
    "lr_scheduler": "nn.schedule has schedules of the learning rate",
    "SpatialConvolutionMM": "nn.SpatialConvolution does that",
    "SpatialMaxUnpooling": "nn.MaxUnpool2d does that",
    "VolumetricMaxUnpooling": "nn.MaxUnpool3d does that",
    "SpatialLPPooling": "nn.LPPool2d does that",
    "WeightNorm": "nn.utils.weight_norm(layer) does that",
    "L1Penalty": "add weight * abs(y).sum() to the loss",
    "ZeroGrad": "symdnn.gradient.disconnected_grad(x) does that",
    "LocallyConnected2d": "nn.SpatialConvolutionLocal does that",
    "LinearWeightNorm": "nn.utils.weight_norm(nn.Linear(n, m)) does that",
    "SparseLinear": "symdnn.sparse.dot(x, weight) of a sparse x does that",
    "LayerNormalization": "nn.LayerNorm does that",
    **dict.fromkeys(("SeqLSTM", "FastLSTM"), "nn.LSTM does that"),
    "SeqGRU": "nn.GRU does that",
    "Sequencer": "symdnn.scan applies a module to each step",
    "TripletEmbeddingCriterion": "nn.TripletMarginLoss does that",
    "WeightedMSECriterion": "((y - t) ** 2 * weights).mean() does that",
    "ModuleCriterion": "criterion(module(y), t) does that",
    "gModule": "write a subclass of nn.Module whose forward(x) applies the layers",
}

_LENGTHS = "rnn(x, lengths=lengths) takes padded sequences as they are"

#: Of ``symdnn.nn.utils``.
UTILS: Advice = {
    **dict.fromkeys(
        ("clip_grad_norm_", "clip_grad_norm"),
        "nn.optim.adam(..., clip_norm=1.0) limits gradients, nn.clip_by_norm(grads, limit) without "
        "an optimiser",
    ),
    "clip_grad_value_": "nn.optim.adam(..., clip_value=1.0) limits gradients",
    "rnn": _LENGTHS,
    **dict.fromkeys(("pack_padded_sequence", "pad_packed_sequence", "pack_sequence"), _LENGTHS),
    "parametrizations": "nn.utils.spectral_norm(layer) and weight_norm(layer) do that",
    "parametrize": "a forward of your own may compute weights of other parameters",
    "prune": "a forward of your own may multiply weights by a mask",
    **dict.fromkeys(
        ("fuse_conv_bn_eval", "fuse_linear_bn_eval"),
        "functions of net.evaluate() compute both as one",
    ),
    "skip_init": "with nn.init.skipped() leaves initial values out",
}

#: Of ``symdnn.nn.functional``.
FUNCTIONAL: Advice = {
    "multi_head_attention_forward": "nn.MultiheadAttention(width, heads) does that",
    "feature_alpha_dropout": "nn.AlphaDropout, nn.Dropout2d do that",
    **dict.fromkeys(
        ("upsample_bilinear", "upsample_nearest"),
        "nn.functional.interpolate(x, size, mode='bilinear', align_corners=True) does that",
    ),
    "linear_cross_entropy": "nn.functional.cross_entropy(nn.functional.linear(x, w), t) does that",
}

#: Of ``symdnn.tensor.linalg``.
LINALG: Advice = {
    "matrix_exp": "T.linalg.expm does that",
    "vander": "T.vander does that",
    **{
        f"{name}_ex": f"T.linalg.{name} does that, or raises an error"
        for name in ("cholesky", "inv", "solve", "lu_factor")
    },
}

#: Of ``symdnn.nn.models``.
MODELS: Advice = {
    "vgg16_bn": "nn.models.vgg16(batch_norm=True) does that",
    "vgg19_bn": "nn.models.vgg19(batch_norm=True) does that",
}

#: Of ``symdnn.nn.init``.
INIT: Advice = {
    **dict.fromkeys(("Glorot", "GlorotUniform"), "nn.init.glorot_uniform does that"),
    "GlorotNormal": "nn.init.glorot_normal does that",
    **dict.fromkeys(("He", "HeNormal"), "nn.init.he_normal does that"),
    "Constant": "nn.init.constant(0.1) does that",
    "Orthogonal": "nn.init.orthogonal() does that",
}

#: Of ``symdnn.nn.metrics``.
METRICS: Advice = {
    "Accuracy": "nn.metrics.accuracy() does that",
    "TopKCategoricalAccuracy": "nn.metrics.top_k(5) does that",
    "ConfusionMatrix": "nn.metrics.confusion_matrix(10) does that",
}

#: Of ``symdnn.nn.parallel``.
PARALLEL: Advice = dict.fromkeys(
    ("DistributedDataParallel", "DataParallel"), "symdnn.distributed.DataParallel does that"
)

#: Of ``symdnn.onnx``.
ONNX: Advice = {
    "export": "symdnn.onnx.save(f, path) does that",
    "load_model": "symdnn.onnx.load(path) does that",
    "InferenceSession": "symdnn.onnx.compile(path) is a function",
}

#: Of ``symdnn.control``: what ``jax.lax`` has besides loops and choices.
CONTROL: Advice = {
    "stop_gradient": "x.detach() does that",
    "top_k": "T.topk(x, k, dim=-1) does that",
    "map": "scan, or symdnn.vmap, does that",
    **dict.fromkeys(
        ("dynamic_slice", "dynamic_slice_in_dim", "dynamic_index_in_dim"),
        "x[i:i + n] and x[i] take symbolic places",
    ),
    **dict.fromkeys(
        ("dynamic_update_slice", "dynamic_update_slice_in_dim", "dynamic_update_index_in_dim"),
        "x.at[i:i + n].set(y) does that, with symbolic places, too",
    ),
    **dict.fromkeys(
        ("conv", "conv_general_dilated", "conv_transpose"),
        "nn.functional.conv2d, conv_transpose2d, ... do that",
    ),
    "reduce_window": "nn.functional.max_pool2d, avg_pool2d, ... do that",
    "dot_general": "T.einsum, or T.matmul, does that",
    "select": "T.where(condition, x, y) does that",
    **dict.fromkeys(
        ("psum", "pmean", "pmax", "pmin", "all_gather", "ppermute", "all_to_all"),
        "symdnn.distributed has collectives",
    ),
}

_OPTIMISERS = (
    "ASGD", "Adadelta", "Adafactor", "Adagrad", "Adam", "AdamW", "Adamax", "Muon", "NAdam", "RAdam",
    "RMSprop", "Rprop", "SGD",
)  # fmt: skip

#: Of ``symdnn.nn.optim``.
OPTIM: Advice = {
    **{
        name: f"nn.optim.{name.lower()}(loss, net, lr) are the updates of symdnn.function; "
        f"nn.fit takes nn.optim.{name.lower()} itself"
        for name in _OPTIMISERS
    },
    "lr_scheduler": "nn.schedule has schedules of the learning rate",
}

#: Of ``symdnn.nn.schedule``.
SCHEDULE: Advice = {
    theirs: f"nn.schedule.{ours} does that"
    for theirs, ours in (
        ("ConstantLR", "constant"), ("StepLR", "step"), ("MultiStepLR", "multi_step"),
        ("ExponentialLR", "exponential"), ("LinearLR", "linear"), ("CosineAnnealingLR", "cosine"),
        ("CosineAnnealingWarmRestarts", "cosine_restarts"), ("OneCycleLR", "one_cycle"),
        ("ReduceLROnPlateau", "Plateau"), ("SequentialLR", "chain"),
    )
}  # fmt: skip
SCHEDULE = {**SCHEDULE, "LambdaLR": "a schedule is a function: lr=lambda step: 0.1 / (1 + step)"}
