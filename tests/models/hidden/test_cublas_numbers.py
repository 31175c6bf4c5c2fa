"""What the operation shares with NVIDIA's headers, if TensorFlow has them, and with Python."""

import re
from pathlib import Path

import pytest

from cowclip_merlin.contrib import fused_mlp as fused
from cowclip_merlin.kernels.cuda.source import program
from cowclip_merlin.optimizer.row_updates import gpu_ops

NAMES = {
    "kFloat": "CUDA_R_32F",
    "kBfloat16": "CUDA_R_16BF",
    "kSuccess": "CUBLAS_STATUS_SUCCESS",
    "kInvalidValue": "CUBLAS_STATUS_INVALID_VALUE",
    "kNotSupported": "CUBLAS_STATUS_NOT_SUPPORTED",
    "kCompute32F": "CUBLAS_COMPUTE_32F",
    "kCompute32FFastTF32": "CUBLAS_COMPUTE_32F_FAST_TF32",
    "kOpN": "CUBLAS_OP_N",
    "kOpT": "CUBLAS_OP_T",
    "kEpilogueDefault": "CUBLASLT_EPILOGUE_DEFAULT",
    "kEpilogueReluBias": "CUBLASLT_EPILOGUE_RELU_BIAS",
    "kEpilogueReluAuxBias": "CUBLASLT_EPILOGUE_RELU_AUX_BIAS",
    "kEpilogueDreluBgrad": "CUBLASLT_EPILOGUE_DRELU_BGRAD",
    "kDescTransA": "CUBLASLT_MATMUL_DESC_TRANSA",
    "kDescTransB": "CUBLASLT_MATMUL_DESC_TRANSB",
    "kDescEpilogue": "CUBLASLT_MATMUL_DESC_EPILOGUE",
    "kDescBiasPointer": "CUBLASLT_MATMUL_DESC_BIAS_POINTER",
    "kDescAuxPointer": "CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER",
    "kDescAuxLd": "CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD",
    "kDescBiasType": "CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE",
    "kPrefMaxWorkspaceBytes": "CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES",
    "kPrefMinAlignmentA": "CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES",
    "kPrefMinAlignmentB": "CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES",
    "kPrefMinAlignmentC": "CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES",
    "kPrefMinAlignmentD": "CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES",
}
FOLDER = Path(gpu_ops.__file__).with_name("row_ops")
OURS = FOLDER.joinpath("mlp/cublas.h").read_text()


def numbers(text):
    """The constants of enumerations, whose values may name those before them."""
    found = {}
    for name, value in re.findall(r"\b(\w+)\s*=\s*([\w |()]+?)\s*(?:,|\}|/\*)", text):
        if all(word.isdigit() or word in found for word in re.findall(r"\w+", value)):
            found[name] = eval(value, {}, found)
    return found


@pytest.fixture(scope="module")
def nvidias(tf):
    folder = Path(tf.sysconfig.get_include())
    files = [
        *folder.rglob("cublasLt.h"),
        *folder.rglob("cublas_api.h"),
        *folder.rglob("library_types.h"),
    ]
    if len({file.name for file in files}) < 3:
        pytest.skip("TensorFlow has no headers of cuBLASLt")
    return "\n".join(file.read_text() for file in files)


def test_all_constants_are_nvidias(nvidias):
    ours, theirs = numbers(OURS), numbers(nvidias)
    assert set(ours) == set(NAMES)
    assert {name: theirs[other] for name, other in NAMES.items()} == ours


def test_types_are_nvidias(nvidias):
    fields = re.search(r"typedef struct \{([^}]*?)\} cublasLtMatmulHeuristicResult_t", nvidias)[1]
    types = re.findall(r"^\s*(\w+) (\w+)(\[\d\])?;", fields, re.M)
    assert [kind for kind, _, _ in types] == [
        "cublasLtMatmulAlgo_t", "size_t", "cublasStatus_t", "float", "int",
    ]  # fmt: skip
    assert types[-1][2] == "[4]" and "int reserved[4];" in OURS
    assert re.search(r"uint64_t data\[8\];\s*\} cublasLtMatmulAlgo_t;", nvidias)


def test_functions_have_as_many_parameters_as_nvidias(nvidias):
    flat, header = (re.sub(r"//.*", "", text) for text in (OURS, nvidias))
    loaded = dict(re.findall(r'load\("(\w+)", found\.(\w+)\)', flat))
    assert len(loaded) == 11
    for theirs, mine in loaded.items():
        wanted = re.search(rf"CUBLASWINAPI {theirs}\((.*?)\);", header, re.S)[1]
        given = re.search(rf"\(\*{mine}\)\((.*?)\);", flat, re.S)[1]
        assert given.count(",") == wanted.count(","), theirs


def test_python_and_the_operations_agree_on_what_they_share():
    header = FOLDER.joinpath("mlp/engine.h").read_text()
    record = re.search(r"struct CowClipMlp \{(.*?)\};", header, re.S)[1]
    named = re.findall(r"(\w+)(?:\[\d\])?[,;]", record)
    assert named == [name for name, _ in fused.EngineRecord._fields_]
    assert f"functions[{len(fused.FUNCTIONS)}]" in record
    names = re.search(r"enum MlpFunction \{(.*?)\}", header)[1]
    wanted = [f"k{''.join(part.title() for part in x.split('_'))}" for x in fused.FUNCTIONS]
    assert re.findall(r"\w+", names) == wanted
    assert re.findall(r"__global__ void (\w+)", program("mlp")) == list(fused.FUNCTIONS)
