"""What runs a model file: one seam (``base``), one file per backend.

May live here: sessions over ONNX Runtime, later PyTorch and TensorRT. May not: batching, protocols, storage.
"""
