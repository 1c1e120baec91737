"""Every map and every score, written once, over the few operations of `operations.py`; NumPy, torch and ONNX run them.

Folder = kind of formula. What a runtime has a faster way for hangs on its `fast`: formula -> kernel.
"""
