kernel void axpby(global const float * const a_vec, global float * const b_vec, const float alpha, const float beta, const ulong n)
{
	ulong idx = get_global_id(0);
	const ulong step = get_global_size(0);
	while (idx < n)
	{
		b_vec[idx] = alpha * a_vec[idx] + beta * b_vec[idx];
		idx += step;
	}
}
