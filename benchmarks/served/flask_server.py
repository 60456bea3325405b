"""The usual way: V2 JSON in Flask, one request one run. ``gunicorn -k gthread --threads 8 served.flask_server:app``."""

from __future__ import annotations

import os
from typing import Any

import numpy as np
from flask import Flask, jsonify, request

from served.models import MODELS

DTYPES = {"FP32": np.float32, "INT64": np.int64}
app = Flask(__name__)
compute = MODELS[os.environ["BENCH_NAME"]](int(os.environ["BENCH_THREADS"]))


@app.get("/v2/health/ready")
def ready() -> Any:
    return jsonify(ready=True)


@app.post("/v2/models/m/infer")
def infer() -> Any:
    inputs = {
        tensor["name"]: np.array(tensor["data"], DTYPES[tensor["datatype"]]).reshape(tensor["shape"])
        for tensor in request.get_json()["inputs"]
    }
    array = compute(inputs)
    output = {"name": "out", "datatype": "FP32", "shape": list(array.shape), "data": array.ravel().tolist()}
    return jsonify(model_name="m", outputs=[output])
