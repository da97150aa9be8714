import numpy as np


def attention(q, k, v, scale):
    scores = scale * (q @ k.transpose(0, 2, 1))
    weights = np.exp(scores - scores.max(axis=2, keepdims=True))
    return (weights / weights.sum(axis=2, keepdims=True)) @ v
