"""Serves the ONNX model that func.yaml names, with the inputs and outputs that its file declares."""

from relight import sdk


class Served(sdk.OnnxModel):
    max_batch_size = 0  # rows that are computed at once; more than 0 where the model's first dimension is a batch

    # To compute something else, derive from sdk.Model, say what goes in and out, and write two methods:
    #
    #     inputs = [sdk.TensorSpec("x", "FP32", [-1, 3])]
    #     outputs = [sdk.TensorSpec("sum", "FP32", [-1, 1])]
    #     uses_repository = True
    #
    #     def load(self):
    #         self.weights = np.load(self.context.files / "weights.npy")
    #
    #     def infer(self, inputs):
    #         return {"sum": (inputs["x"] * self.weights).sum(axis=1, keepdims=True)}


def new() -> sdk.Model:
    return Served()
