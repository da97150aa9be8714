// Seven taps; outside of the signal is silence.
#define TAP(j) (((int)i + (j) - 3) >= 0 && ((int)i + (j) - 3) < n ? taps[j] * signal[i + (j) - 3] : 0.0f)
__kernel void fir7(__global const float *signal, __constant float *taps, __global float *filtered, int n) {
  size_t i = get_global_id(0);
  if (i >= n)
    return;
  filtered[i] = TAP(0) + TAP(1) + TAP(2) + TAP(3) + TAP(4) + TAP(5) + TAP(6);
}
