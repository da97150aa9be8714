def layer_norm(x, weight, bias, eps):
    centred = x - x.mean(axis=1, keepdims=True)
    return centred / (x.var(axis=1, keepdims=True) + eps) ** 0.5 * weight + bias
