"""The fitted map and its gate in other people's runtimes: `torch` modules, `onnx` graphs,
`transformers` pipelines.
"""
