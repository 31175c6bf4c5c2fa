"""The signatures of HugeCTR's Python module that the benchmark calls, in 23.12 and 24.06.

They are copied from the source at the tags v23.12.00 and v24.06.00 of NVIDIA-Merlin/HugeCTR: names
of arguments, their C++ types and defaults. Both versions have the same text, unless a list says
otherwise. A line is `name: type`, and `= default` where the argument is optional.
"""

from __future__ import annotations

import ast
from dataclasses import dataclass
from typing import Any

VERSIONS = {"23.12": "23.12.0", "24.06": "24.6.0"}
"""Image -> `__version__`, of HUGECTR_VERSION_MAJOR, _MINOR and _PATCH in include/common.hpp."""

PYBIND = "HugeCTR/include/pybind/"
DEFAULT = "..."  # a default that is an object or a list, which the benchmark does not need

# Callable -> file, text.
TEXTS = {
    "CreateSolver": (
        PYBIND + "solver_wrapper.hpp",
        """model_name: str = ''
        seed: int = 0
        lr_policy: LrPolicy_t = ...
        lr: float = 0.001
        warmup_steps: int = 1
        decay_start: int = 0
        decay_steps: int = 1
        decay_power: float = 2.0
        end_lr: float = 0.0
        max_eval_batches: int = 100
        batchsize_eval: int = 2048
        batchsize: int = 2048
        vvgpu: lists = [[0]]
        repeat_dataset: bool = True
        use_mixed_precision: bool = False
        enable_tf32_compute: bool = False
        scaler: float = 1.0
        metrics_spec: dict = ...
        i64_input_key: bool = False
        use_algorithm_search: bool = True
        use_cuda_graph: bool = True
        gen_loss_summary: bool = True
        train_intra_iteration_overlap: bool = False
        train_inter_iteration_overlap: bool = False
        eval_intra_iteration_overlap: bool = False
        eval_inter_iteration_overlap: bool = False
        device_layout: DeviceLayout = ...
        use_embedding_collection: bool = False
        all_reduce_algo: AllReduceAlgo = ...
        grouped_all_reduce: bool = False
        num_iterations_statistics: int = 20
        perf_logging: bool = False
        drop_incomplete_batch: bool = True
        kafka_brockers: str = ''
        training_callbacks: objects = []""",
    ),
    "CreateOptimizer": (
        PYBIND + "optimizer_wrapper.hpp",
        """optimizer_type: Optimizer_t = ...
        update_type: Update_t = ...
        beta: float = 0.0
        lambda1: float = 0.0
        lambda2: float = 0.0
        beta1: float = 0.9
        beta2: float = 0.999
        epsilon: float = 1e-7
        initial_accu_value: float = 0.0
        momentum_factor: float = 0.0
        atomic_update: bool = True""",
    ),
    "DataReaderParams": (  # the overload with a list of training sources, as in HugeCTR's samples
        PYBIND + "model_wrapper.hpp",
        """data_reader_type: DataReaderType_t
        source: strs
        keyset: strs = []
        eval_source: str
        check_type: Check_t
        cache_eval_data: int = 0
        num_samples: int = 0
        eval_num_samples: int = 0
        float_label_dense: bool = False
        read_file_sequentially: bool = False
        num_workers: int = 12
        slot_size_array: ints = []
        data_source_params: DataSourceParams = ...
        async_param: AsyncParam = ...""",
    ),
    "DataReaderSparseParam": (  # the overload with one number for all slots
        PYBIND + "common_wrapper.hpp",
        """top_name: str
        nnz_per_slot: int
        is_fixed_length: bool
        slot_num: int""",
    ),
    "Input": (  # the overload with one label
        PYBIND + "model_wrapper.hpp",
        """label_dim: int
        label_name: str
        dense_dim: int
        dense_name: str
        data_reader_sparse_param_array: objects""",
    ),
    "SparseEmbedding": (
        PYBIND + "model_wrapper.hpp",
        """embedding_type: Embedding_t
        workspace_size_per_gpu_in_mb: int = 0
        embedding_vec_size: int
        combiner: str
        sparse_embedding_name: str
        bottom_name: str
        slot_size_array: ints = []
        optimizer: CreateOptimizer = ...""",
    ),
    "DenseLayer": (
        PYBIND + "model_wrapper.hpp",
        """layer_type: Layer_t
        bottom_names: strs
        top_names: strs
        factor: float = 1.0
        eps: float = 0.00001
        gamma_init_type: Initializer_t = ...
        beta_init_type: Initializer_t = ...
        dropout_rate: float = 0.5
        elu_alpha: float = 1.0
        num_output: int = 1
        weight_init_type: Initializer_t = ...
        bias_init_type: Initializer_t = ...
        num_layers: int = 0
        leading_dim: int = 0
        time_step: int = 0
        batchsize: int = 1
        SeqLength: int = 1
        vector_size: int = 1
        selected: bool = False
        selected_slots: ints = []
        ranges: pairs = []
        indices: ints = []
        weight_dims: ints = []
        projection_dim: int = 0
        out_dim: int = 0
        axis: int = 1
        max_sequence_len_from: int = 1
        max_sequence_len_to: int = 1
        num_attention_heads: int = 1
        transpose_b: bool = False
        target_weight_vec: floats = []
        use_regularizer: bool = False
        regularizer_type: Regularizer_t = ...
        lambda: float = 0.0
        pos_type: FcPosition_t = ...
        act_type: Activation_t = ...
        num_outputs: ints = []
        use_bias: bool = True
        activations: objects = []
        biases: objects = []
        compute_config: DenseLayerComputeConfig = ...
        shape: ints = []
        dim: int = 0
        index: ints = []""",
    ),
    "Model": (
        PYBIND + "model_wrapper.hpp",
        """solver: CreateSolver
        reader_params: DataReaderParams
        opt_params: CreateOptimizer""",
    ),
    "Model.check_out_tensor": (
        PYBIND + "model_wrapper.hpp",
        """tensor_name: str
        tensor_type: Tensor_t""",
    ),
    "Model.set_learning_rate": (PYBIND + "model_wrapper.hpp", "lr: float"),
}
ONLY = {"23.12": {"SparseEmbedding": "\nhybrid_embedding_param: HybridEmbeddingParam = ..."}}
"""Version -> callable -> further lines."""

# Enumeration -> members that both versions have, from common_wrapper.hpp.
ENUMS = {
    "Activation_t": "Relu Non",
    "Check_t": "Sum Non",
    "DataReaderType_t": "Norm Raw Parquet RawAsync",
    "Embedding_t": "DistributedSlotSparseEmbeddingHash LocalizedSlotSparseEmbeddingHash",
    "FcPosition_t": "Non Head Body Tail Isolated",
    "Initializer_t": "Default Uniform XavierNorm XavierUniform Zero",
    "Layer_t": "BatchNorm LayerNorm BinaryCrossEntropyLoss Reshape Select Concat CrossEntropyLoss"
    " Dropout ElementwiseMultiply ELU InnerProduct MLP Interaction MultiCrossEntropyLoss ReLU"
    " ReLUHalf Sigmoid Slice WeightMultiply FmOrder2 Add ReduceSum Softmax Gather PReLU_Dice GRU"
    " MatrixMultiply MultiHeadAttention Scale FusedReshapeConcat FusedReshapeConcatGeneral Sub"
    " ReduceMean MultiCross Cast SequenceMask",
    "LrPolicy_t": "fixed",
    "Optimizer_t": "Ftrl Adam RMSProp AdaGrad MomentumSGD Nesterov SGD",
    "Regularizer_t": "L1 L2",
    "Tensor_t": "Train Evaluate",
    "Update_t": "Local Global LazyGlobal",
}
REMOVED = {
    "23.12": {"Embedding_t": " LocalizedSlotSparseEmbeddingOneHot HybridSparseEmbedding"},
}
"""Version -> enumeration -> members that later versions lack."""


@dataclass(frozen=True)
class Argument:
    """One argument: its type, and its default as text; None if it is required."""

    kind: str
    default: str | None

    @property
    def value(self) -> Any:
        """The default."""
        return None if self.default in (None, DEFAULT) else ast.literal_eval(self.default)


def arguments(name: str, version: str) -> dict[str, Argument]:
    """Return the arguments of a callable in their order."""
    text = TEXTS[name][1] + ONLY.get(version, {}).get(name, "")
    found = {}
    for line in text.splitlines():
        declared, _, default = line.partition(" = ")
        argument, kind = declared.strip().split(": ")
        found[argument] = Argument(kind, default or None)
    return found


def members(name: str, version: str) -> list[str]:
    """Return the members of an enumeration."""
    return (ENUMS[name] + REMOVED.get(version, {}).get(name, "")).split()
