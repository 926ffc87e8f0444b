"""Encoders on a CPU without PyTorch: a model folder of the BERT family as a graph for ONNX Runtime."""
