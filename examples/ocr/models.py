"""Writes RapidOCR's three networks as folders that `relight model push` takes.

    python examples/ocr/models.py FOLDER

They come from the package rapidocr (Apache-2.0), which is read, never imported: install it by itself,
`pip install --no-deps rapidocr==3.10.0`.
"""

from __future__ import annotations

import shutil
import sys
from importlib.metadata import distribution
from pathlib import Path

import onnxruntime

MODELS = {
    "ocr-detect": "PP-OCRv6_det_small.onnx",
    "ocr-classify": "ch_ppocr_mobile_v2.0_cls_mobile.onnx",
    "ocr-recognise": "PP-OCRv6_rec_small.onnx",
}


def write(folder: Path) -> list[Path]:
    """One folder per model; the recogniser's has its characters too, which stand in the network's metadata."""
    package = Path(str(distribution("rapidocr").locate_file("rapidocr")))
    written = []
    for name, file in MODELS.items():
        target = folder / name
        target.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(package / "models" / file, target / "model.onnx")
        session = onnxruntime.InferenceSession(target / "model.onnx", providers=["CPUExecutionProvider"])
        labels = session.get_modelmeta().custom_metadata_map.get("character")
        if labels:
            (target / "labels.txt").write_text(labels, "utf-8")
        written.append(target)
    return written


if __name__ == "__main__":
    for path in write(Path(sys.argv[1])):
        sys.stdout.write(f"{path}\n")
