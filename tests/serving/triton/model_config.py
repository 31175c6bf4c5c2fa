"""The part of Triton's `ModelConfig` that we write, and a parser of its text format.

Names, numbers and types are those of model_config.proto in triton-inference-server/common.
"""

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory, text_format

KINDS = {"string": 9, "int32": 5, "int64": 3, "enum": 14, "message": 11}
DATA_TYPES = {
    "TYPE_INVALID": 0, "TYPE_INT32": 8, "TYPE_FP32": 11, "TYPE_FP64": 12, "TYPE_STRING": 13,
}  # fmt: skip
INSTANCES = {"KIND_AUTO": 0, "KIND_GPU": 1, "KIND_CPU": 2, "KIND_MODEL": 3}
TENSOR = {"name": (1, "string", ""), "data_type": (2, "enum", "DataType")}
MESSAGES = {
    "ModelInput": TENSOR | {"dims": (4, "int64", "*")},
    "ModelOutput": TENSOR | {"dims": (3, "int64", "*")},
    "ModelInstanceGroup": {"kind": (4, "enum", "Kind"), "count": (2, "int32", "")},
    "ModelDynamicBatching": {},
    "ModelConfig": {
        "name": (1, "string", ""),
        "backend": (17, "string", ""),
        "max_batch_size": (4, "int32", ""),
        "input": (5, "message", "ModelInput*"),
        "output": (6, "message", "ModelOutput*"),
        "instance_group": (7, "message", "ModelInstanceGroup*"),
        "dynamic_batching": (11, "message", "ModelDynamicBatching"),
    },
}


def schema():
    file = descriptor_pb2.FileDescriptorProto(name="m.proto", package="test", syntax="proto3")
    for name, values in (("DataType", DATA_TYPES), ("Kind", INSTANCES)):
        enum = file.enum_type.add(name=name)
        for value, number in values.items():
            enum.value.add(name=value, number=number)
    for name, fields in MESSAGES.items():
        message = file.message_type.add(name=name)
        for field, (number, kind, more) in fields.items():
            added = message.field.add(name=field, number=number, type=KINDS[kind])
            added.label = 3 if more.endswith("*") else 1
            if more.strip("*"):
                added.type_name = f".test.{more.strip('*')}"
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    found = pool.FindMessageTypeByName("test.ModelConfig")
    make = getattr(message_factory, "GetMessageClass", None)  # protobuf 4.22 or newer
    return make(found) if make else message_factory.MessageFactory(pool).GetPrototype(found)


def parse(text):
    """A ModelConfig from the text of config.pbtxt."""
    return text_format.Parse(text, schema()())
