// -log softmax(logits)[label] of each row, a work-item per row.
__kernel void cross_entropy(const __global float* logits,
                            const __global int* labels,
                            __global float* loss,
                            int batch, int classes)
{
    int row = get_global_id(0);
    if (row < batch) {
        const __global float* l = logits + (size_t)row * classes;
        float top = l[0];
        for (int c = 1; c < classes; ++c) top = fmax(top, l[c]);
        float total = 0.0f;
        for (int c = 0; c < classes; ++c) total += exp(l[c] - top);
        loss[row] = log(total) + top - l[labels[row]];
    }
}
