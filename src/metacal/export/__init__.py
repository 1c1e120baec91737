"""Export of fitted gates and calibrators to files and to other runtimes.

`saved` writes JSON files, `torch` builds modules, `onnx` builds graphs, and `transformers` provides
a pipeline.
"""
