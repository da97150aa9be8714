def axpy(x, y, a):
    return a * x + y
