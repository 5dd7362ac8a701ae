"""The types of KServe's manifests, read from its SDK, which is not installed."""

import ast
import re
import zipfile


def kserve_types(wheel):
    """The type of each JSON key, by the name of a class of the SDK."""
    types = {}
    with zipfile.ZipFile(wheel) as files:
        for name in files.namelist():
            if re.fullmatch(r"kserve/models/v\w+\.py", name):
                (found,) = (
                    node
                    for node in ast.parse(files.read(name)).body
                    if isinstance(node, ast.ClassDef)
                )
                tables = {
                    each.targets[0].id: ast.literal_eval(each.value)
                    for each in found.body
                    if isinstance(each, ast.Assign)
                }
                keys = tables["attribute_map"]
                types[found.name] = {
                    keys[field]: kind for field, kind in tables["openapi_types"].items()
                }
    return types


def faults(types, kind, value):
    """What a value has that its type has not. Types of Kubernetes itself are not looked into."""
    if (several := re.fullmatch(r"list\[(\w+)\]", kind)) and isinstance(value, list):
        return [fault for each in value for fault in faults(types, several[1], each)]
    if kind not in types:
        return []
    plain = {"str": str, "int": int, "bool": bool}
    found = []
    for key, each in value.items():
        if key not in types[kind]:
            found.append(f"{kind} has no {key}")
        elif not isinstance(each, plain.get(types[kind][key], object)):
            found.append(f"{kind}.{key} is not {types[kind][key]}")
        else:
            found += faults(types, types[kind][key], each)
    return found
