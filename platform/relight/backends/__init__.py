"""What runs a model file: one seam (``base``), one file per backend, and what makes a model file smaller or quicker.

May live here: sessions over ONNX Runtime, PyTorch and TensorRT, where they are placed (processor or GPU, threads), and
``optimizing``. May not: batching, protocols, storage.
"""
