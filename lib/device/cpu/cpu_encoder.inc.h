/* cpu_encoder.inc.h - norms over channels.  Included by cpu_kern_<isa>.c after cpu_rows.inc.h. */

INLINE void *pixel(const struct vfm_tensor *t, int64_t i)
{
	return (char *)t->data + i * t->shape[2] * (is_bf(t) ? 2 : 4);
}

/* y[c] = act((x[c] - mean[c]) r mul[c] + add[c]); mean NULL: 0 */
INLINE void norm_pixel(const struct vfm_channel_norm *a, int64_t i, const float *mean, float r, const float *mul,
	const float *add, bool bf, bool silu)
{
	const void *x = pixel(&a->x, i);
	void *y = pixel(&a->y, i);

	V_FOR(k, n, 0, a->x.shape[2])
	{
		vf v = v_get(x, k, n, bf);

		if (mean)
			v -= v_get(mean, k, n, false);
		v = v_fma(v * v_set(r), v_get(mul, k, n, false), v_get(add, k, n, false));
		v_put(y, k, silu ? v_silu(v, bf) : v, n, bf);
	}
}

enum { AHEAD = 8 }; /* pixels from a prefetch to its use */

/* Prefetches a pixel for reading x and writing y; it may be past the last one. */
INLINE void prefetch_pixel(const struct vfm_channel_norm *a, int64_t i, bool bf)
{
	int64_t size = a->x.shape[2] * (bf ? 2 : 4);
	const char *x = (const char *)a->x.data + i * size, *y = (const char *)a->y.data + i * size;

	for (int64_t k = 0; k < size; k += 64) {
		__builtin_prefetch(x + k, 0);
		__builtin_prefetch(y + k, 1);
	}
}

/* Several pixels at a time: their sums, then their roots and quotients overlap. */
INLINE void rms_pixels(const struct vfm_channel_norm *a, int64_t i0, int64_t i1, const float *mul, const float *add,
	bool bf, bool silu)
{
	int64_t c = a->x.shape[2];
	bool mean = a->kind == VFM_CHANNEL_NORM_MEAN_SQUARE;
	float root = sqrtf((float)c), by[AHEAD];

	for (int64_t i = i0; i < i1; i += AHEAD) {
		int n = (int)(i1 - i < AHEAD ? i1 - i : AHEAD);

		for (int k = 0; k < n; k++)
			by[k] = row_sumsq(pixel(&a->x, i + k), c, 0, bf);
		for (int k = 0; k < n; k++) {
			float length = sqrtf(mean ? by[k] + (float)c * a->eps : by[k]);

			by[k] = root / (!mean && length < a->eps ? a->eps : length);
		}
		for (int k = 0; k < n; k++) {
			prefetch_pixel(a, i + k + AHEAD, bf);
			norm_pixel(a, i + k, NULL, by[k], mul, add, bf, silu);
		}
	}
}

INLINE void group_pixels(const struct vfm_channel_norm *a, int64_t i0, int64_t i1, const float *mean, const float *mul,
	const float *add, bool bf, bool silu)
{
	for (int64_t i = i0; i < i1; i++) {
		prefetch_pixel(a, i + AHEAD, bf);
		norm_pixel(a, i, mean, 1, mul, add, bf, silu);
	}
}

static void channel_norm(const struct vfm_channel_norm *a, int64_t i0, int64_t i1, const float *stats, float *tmp)
{
	int64_t c = a->x.shape[2], width = a->groups ? c / a->groups : c;
	float *mean = tmp + c, *mul = tmp + 2 * c;
	const float *weight = fdata(&a->weight), *add = fdata(&a->bias);
	bool silu = a->act == VFM_ACT_SILU;

	if (!add)
		add = memset(tmp, 0, (size_t)c * sizeof(*tmp));
	if (!stats) {
		BF2(is_bf(&a->x), silu, rms_pixels(a, i0, i1, weight, add, B0, B1));
		return;
	}
	for (int g = 0; g < a->groups; g++)
		for (int64_t k = g * width; k < (g + 1) * width; k++) {
			mean[k] = stats[g];
			mul[k] = stats[a->groups + g] * weight[k];
		}
	BF2(is_bf(&a->x), silu, group_pixels(a, i0, i1, mean, mul, add, B0, B1));
}

/* sum[c], squares[c] = the sums over the pixels of x - mean[c], and of its square */
INLINE void sum_pixels(const struct vfm_channel_norm *a, int64_t i0, int64_t i1, const float *mean, float *sum,
	float *squares, bool bf)
{
	int64_t c = a->x.shape[2];

	memset(sum, 0, (size_t)c * sizeof(*sum));
	memset(squares, 0, (size_t)c * sizeof(*squares));
	for (int64_t i = i0; i < i1; i++) {
		const void *x = pixel(&a->x, i);

		V_FOR(k, n, 0, c)
		{
			vf v = v_get(x, k, n, bf) - v_get(mean, k, n, false);

			v_put(sum, k, v_get(sum, k, n, false) + v, n, false);
			v_put(squares, k, v_fma(v, v, v_get(squares, k, n, false)), n, false);
		}
	}
}

/* Two passes: the second uses the mean of the first and removes the rounding errors of its sums. */
static void channel_stats(const struct vfm_channel_norm *a, int64_t i0, int64_t i1, float *part, float *tmp)
{
	int64_t c = a->x.shape[2], width = c / a->groups;
	float *sum = tmp, *squares = tmp + c, *mean = tmp + 2 * c, count = (float)((i1 - i0) * width);

	memset(mean, 0, (size_t)c * sizeof(*mean));
	for (int pass = 0; pass < 2; pass++) {
		BF1(is_bf(&a->x), sum_pixels(a, i0, i1, mean, sum, squares, B0));
		for (int g = 0; g < a->groups; g++) {
			float shift = row_sum(sum + g * width, width, false) / count;

			part[g] = mean[g * width] + shift;
			part[a->groups + g] = row_sum(squares + g * width, width, false) - shift * shift * count;
			for (int64_t k = g * width; k < (g + 1) * width; k++)
				mean[k] = part[g];
		}
	}
}
