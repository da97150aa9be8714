def column_sums(x):
    return x.sum(axis=0)
